//! Loops that watch running chains: restart dead processes, sample counters, keep workers on cores,
//! follow links.
//!
//! Each loop is a thread that ends with the node. No loop waits for a request, and no request waits
//! for a loop.

pub(crate) mod binding;
mod link_reader;
pub(crate) mod links;
pub(crate) mod reading;
pub(crate) mod sampler;
pub(crate) mod span;
pub(crate) mod supervise;
