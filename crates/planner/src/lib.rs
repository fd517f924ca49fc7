//! Planning a chain.
//!
//! This room knows what the steps of a packet's way cost ([`Costs`]) and how to place the functions of a chain so that it
//! costs least ([`plan`]): which space each runs in, which hook takes the packets, how often they cross between kernel
//! and user space, and whether the agreed latency can be met at all. It does no I/O, deploys nothing and measures
//! nothing; `myelin calibrate` measures, and hands the figures in.
//!
//! Two rules choose the space of a function that is not pinned. [`Classify::Cost`](myelin_spec::Classify::Cost), the
//! default, takes the least sum of function costs and crossings for the given order. [`Classify::Calvin`](myelin_spec::Classify::Calvin)
//! goes by the class of the function ([`by_class`]).
//!
//! Start reading at [`plan()`].

pub mod admission;
pub mod calculus;
mod classify;
pub mod costs;
mod error;
mod frame;
mod machine;
mod plan;
mod planning;
mod shaping;

pub use admission::plan;
pub use classify::by_class;
pub use costs::{Cost, Costs, CostsError, FunctionCosts, Origin, Stall, StepCosts};
pub use error::PlanError;
pub use machine::{Machine, PortKind};
pub use plan::{
    Bound, Entry, Exit, Hop, HopShare, Plan, Segment, ServerShare, ShaperPlace, ShaperPlan, Step,
};
pub use planning::REFERENCE_FRAME_BYTES;
