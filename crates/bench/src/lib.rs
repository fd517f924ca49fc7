//! The experiments: they measure Myelin's claims on this machine.
//!
//! Each experiment is one file of `experiments/`. It deploys its subjects several times and
//! measures them in turns (`sampling.rs`), in a different order each round. A claim compares
//! figures of the same round, with a 95 % interval over deployments: absolute times of a virtual
//! machine drift, such ratios do not. Experiments with round trips (`round_trips.rs`) compare
//! *variants* (`variant.rs`), the ways to join a client to a server: a cable, a bridge, a chain, a
//! C program ([`mod@reference`]).
//!
//! An experiment leaves nothing behind, even if it is killed. Its chains belong to a separate agent
//! with a separate run directory. All other objects are in unnamed network namespaces.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use myelin_bench::{Effort, Monitor, Options};
//!
//! let options = Options::new(Effort::Quick, "/usr/bin/myelin".into());
//! let cancelled = AtomicBool::new(false);
//! let monitor = Monitor { emit: &|event| eprintln!("{event:?}"), cancelled: &cancelled };
//! let report = myelin_bench::run("hop-cost", &options, &monitor)?;
//! for claim in &report.claims {
//!     println!("{}: {:?}", claim.id, claim.holds);
//! }
//! # Ok::<(), myelin_bench::Error>(())
//! ```

mod agents;
mod applications;
mod cluster;
mod conditions;
mod ebpf;
mod envelope_file;
mod error;
mod experiment;
mod experiments;
mod faults;
mod figures;
mod frames;
mod generator;
mod installed;
#[cfg(test)]
mod judged;
mod lab;
mod live_core;
mod machine;
mod network;
mod ovs;
mod owned_child;
mod owned_run_dir;
mod published;
mod python_package;
pub mod reference;
mod round_trips;
mod routers;
mod sampling;
mod scratch;
mod simulated;
mod slices;
mod variant;
mod variants;

pub use envelope_file::{EnvelopeError, open_envelope, seal_envelope};
pub use error::Error;
pub use experiment::{Effort, Experiment, Options};
pub(crate) use experiment::{Findings, Session};
pub use faults::Fault;
use myelin_linux::capability;
pub use myelin_measure::Monitor;
pub use myelin_metrics::Row;
pub use myelin_metrics::compare::{ClaimChange, compare};
pub use myelin_metrics::envelope::{Claim, Report, Verdict};
pub use myelin_report::experiment::SvgFile;
pub use owned_run_dir::{find_abandoned_run_dirs, remove_run_dir};
pub use python_package::{find_python_package, prepend_to_search_path};

/// All experiments.
pub fn experiments() -> &'static [Experiment] {
    experiments::ALL
}

/// Runs an experiment. Needs root. Polls on two cores while it measures.
///
/// # Errors
/// The experiment does not exist, the caller is not root, the caller cancels, or the operating
/// system refuses a step. A cancelled experiment ends within a second. Nothing is left behind.
pub fn run(name: &str, options: &Options, monitor: &Monitor<'_>) -> Result<Report<Row>, Error> {
    let experiment = find_experiment(name)?;
    if let Some(fault) = options.fault.filter(|fault| fault.target().0 != name) {
        return Err(Error::Fault(fault, fault.target().0));
    }
    if !capability::is_root() {
        return Err(Error::NotRoot);
    }
    // Before the measurement: an unreadable program must not cost its results.
    let identity = run_settings(options)?;
    let monitored = machine::MachineMonitor::start()?;
    let mut findings = Findings::default();
    let outcome = (experiment.run)(Session::new(options, *monitor), &mut findings);
    let ended_early = findings.end(outcome)?;
    let mut environment = monitored.stop()?;
    environment.settings.extend(findings.settings);
    let identity = identity
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    environment.settings.extend(identity);
    Ok(Report {
        experiment: experiment.name.to_owned(),
        environment,
        rows: findings.rows,
        claims: findings.claims,
        ended_early,
    })
}

