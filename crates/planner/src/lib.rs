//! Plans a chain: chooses the space, hook and mapping, predicts the cost, and computes the
//! worst-case delay.
//!
//! [`Costs`] has the cost of each step of a packet's path. [`plan`] chooses for each function the
//! space, and for the chain the hook that takes its packets, so that the chain costs least.
//! [`admission`] decides whether the node can keep the contract. [`placement`] places functions on
//! several nodes. The crate does no I/O, deploys nothing and measures nothing: `myelin calibrate`
//! measures the costs.
//!
//! Two rules choose the space of a function without a `space` key.
//! [`Classify::Cost`](myelin_spec::Classify::Cost), the default, minimizes the cost of the
//! functions and of the changes of space, for the given order.
//! [`Classify::Calvin`](myelin_spec::Classify::Calvin) takes the function's class ([`by_class`]).
//!
//! Start reading at [`plan()`].

pub mod admission;
pub mod calculus;
mod classify;
pub mod costs;
mod error;
mod frame;
mod machine;
pub mod placement;
mod plan;
mod planning;
mod shaping;
mod share;

pub use admission::plan;
pub use classify::by_class;
pub use costs::{Cost, Costs, CostsError, FunctionCosts, Origin, Stall, StepCosts};
pub use error::PlanError;
pub use machine::{Machine, PortKind};
pub use plan::{
    BlackBoxSharing, Bound, Entry, Exit, Hop, HopShare, PartPlan, Plan, Segment, ServerShare,
    ShaperPlace, ShaperPlan, SharingPlan, Step, WorkerPlan,
};
pub use planning::REFERENCE_FRAME_BYTES;
pub use share::CoreShare;
