//! What an end host sees of a chain, what the CPUs did meanwhile, and the reports made of both.
//!
//! * [`probe`] sends UDP packets from a client socket through whatever lies between to a server socket and back, and tells what became
//!   of each: round trip, one-way delay, loss, reordering, duplicates, damage. Three [`Mode`]s decide how the ends wait,
//!   and with it what is measured: the datapath alone, or what an application sees.
//! * [`bandwidth`] searches the highest rate that comes through without loss or reordering.
//! * [`cpu`] tells how the cores spent the time of a measurement.
//! * [`stats`] tells what may be claimed from the figures, and when a bound on a ratio holds.
//! * [`envelope`] is the JSON form of a report, [`terminal`] the text form, [`html`] the page.
//!
//! The crate makes no chain and no network: it is given sockets ([`Sockets`]), each bound where its end stands. Every measurement is
//! bounded by a deadline, can be cancelled, and polls on two cores at most, only while it runs and only in the modes that say so.
//! Modelled figures never enter here except as what they are called (`predicted`).
//!
//! Start reading at [`probe`] and its [`Config`]; the measuring loop is in `client.rs`.

pub mod bandwidth;
pub mod chain_report;
pub mod clock;
pub mod cpu;
pub mod envelope;
pub mod environment;
pub mod html;
pub mod stats;
pub mod terminal;

mod bins;
mod client;
mod config;
mod control;
mod distribution;
mod echo;
mod error;
mod payload;
mod recorder;
mod result;
mod run;
mod socket;
mod tracker;

pub use client::Matching;
pub use config::{Config, Cores, MAX_COUNT, Mode};
pub use control::{Control, Stop};
pub use distribution::{Distribution, Prefixed, Summary};
pub use error::Error;
pub use payload::HEADER_BYTES;
pub use recorder::{Samples, TimelinePoint};
pub use result::ProbeResult;
pub use run::probe;
pub use socket::Sockets;
pub use tracker::Counts;
