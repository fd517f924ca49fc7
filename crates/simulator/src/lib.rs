//! Simulates cores that tasks share: sources, rings, tasks and the cost of a switch.
//!
//! The policies of [`myelin_policy::sharing`] decide, with the code of a live core. So a policy can
//! be seen on ten thousand cores, with costs that the machine at hand does not have, and in
//! property tests. The crate does no I/O and reads no clock; a seed makes each run repeatable.
//!
//! ```text
//! source -> ring -> task 0 -> ring -> task 1 -> port       one core, a chain of two tasks
//! ```
//!
//! Time advances by reads: a task reads a batch at its start, and the packets are in the next ring
//! at its end. Packets of equal distance are one record (`ring.rs`). The simulator takes all full
//! batches until the next decision in one step, with the result of single ones. Cores that rings
//! join run in the order of their events; other cores run alone (`island.rs`), on any thread.
//!
//! What the model leaves out: caches, ticks of the kernel, and the rest of a batch that a
//! preemption interrupts (its packets count as not yet read).
//!
//! [`pendulum`] is the plant of an experiment whose control loop runs over a live network.
//!
//! Start reading at [`Machine`], then at `core.rs`.

mod core;
mod fair;
mod island;
mod machine;
pub mod pendulum;
mod result;
mod ring;
mod setup;
mod source;

pub use machine::Machine;
pub use result::{ChainResult, CoreResult};
pub use setup::{CoreSetup, LaneSetup, Mechanism, Scheduler};
pub use source::{Pattern, Source};
