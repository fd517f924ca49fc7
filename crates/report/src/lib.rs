//! All that is drawn: tables, histograms, plots and pages.
//!
//! * [`terminal`] draws text for a terminal or a pipe: tables and histograms.
//! * [`html`] draws self-contained pages: markup, tables, plots as SVG.
//! * [`chain`] draws the report of a chain in both forms, [`experiment`] that of an experiment.
//! * [`plan`] draws plans, [`status`] running chains, [`sla`] their contracts, as text.
//!
//! The crate takes figures (`myelin-metrics`, `myelin-api`) and gives text. It measures nothing, reads no clock, no file and no terminal: the caller says
//! how wide it is. Every plot of a page has its figures in a table on the page. Start reading at [`chain`].

mod bins;
pub mod chain;
mod error;
pub mod experiment;
pub mod graph;
pub mod html;
pub mod plan;
pub mod sla;
pub mod status;
pub mod terminal;

pub use error::Error;
