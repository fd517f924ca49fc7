//! Reads the counters of all chains for the SLA monitor (`myelin_policy::sla`), which judges them.
//!
//! `sampler` reads once a second, `reading` one chain, `span` over a time that somebody chooses. Nothing is done on the packets' way.

mod reading;
mod sampler;
mod span;

pub(crate) use reading::form_counts;
pub(crate) use sampler::{Shared, start};
pub(crate) use span::Span;
