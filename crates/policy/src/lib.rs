//! Decides from measured figures whether each chain keeps its SLA, and finds the cause if not.
//!
//! The crate does no I/O and reads no clock: time and counter readings are arguments. So property
//! tests run the same code as the agent. The crate names no function kind, no eBPF map and no
//! process, because the agent reads all counters and passes figures.
//!
//! Start reading at [`sla`].

pub mod sla;
