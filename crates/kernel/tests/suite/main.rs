//! The eBPF programs as the kernel runs them: on test data, against their twins in user space, and on real links.
//!
//! All of it needs root; without it each test says so and passes.

mod chain;
mod classify;
mod conform;
mod depart;
mod distributed;
mod exchange;
mod flows;
mod functions;
mod likely;
mod limits;
mod live;
mod load_balancer;
mod nat;
mod net;
mod parse;
mod pins;
mod policer;
mod profiles;
mod reentry;
mod router;
mod stand;
mod timestamp;
