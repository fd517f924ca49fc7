//! What an end host sees of a chain, and what the CPUs did meanwhile.
//!
//! * [`probe`] sends UDP packets from a client socket through whatever lies between to a server socket and back, and tells what became
//!   of each: round trip, one-way delay, loss, reordering, duplicates, damage. Three [`Mode`]s decide how the ends wait,
//!   and with it what is measured: the datapath alone, or what an application sees.
//! * [`bandwidth`] searches the highest rate that comes through without loss or reordering.
//! * [`cpu`] tells how the cores spent the time of a measurement.
//! * [`environment`] tells on which machine.
//!
//! The crate makes no chain and no network: it is given sockets ([`Sockets`]), each bound where its end stands. Every measurement is
//! bounded by a deadline, can be cancelled, and polls on two cores at most, only while it runs and only in the modes that say so. What it found
//! are the types of `myelin-metrics`.
//!
//! Start reading at [`probe`] and its [`Config`]; the measuring loop is in `client.rs`.

pub mod bandwidth;
pub mod calibrate;
pub mod clock;
pub mod cpu;
pub mod flood;
pub mod generator;
pub mod snippet;
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
