//! Controllers: state machines that read measured figures and decide.
//!
//! [`sla`] decides whether each chain keeps its SLA, and finds the cause if not. [`sharing`]
//! decides which task of a core runs next.
//!
//! The crate does no I/O and reads no clock: time and counter readings are arguments. So property
//! tests and the simulator run the same code as the agent. The crate names no function kind, no
//! eBPF map and no process, because the agent reads all counters and passes figures.
//!
//! Start reading at [`sla`], or at [`Policy`] and [`sharing`].

mod controller;
pub mod sharing;
pub mod sla;

pub use controller::Policy;
