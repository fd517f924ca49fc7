//! The real-time priorities of all threads that Myelin makes or changes, from below
//! ([`Policy::Fifo`](crate::sched::Policy::Fifo)). Nothing else names a real-time priority.
//!
//! A thread waits for all threads of higher priority on its core. So a preemptor interrupts the
//! functions that it schedules, and the receive work of links interrupts the preemptor.

/// A function that waits for its turn on a shared core.
pub const WAITING_FUNCTION: u8 = 1;
/// The function that has the turn.
pub const RUNNING_FUNCTION: u8 = 2;
/// The process that gives functions of its own core their turns.
pub const PREEMPTOR: u8 = 10;
/// A thread that must act at exact times: the worker of a delay line. It sleeps in between, and
/// also under any load.
pub const DELAY_LINE: u8 = 15;
/// Kernel threads that do the receive work of a link ([`crate::napi`]).
pub const RECEIVE_WORK: u8 = 20;
/// A thread of the agent during the microseconds in which packets wait for it.
pub const DRAIN_GUARD: u8 = 21;
/// A thread that creates a controlled stall.
pub const STALL: u8 = 22;
