//! The eBPF programs as the kernel runs them: on test data, against their twins in user space, and on real links.
//! The function kinds themselves have tests of their own: `kinds`.
//!
//! All of it needs root; without it each test says so and passes.

#[path = "../common/mod.rs"]
mod common;

mod chain;
mod classify;
mod conform;
mod depart;
mod distributed;
mod exchange;
mod likely;
mod limits;
mod live;
mod net;
mod parse;
mod pins;
mod policer;
mod profiles;
mod reentry;
mod stand;
mod timestamp;
mod trial;
