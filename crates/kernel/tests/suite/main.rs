//! Tests the eBPF programs in the kernel. Compares the programs with the same functions in user
//! space on test frames, and runs the programs on real links. `tests/kinds` tests the function
//! kinds.
//!
//! Every test needs root. Without root, a test prints a message and passes.

#[path = "../common/mod.rs"]
mod common;

mod block;
mod chain;
mod classify;
mod conform;
mod delay;
mod depart;
mod distributed;
mod door_bench;
mod exchange;
mod fast_path;
mod fragments;
mod limits;
mod live;
mod net;
mod parse;
mod pins;
mod policer;
mod profiles;
mod reentry;
mod relay;
mod timestamp;
mod trial;
mod wire;
