//! The highest rate that comes through.
//!
//! [`carry`] sends a load and tells what arrived of it; [`Ladder`] says which rates to offer, where the same way is tried again and again.

mod carry;
mod ladder;
mod trial;

pub use carry::{Load, MAX_BURST, MAX_PACKETS, carry};
pub use ladder::Ladder;
pub use trial::Carried;
