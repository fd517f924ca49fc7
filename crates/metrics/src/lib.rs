//! What measurements found, as data.
//!
//! * [`Distribution`] holds delays, [`Summary`] the figures that reports quote from one.
//! * [`stats`] tells what may be claimed from the figures, and when a bound on a ratio holds.
//! * [`envelope`] is the JSON form of every report: environment, rows, claims.
//! * [`ProbeResult`] and [`CpuUse`] are what a probe and a CPU meter found, [`ChainReport`] all that was found of a chain.
//!
//! The agent sends these types to its clients, `measure` fills them in, `report` draws them. The crate does no I/O and reads no clock.
//! Modelled figures enter here only as what they are called (`predicted`).
//!
//! Start reading at [`ChainReport`].

pub mod chain;
mod cpu;
mod distribution;
pub mod envelope;
mod environment;
mod probe;
mod row;
pub mod stats;

pub use chain::ChainReport;
pub use cpu::{CoreUse, CpuUse, ProcessUse, Shares};
pub use distribution::{Distribution, Summary};
pub use environment::Environment;
pub use probe::{Cores, Counts, Matching, Mode, ProbeResult, Samples, Stop, TimelinePoint};
pub use row::Row;
