//! The SLA monitor: judges each chain every second, and finds the cause of a violation.
//!
//! Once a second the agent reads the counters of all chains and passes the [`Reading`]s to the
//! [`SlaMonitor`]. The monitor divides counters that chains share: a worker's socket rings, an
//! interface, a worker's time. `account` finds where packets are, `judge` compares a second with
//! the contract, `cause` explains a violation, `events` joins the seconds of one violation,
//! `history` keeps one chain's figures, `whole` judges the loss of a chain over nodes. [`span`]
//! accounts for the packets of a measurement, [`claims`] compares the contract with a measurement.
//!
//! Start reading at [`SlaMonitor::add_round`].

mod account;
mod cause;
pub mod claims;
mod events;
mod history;
mod judge;
mod monitor;
pub mod span;
mod status;
mod whole;

pub use account::{Binding, Counts, HopCounts, LossCounter, LossPlace, Reading, WorkerTimes};
pub use cause::CoreLoad;
pub use events::format_date;
pub use monitor::{Round, SlaMonitor};
pub use status::{
    Losses, PacketAccount, SlaCause, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState,
    SlaStatus, SlaTerm, SlaVerdict, SlaWindow,
};
pub use whole::{PartCounts, SpanLoss, WholeLoss, WholeReading};
