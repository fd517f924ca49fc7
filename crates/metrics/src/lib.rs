//! The results of measurements as data types.
//!
//! * [`Distribution`] holds delays, [`Summary`] the figures that reports quote from it.
//! * [`stats`] computes estimates with confidence intervals, and decides claims on them.
//! * [`envelope`] is the JSON form of every report: environment, rows, claims.
//! * [`ProbeResult`] is the result of a probe, [`CpuUse`] that of a CPU meter, [`ChainReport`] that
//!   of a chain's run.
//!
//! The crate `measure` fills these types, the agent sends them to clients, `report` draws them. The
//! crate does no I/O and reads no clock. A modelled figure has `predicted` in its name.
//!
//! Start reading at [`ChainReport`].

pub mod chain;
pub mod compare;
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
