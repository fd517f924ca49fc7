//! The function kinds that have a form in both spaces: each case runs in user space and in the kernel, at both hooks.
//!
//! A kind has one file. It compares each space with a plain reference, and the spaces with each other. The kernel's
//! part needs root; without it each test says so and runs in user space alone.

#[path = "../common/mod.rs"]
mod common;

mod firewall;
mod flow_tracker;
mod forward;
mod load_balancer;
mod monitor;
mod nat;
mod router;
mod space;
mod timestamp;
mod work;
mod xor;