/// The settings that identify a run. Two runs of which one lacks a setting differ.
fn run_settings(options: &Options) -> Result<[(&'static str, Option<String>); 6], Error> {
    let program = std::fs::read(&options.program)
        .map_err(|cause| Error::system(format!("read {}", options.program.display()), cause))?;
    Ok([
        ("effort", Some(options.effort.name().to_owned())),
        (
            "deployments",
            options.deployments.map(|count| count.to_string()),
        ),
        (
            "interval_us",
            Some(options.interval.as_micros().to_string()),
        ),
        ("program_sha256", Some(envelope_file::sha256(program))),
        ("revision", options.revision.clone()),
        ("fault", options.fault.map(|fault| fault.to_string())),
    ])
}

/// Whether a report is complete, and of a run with these options and the same program.
pub fn is_finished(report: &Report<Row>, options: &Options) -> bool {
    let settings = &report.environment.settings;
    let is_same = |(name, value): &(&str, Option<String>)| settings.get(*name) == value.as_ref();
    report.ended_early.is_none()
        && run_settings(options).is_ok_and(|wanted| wanted.iter().all(is_same))
}

/// A self-contained HTML page with the report's claims, the experiment's plots, and all rows.
///
/// # Errors
/// [`Error::Unknown`] if no experiment has the report's name, [`Error::Data`] or [`Error::Report`]
/// if its rows cannot be drawn.
pub fn render_page(report: &Report<Row>) -> Result<String, Error> {
    let experiment = find_experiment(&report.experiment)?;
    let plots = experiment.plots()?;
    Ok(myelin_report::experiment::page(
        report,
        (experiment.about, experiment.differs),
        &plots,
    )?)
}

/// The plots of a report as standalone SVG files.
///
/// # Errors
/// As [`render_page`].
pub fn render_figures(report: &Report<Row>) -> Result<Vec<SvgFile>, Error> {
    let plots = find_experiment(&report.experiment)?.plots()?;
    Ok(myelin_report::experiment::figures(report, &plots)?)
}

fn find_experiment(name: &str) -> Result<&'static Experiment, Error> {
    let mut all = experiments().iter();
    all.find(|experiment| experiment.name == name)
        .ok_or_else(|| Error::Unknown(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn every_experiment_declares_plots() {
        for experiment in experiments() {
            let plots = experiment.plots().unwrap();
            assert!(!plots.is_empty(), "{}", experiment.name);
            let titles: BTreeSet<_> = plots.iter().map(|plot| &plot.title).collect();
            assert_eq!(titles.len(), plots.len(), "two plots have the same title");
            for plot in &plots {
                assert!(!plot.title.is_empty() && !plot.table.is_empty() && !plot.along.is_empty());
                assert!(!plot.values.is_empty(), "{}", plot.title);
                let says_so = plot.title.contains("simulated");
                assert_eq!(says_so, experiment.is_simulated(), "{}", plot.title);
            }
        }
    }

    #[test]
    fn a_plot_shows_each_published_figure() {
        let plots = experiments().iter().flat_map(|one| one.plots().unwrap());
        let named: BTreeSet<_> = plots.filter_map(|plot| plot.published_name).collect();
        let all = published::calvin::FIGURES.map(|figure| figure.name.to_owned());
        assert_eq!(named, BTreeSet::from(all));
        let unknown = Experiment {
            plots: "[{ published: none }]",
            ..experiments()[0]
        };
        let error = unknown.plots().unwrap_err().to_string();
        assert!(error.contains("no paper has the figure `none`"), "{error}");
    }

    #[test]
    fn plots_have_the_bounds_of_the_claims() {
        let plots = |name| find_experiment(name).unwrap().plots().unwrap();
        let lines: Vec<f64> = ["calvin-advanced", "calvin-chain", "deploy"]
            .into_iter()
            .flat_map(plots)
            .filter_map(|plot| plot.line)
            .map(|(_, at)| at)
            .collect();
        let bounds = [
            experiments::calvin_advanced::BUDGET_US,
            experiments::calvin_advanced::BUDGET_US,
            published::calvin::BUDGET_US,
            experiments::deploy::UP_BOUND_MS,
            experiments::deploy::MEMORY_BOUND_MIB,
        ];
        assert_eq!(lines, bounds);
    }

    #[test]
    fn only_a_complete_report_of_the_same_run_is_finished() {
        let options = Options {
            revision: Some("v1".to_owned()),
            ..Options::new(Effort::Quick, "/proc/self/exe".into())
        };
        let report = |options: &Options| Report {
            experiment: "rings".to_owned(),
            environment: run_settings(options).unwrap().into_iter().fold(
                myelin_metrics::Environment::default(),
                |environment, (name, value)| match value {
                    Some(value) => environment.with(name, value),
                    None => environment,
                },
            ),
            rows: Vec::new(),
            claims: Vec::new(),
            ended_early: None,
        };
        assert!(is_finished(&report(&options), &options));
        let cut = Report {
            ended_early: Some("cancelled".to_owned()),
            ..report(&options)
        };
        assert!(!is_finished(&cut, &options));
        for other in [
            Options {
                deployments: Some(1),
                ..options.clone()
            },
            Options {
                revision: None,
                ..options.clone()
            },
            Options {
                fault: Some(Fault::SlowRing),
                ..options.clone()
            },
            Options {
                program: "/bin/sh".into(),
                ..options.clone()
            },
        ] {
            assert!(!is_finished(&report(&other), &options), "{other:?}");
            assert!(!is_finished(&report(&options), &other), "{other:?}");
        }
    }

    #[test]
    fn names_are_unique_and_run_refuses_unknown_names() {
        let names: BTreeSet<_> = experiments().iter().map(|one| one.name).collect();
        assert!(names.contains("hop-cost") && names.contains("deploy"));
        assert_eq!(names.len(), experiments().len());
        let cancelled = AtomicBool::new(false);
        let monitor = Monitor {
            emit: &|_| {},
            cancelled: &cancelled,
        };
        let options = Options::new(Effort::Quick, "".into());
        let error = run("none", &options, &monitor).unwrap_err();
        assert!(
            error.to_string().contains("`none`; `myelin bench --list`"),
            "{error}"
        );
    }
}
