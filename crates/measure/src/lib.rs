//! Measures a chain from its end hosts, and the CPU use during the measurement.
//!
//! * [`probe`] sends UDP packets from a client socket to a server socket and back. It reports round
//!   trip, one-way delay, loss, reordering, duplicates and damage. The [`Mode`] sets how the ends
//!   wait. Depending on the mode, the probe measures the datapath alone, or the delay of an
//!   application.
//! * [`bandwidth`] searches the highest rate without loss or reordering.
//! * [`cpu`] reports the time of each core by use (user, system, idle, ...).
//! * [`environment`] describes the machine.
//!
//! The crate makes no chain and no network. The caller passes bound sockets ([`Sockets`]). Every
//! measurement has a deadline and can be cancelled. A measurement polls on at most two cores, and
//! only in modes that poll. The results are types of `myelin-metrics`.
//!
//! Start reading at [`probe`] and its [`Config`]; the measuring loop is in `client.rs`.

pub mod bandwidth;
pub mod calibrate;
pub mod clock;
pub mod cpu;
pub mod flood;
pub mod function_config;
pub mod generator;
pub mod stall;

mod client;
mod config;
mod control;
mod echo;
mod environment;
mod error;
mod monitor;
mod payload;
mod recorder;
mod run;
mod socket;
mod tracker;

pub use config::{Config, MAX_COUNT};
pub use control::Control;
pub use environment::environment;
pub use error::Error;
pub use monitor::Monitor;
pub use myelin_metrics::{Cores, Counts, Matching, Mode, ProbeResult, Stop, Summary};
pub use payload::HEADER_BYTES;
pub use run::probe;
pub use socket::Sockets;
