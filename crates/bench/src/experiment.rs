//! An experiment: its options, its session, its findings and claims.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use myelin_measure::Monitor;
use myelin_metrics::Row;
use myelin_metrics::envelope::Claim;
use myelin_metrics::stats::Estimate;
use myelin_report::experiment::Plot;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;

/// Amount of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Just enough to show that the experiment works. It decides no claim.
    Trial,
    /// Fewer rounds, but enough for all claims: under a minute.
    Quick,
    /// All rounds: minutes.
    Whole,
}

impl Effort {
    /// Chooses a value by the effort.
    pub(crate) fn choose<T>(self, trial: T, quick: T, whole: T) -> T {
        match self {
            Self::Trial => trial,
            Self::Quick => quick,
            Self::Whole => whole,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.choose("trial", "quick", "whole")
    }

    /// Rounds of a measurement.
    pub(crate) fn rounds(self, quick: usize, whole: usize) -> usize {
        self.choose(2, quick, whole)
    }

    /// Packets that a variant sends in a round.
    pub(crate) fn packets(self) -> u32 {
        self.choose(10, 200, 500)
    }
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Amount of measurement.
    pub effort: Effort,
    /// The `myelin` executable, for the workers and the agent of the experiment.
    pub program: PathBuf,
}

/// A running experiment: its [`Options`], and the receiver of its progress.
#[derive(Clone, Copy)]
pub(crate) struct Session<'a> {
    pub(crate) effort: Effort,
    pub(crate) program: &'a Path,
    pub(crate) monitor: Monitor<'a>,
}

impl Session<'_> {
    pub(crate) fn progress(&self, stage: &str, done: usize, total: usize) -> Result<(), Error> {
        self.monitor.progress(stage, done as u64, total as u64);
        self.check()
    }

    /// Returns [`Error::Cancelled`] after the caller cancelled.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.monitor.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// Results of an experiment.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) rows: Vec<Row>,
    pub(crate) claims: Vec<Claim>,
    /// Settings that affect the figures: probe mode, packets a round.
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl Findings {
    /// Adds a setting.
    pub(crate) fn with(mut self, setting: &'static str, value: impl Into<String>) -> Self {
        self.settings.push((setting, value.into()));
        self
    }

    /// A row with the reason why a subject is not available here.
    pub(crate) fn skipped_row(
        field: &str,
        subject: impl Into<Value>,
        reason: &impl Display,
    ) -> Row {
        Row::of("skipped")
            .with(field, subject)
            .with("reason", reason.to_string())
    }

    pub(crate) fn add_row(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn add_claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Claims that the ratio is at most `bound`.
    pub(crate) fn claim_at_most(&mut self, id: impl Into<String>, ratio: Estimate, bound: f64) {
        self.add_claim(Claim::ratio_at_most(id, ratio, bound));
    }

    /// Claims that the ratio is at least `bound`.
    pub(crate) fn claim_at_least(&mut self, id: impl Into<String>, ratio: Estimate, bound: f64) {
        self.add_claim(Claim::ratio_at_least(id, ratio, bound));
    }

    /// Claims that the median is at most `bound`.
    pub(crate) fn claim_median_at_most(
        &mut self,
        id: impl Into<String>,
        median: Option<Estimate>,
        bound: f64,
    ) {
        self.add_claim(Claim::median_at_most(id, median, bound));
    }
}

/// An experiment that can be run.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name, for [`run`](crate::run).
    pub name: &'static str,
    /// What it measures, one line.
    pub about: &'static str,
    pub(crate) run: fn(Session<'_>) -> Result<Findings, Error>,
    /// The plots of its page: a list of [`Plot`], YAML.
    pub(crate) plots: &'static str,
}

impl Experiment {
    pub(crate) fn plots(&self) -> Result<Vec<Plot>, Error> {
        parse_list(self.name, self.plots)
    }
}

/// Parses a list of an experiment's data file.
pub(crate) fn parse_list<T: DeserializeOwned>(
    experiment: &'static str,
    text: &str,
) -> Result<Vec<T>, Error> {
    serde_saphyr::from_str(text).map_err(|error| Error::Data(experiment, error.to_string()))
}

#[cfg(test)]
impl Session<'_> {
    /// A session without a receiver of progress.
    pub(crate) fn quick(cancelled: &std::sync::atomic::AtomicBool) -> Session<'_> {
        Session {
            effort: Effort::Quick,
            program: Path::new(""),
            monitor: Monitor {
                emit: &|_| {},
                cancelled,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_still_decides_claims() {
        assert_eq!(Effort::Quick.rounds(30, 300), 30);
        assert_eq!(Effort::Whole.rounds(30, 300), 300);
        assert!(Effort::Trial.rounds(30, 300) < 30);
    }
}
