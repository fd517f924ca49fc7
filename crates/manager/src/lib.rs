//! A chain over nodes: its parts, their order, and their undo.
//!
//! A *part* is the run of neighbouring functions that one node holds. [`plan()`] cuts a chain into
//! parts and connects them; it is pure. [`deployment`] makes, changes and removes all parts as one.
//! It knows agents only as somebody who takes a part ([`PartTakers`]).

mod budget;
mod cut;
pub mod deployment;
mod drain;
mod parallel;
pub mod plan;
mod replicas;
mod route;

pub use budget::share_latency;
pub use cut::{Section, cut};
pub use deployment::{Deployment, EndedEntrance, EndedPath, PartTakers, PlacedPart};
pub use parallel::in_parallel;
pub use plan::{Entrance, SpanPlan, SpanRequest, plan};
pub use replicas::join;
pub use route::{Route, find_access, find_route};
