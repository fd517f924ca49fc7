//! An experiment: its options, its session, its findings and claims.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use myelin_measure::Monitor;
use myelin_metrics::Row;
use myelin_metrics::envelope::Claim;
use myelin_report::experiment::Plot;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;
use crate::faults::Fault;
use crate::published::calvin::FIGURES;

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

    /// Packets a variant sends in a round.
    pub(crate) fn packets(self) -> u32 {
        self.choose(10, 200, 500)
    }

    /// Time after which an experiment makes no further deployments. All experiments together take
    /// 25 minutes or 2 hours at most.
    fn time_limit(self) -> Duration {
        Duration::from_secs(self.choose(1, 60, 180))
    }
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Amount of measurement.
    pub effort: Effort,
    /// Number of deployments. `None` stops when the claims are decided, or at the time limit.
    pub deployments: Option<usize>,
    /// Interval between the packets of a probe. Zero sends the next packet after the reply.
    pub interval: Duration,
    /// The `myelin` executable, for the workers and the agent of the experiment.
    pub program: PathBuf,
    /// The source revision of the executable, for the report.
    pub revision: Option<String>,
    /// A fault to measure with, to see claims turn false.
    pub fault: Option<Fault>,
}

impl Options {
    /// Options of this program without deployments, interval, revision and fault.
    pub fn new(effort: Effort, program: PathBuf) -> Self {
        Self {
            effort,
            deployments: None,
            interval: Duration::ZERO,
            program,
            revision: None,
            fault: None,
        }
    }
}

/// A running experiment: its [`Options`], and the receiver of its progress.
#[derive(Clone, Copy)]
pub(crate) struct Session<'a> {
    pub(crate) effort: Effort,
    pub(crate) deployments: Option<usize>,
    pub(crate) interval: Duration,
    pub(crate) time_limit: Duration,
    pub(crate) program: &'a Path,
    pub(crate) fault: Option<Fault>,
    pub(crate) monitor: Monitor<'a>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(options: &'a Options, monitor: Monitor<'a>) -> Self {
        Self {
            effort: options.effort,
            // Without a number, the claims decide.
            deployments: options
                .deployments
                .or(options.effort.choose(Some(1), None, None)),
            interval: options.interval,
            time_limit: options.effort.time_limit(),
            program: &options.program,
            fault: options.fault,
            monitor,
        }
    }

    /// Whether the experiment runs with this fault.
    pub(crate) fn has_fault(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

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
    pub(crate) settings: Vec<(String, String)>,
    /// Why the experiment ended before it was complete.
    ended_early: Option<Error>,
}

impl Findings {
    /// Adds a setting.
    pub(crate) fn set<T: Display>(&mut self, setting: &str, value: T) {
        self.settings.push((setting.to_owned(), format!("{value}")));
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

    /// Notes that the experiment cannot continue. Its rows are kept, its claims are not.
    pub(crate) fn end_early(&mut self, error: Error) {
        self.ended_early = Some(error);
    }

    /// Returns the error with which an earlier stage ended.
    pub(crate) fn check_not_ended(&mut self) -> Result<(), Error> {
        self.ended_early.take().map_or(Ok(()), Err)
    }

    /// Ends with the outcome of the experiment. An error counts only if there are no rows: else the
    /// rows are kept, with the reason why the experiment ended early.
    pub(crate) fn end(&mut self, outcome: Result<(), Error>) -> Result<Option<String>, Error> {
        let Err(error) = outcome.and_then(|()| self.check_not_ended()) else {
            return Ok(None);
        };
        if self.rows.is_empty() {
            return Err(error);
        }
        self.rows.sort_by_key(|row| row.table() == UNFINISHED);
        self.claims.clear();
        Ok(Some(error.to_string()))
    }
}

/// The table of the figures of a deployment that failed. It comes last.
pub(crate) const UNFINISHED: &str = "unfinished deployment";

/// An experiment that can be run.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name, for [`run`](crate::run).
    pub name: &'static str,
    /// What it measures, one line. Starts with `simulated:` if it does not measure this machine.
    pub about: &'static str,
    /// Differences from the set-up of the paper whose figures it repeats; empty without a paper.
    pub differs: &'static str,
    pub(crate) run: fn(Session<'_>, &mut Findings) -> Result<(), Error>,
    /// The plots of its page: a list of [`Plot`], YAML.
    pub(crate) plots: &'static str,
}

impl Experiment {
    /// Whether its figures are those of simulated cores. Then its tables, claims and plots say so.
    pub fn is_simulated(&self) -> bool {
        self.about.starts_with("simulated:")
    }

    pub(crate) fn plots(&self) -> Result<Vec<Plot>, Error> {
        let mut plots: Vec<Plot> = parse_list(self.name, self.plots)?;
        for plot in &mut plots {
            let Some(name) = &plot.published_name else {
                continue;
            };
            let figure = FIGURES.iter().find(|figure| figure.name == name);
            let unknown = || Error::Data(self.name, format!("no paper has the figure `{name}`"));
            plot.published = Some(*figure.ok_or_else(unknown)?);
        }
        Ok(plots)
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
            deployments: None,
            interval: Duration::ZERO,
            time_limit: Effort::Quick.time_limit(),
            program: Path::new(""),
            fault: None,
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
    fn rows_survive_an_error_and_claims_do_not() {
        let failed = || Err(Error::Unknown("x".to_owned()));
        assert!(
            Findings::default().end(failed()).is_err(),
            "nothing to keep"
        );
        let mut findings = Findings::default();
        findings.add_row(Row::of("rows"));
        findings
            .claims
            .push(Claim::figure_at_most("claim", 1.0, 2.0));
        assert_eq!(findings.end(Ok(())).unwrap(), None);
        assert_eq!((findings.rows.len(), findings.claims.len()), (1, 1));
        findings.end_early(Error::Cancelled);
        let reason = findings.end(Ok(())).unwrap();
        assert_eq!(reason, Some(Error::Cancelled.to_string()));
        assert_eq!((findings.rows.len(), findings.claims.len()), (1, 0));
    }
}
