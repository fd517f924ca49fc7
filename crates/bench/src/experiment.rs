//! What an experiment is: how it is run, what it reports to, what it finds and claims.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_metrics::Row;
use myelin_metrics::envelope::Claim;
use myelin_metrics::stats::{Estimate, PairedRatio, ROUNDS_NEEDED};
use myelin_report::experiment::Plot;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::Error;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Hardly anything, which decides no claim: whether the experiment works.
    Trial,
    /// Fewer rounds, though never fewer than a claim needs: under a minute.
    Quick,
    /// Minutes.
    Whole,
}

impl Effort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Trial => "trial",
            Self::Quick => "quick",
            Self::Whole => "whole",
        }
    }
}

/// How an experiment is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How much is measured.
    pub effort: Effort,
    /// The `myelin` executable: it becomes the worker and the agent of the experiment.
    pub program: PathBuf,
}

impl Options {
    /// Rounds of a measurement.
    pub(crate) fn rounds(&self, quick: usize, whole: usize) -> usize {
        match self.effort {
            Effort::Trial => 2,
            Effort::Quick => quick,
            Effort::Whole => whole,
        }
    }

    /// Packets a variant sends in a round.
    pub(crate) fn packets(&self) -> u32 {
        match self.effort {
            Effort::Trial => 10,
            Effort::Quick => 200,
            Effort::Whole => 500,
        }
    }
}

/// Where an experiment reports to, and what ends it.
#[derive(Clone, Copy)]
pub struct Monitor<'a> {
    /// Called with what is being done, and how much of it: (stage, done, total).
    pub progress: &'a (dyn Fn(&str, u64, u64) + Sync),
    /// Set it to end the experiment within a second; what it made is removed.
    pub cancelled: &'a AtomicBool,
}

impl std::fmt::Debug for Monitor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor")
            .field("cancelled", self.cancelled)
            .finish_non_exhaustive()
    }
}

impl Monitor<'_> {
    pub(crate) fn progress(&self, stage: &str, done: usize, total: usize) -> Result<(), Error> {
        (self.progress)(stage, done as u64, total as u64);
        self.check()
    }

    /// An error once the caller wants the end.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// What an experiment found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) rows: Vec<Row>,
    pub(crate) claims: Vec<Claim>,
    /// What else decides the figures: probe mode, packets a round.
    pub(crate) settings: Vec<(&'static str, String)>,
}

impl Findings {
    /// Nothing yet, with these settings.
    pub(crate) fn with<const N: usize>(settings: [(&'static str, String); N]) -> Self {
        Self {
            settings: settings.into(),
            ..Self::default()
        }
    }

    /// A row that says why a subject cannot be had here.
    pub(crate) fn skipped(field: &str, subject: impl Into<Value>, reason: &impl Display) -> Row {
        Row::of("skipped")
            .with(field, subject)
            .with("reason", reason.to_string())
    }

    /// Claims that the ratio is at most `bound`.
    pub(crate) fn at_most(&mut self, id: impl Into<String>, ratio: &PairedRatio, bound: f64) {
        self.claims.push(Claim::ratio_at_most(id, (), ratio, bound));
    }

    /// Claims that the ratio is at least `bound`.
    pub(crate) fn at_least(&mut self, id: impl Into<String>, ratio: &PairedRatio, bound: f64) {
        self.claims
            .push(Claim::ratio_at_least(id, (), ratio, bound));
    }

    /// Claims that the median is at most `bound`.
    pub(crate) fn median_at_most(
        &mut self,
        id: impl Into<String>,
        median: Option<Estimate>,
        bound: f64,
    ) {
        self.claims.push(median_at_most(id, median, bound));
    }
}

/// An experiment that can be run.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name, as [`run`](crate::run) takes it.
    pub name: &'static str,
    /// What it measures, one line.
    pub about: &'static str,
    pub(crate) run: fn(&Options, &Monitor<'_>) -> Result<Findings, Error>,
    /// What its page shows of the rows: a list of [`Plot`], YAML.
    pub(crate) plots: &'static str,
}

impl Experiment {
    pub(crate) fn plots(&self) -> Result<Vec<Plot>, Error> {
        read(self.name, self.plots)
    }
}

/// Reads a list that an experiment has in a file of data.
pub(crate) fn read<T: DeserializeOwned>(
    experiment: &'static str,
    text: &str,
) -> Result<Vec<T>, Error> {
    serde_saphyr::from_str(text).map_err(|error| Error::Data(experiment, error.to_string()))
}

/// "The median is at most `bound`", by the rule for ratios: enough rounds, and the interval wholly at or below it.
pub(crate) fn median_at_most(id: impl Into<String>, median: Option<Estimate>, bound: f64) -> Claim {
    let interval = median.and_then(|median| median.interval);
    let enough = median.is_some_and(|median| median.samples >= ROUNDS_NEEDED as u64);
    Claim {
        id: id.into(),
        paper: ().into(),
        source: None,
        measured: json!({
            "median": median.map(|median| median.value),
            "ci95_low": interval.map(|i| i.low),
            "ci95_high": interval.map(|i| i.high),
            "rounds": median.map(|median| median.samples),
        }),
        bound: format!("<= {bound}").into(),
        holds: interval.filter(|_| enough).map(|i| i.high <= bound),
    }
}

#[cfg(test)]
mod tests {
    use myelin_metrics::stats::median_ci;

    use super::*;

    #[test]
    fn a_quick_run_still_decides_claims() {
        let options = |effort| Options {
            effort,
            program: PathBuf::new(),
        };
        assert_eq!(options(Effort::Quick).rounds(30, 300), 30);
        assert_eq!(options(Effort::Whole).rounds(30, 300), 300);
        assert!(options(Effort::Trial).rounds(30, 300) < 30);
    }

    #[test]
    fn a_median_needs_rounds_and_room() {
        let claim =
            |samples: &[f64], bound| median_at_most("x", median_ci(samples, 0.95), bound).holds;
        assert_eq!(claim(&[10.0; 30], 10.0), Some(true));
        assert_eq!(claim(&[10.0; 30], 9.9), Some(false));
        assert_eq!(claim(&[10.0; 29], 20.0), None);
        assert_eq!(claim(&[], 20.0), None);
    }
}
