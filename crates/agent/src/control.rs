//! What goes on while chains run: processes that died are started again, counters are read once a second, cores are held.
//!
//! Each loop is a thread that ends with the node. None of them waits for requests, and no request waits for them.

pub(crate) mod binding;
pub(crate) mod reading;
pub(crate) mod sampler;
pub(crate) mod span;
pub(crate) mod supervise;
