//! Admission decides whether a node can keep a chain's contract without breaking that of another
//! chain.
//!
//! A chain with a traffic profile has a worst-case bound ([`Bound`](crate::Bound)) on the delay of
//! each packet. Its path is a sequence of servers ([`Visit`]), each with a service curve;
//! [`calculus`](crate::calculus) computes the bound. [`Ledger`] has the admitted chains of a node.
//! [`admit`] checks the new chain's promise, and the promises of all chains that share a core or a
//! link with the new chain. The module reads no clock and does no I/O.
//!
//! A chain without a rate has no profile. Neither this chain nor a chain that shares a server with
//! it has a bound. So the chain is best effort, and may share no server with promised chains.

mod batches;
mod booking;
mod core_load;
mod core_use;
mod deadline_turns;
mod decision;
mod evaluate;
mod flow;
mod group;
mod lateness;
mod ledger;
mod order;
mod path;
mod peers;
mod release;
mod remedy;
mod review;
mod rings;
mod site;
mod stages;
#[cfg(test)]
mod tests;
mod turns;
mod unbounded;
mod worst_case;

pub use booking::{Booking, book};
pub use core_load::CoreLoad;
pub use decision::{Decision, admit};
pub use flow::Work;
pub(crate) use flow::{Growth, work_curve};
pub use ledger::Ledger;
pub use path::{Hold, Resource, Visit};
pub use peers::{name_at_peer, peer_of_node};
pub use remedy::{Alternative, remedies};
pub use review::{Node, plan, review};
pub(crate) use site::{NS, worst_case_work};
pub use site::{Platform, Site};
pub use turns::WorkerTurn;
