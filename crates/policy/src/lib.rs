//! What Myelin decides from what it measured. Each policy is a state machine, `observe -> decide`.
//!
//! This room does no I/O and reads no clock: time and readings are arguments. So the same code judges a live chain, a simulated
//! one and a property test. It knows no function kind by name, no map, no process: the agent reads those and hands figures in.
//!
//! Start reading at [`sla`], the judgement of contracts.

pub mod sla;
