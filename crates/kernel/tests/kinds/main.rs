//! Tests the function kinds that exist in both spaces. Each case runs in user space and in the
//! kernel, at both hooks.
//!
//! Each kind has one file. The file compares each space with a plain reference, and the spaces with
//! each other. The kernel part needs root. Without root each test prints a message and runs in user
//! space only.

#[path = "../common/mod.rs"]
mod common;

mod firewall;
mod flow_tracker;
mod forward;
mod fragments;
mod icmp_errors;
mod load_balancer;
mod monitor;
mod nat;
mod router;
mod space;
mod timestamp;
mod translated_fragments;
mod work;
mod xor;
