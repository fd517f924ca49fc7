//! Decides from measured figures whether each chain keeps its SLA, and why not.
//!
//! The crate does no I/O and reads no clock: time and counter readings are arguments. So the same
//! code judges a live chain and a property test. It names no function kind, no eBPF map and no
//! process: the agent reads those and passes figures.
//!
//! Start reading at [`sla`].

pub mod sla;
