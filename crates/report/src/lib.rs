//! Draws results: tables, histograms, plots, pages, pictures of chains.
//!
//! * [`terminal`] draws text for a terminal or a pipe: tables and histograms.
//! * [`html`] draws self-contained pages: markup, tables, plots as SVG.
//! * [`chain`] draws the report of a chain in both forms, [`experiment`] draws the report of
//!   an experiment.
//! * [`graph`] draws the picture of a chain, as text and as SVG.
//! * [`topology`] draws topologies.
//! * [`plan`] writes plans, [`status`] running chains, [`sla`] their contracts, as text.
//!
//! The crate takes figures (`myelin-metrics`, `myelin-api`) and returns text. It measures nothing
//! and reads no clock, no file and no terminal. The caller passes the terminal's width. A page has
//! the figures of each plot in a table, too. Start reading at [`chain`].

mod bins;
pub mod chain;
mod error;
pub mod experiment;
pub mod graph;
pub mod html;
pub mod plan;
pub mod sla;
pub mod span;
pub mod status;
pub mod terminal;
pub mod topology;

pub use error::Error;
