//! Tests the eBPF programs in the kernel: on test frames against the same functions in user space,
//! and on real links. `tests/kinds` tests the function kinds.
//!
//! Every test needs root. Without root it prints a message and passes.

#[path = "../common/mod.rs"]
mod common;

mod chain;
mod classify;
mod conform;
mod depart;
mod distributed;
mod door_bench;
mod exchange;
mod fast_path;
mod limits;
mod live;
mod net;
mod parse;
mod pins;
mod policer;
mod profiles;
mod reentry;
mod timestamp;
mod trial;
