//! Admission: whether what a chain is promised can be kept, beside what others were promised.
//!
//! A chain with a traffic profile has a worst-case bound ([`Bound`](crate::Bound)) on the delay of each packet: its way is a sequence of servers
//! ([`Visit`]), each with a service curve, and [`calculus`](crate::calculus) does the rest. [`Ledger`] holds what was admitted on a
//! node, and [`admit`] says whether one more chain fits: its own promise, and those of all that it shares a core or a link
//! with. Nothing here reads a clock or does any I/O.
//!
//! A chain without a rate has no profile, so nothing can be said of its worst case, nor of that of a chain that waits for the same core
//! behind it. It is best effort, and stays apart from promises.

mod booking;
mod decision;
mod evaluate;
mod flow;
mod group;
mod lateness;
mod ledger;
mod order;
mod pause;
mod release;
mod remedy;
mod review;
mod rings;
mod site;
#[cfg(test)]
mod tests;
mod way;
mod worst;

pub use booking::{Booking, book};
pub use decision::{Decision, admit};
pub use ledger::Ledger;
pub use remedy::{Alternative, remedies};
pub use review::{Node, plan, review};
pub use rings::{RING, SMALL_RING};
pub use site::{Platform, Site};
pub use way::{Hold, Resource, Visit};
