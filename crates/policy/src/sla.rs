//! The SLA monitor: what each chain did in each second, whether that kept its contract, and why not.
//!
//! Once a second the agent reads the counters of all chains and hands the [`Reading`]s to the [`SlaMonitor`], which divides what
//! chains share: the rings of a worker's sockets, an interface, a worker's time. `account` says where packets went, `judge`
//! whether a second kept the contract, `cause` why not, `events` joins the seconds of one violation, `history` keeps what is told
//! of one chain. [`span`] is the account of a time that somebody chooses, [`claims`] the contract against a measurement.
//!
//! Start reading at [`SlaMonitor::take`].

mod account;
mod cause;
pub mod claims;
mod events;
mod history;
mod judge;
mod monitor;
pub mod span;
mod status;

pub use account::{Binding, Counts, Crossing, HopCounts, Reading, Station, WorkerTimes};
pub use cause::CoreLoad;
pub use monitor::{Round, SlaMonitor};
pub use status::{
    Losses, PacketAccount, SlaCause, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState,
    SlaStatus, SlaTerm, SlaWindow,
};
