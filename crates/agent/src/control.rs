//! Loops that watch running chains: restart dead processes, sample counters, keep workers on cores,
//! follow links.
//!
//! [`actuator`] alone changes how threads and groups use the cores.
//!
//! Each loop is a thread that ends with the node. No loop waits for a request, and no request waits
//! for a loop.

pub(crate) mod actuator;
mod link_reader;
pub(crate) mod links;
pub(crate) mod losses;
pub(crate) mod nodes;
pub(crate) mod preemptor;
pub(crate) mod reading;
pub(crate) mod sampler;
mod sensor;
pub(crate) mod span;
pub(crate) mod supervise;
mod watched;
