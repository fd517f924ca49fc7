//! Runs every experiment with very few rounds. Each has a complete report and leaves nothing
//! behind, also if it is cancelled. The tests in the gate judge no figure.

mod program;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libtest_mimic::Trial;
use myelin_bench::{
    Effort, Error, Experiment, Monitor, Report, Row, experiments, open_envelope, run, seal_envelope,
};
use program::check_leftovers;
use serde_json::Value;

/// The experiments whose trial is in the gate: it takes few seconds. The others are thorough.
const GATE: [&str; 23] = [
    "hop-cost",
    "classifier",
    "calvin-chain",
    "calvin-bandwidth",
    "calvin-advanced",
    "coding-loss",
    "containers",
    "dpdk-port",
    "framework",
    "migration",
    "rate-overhead",
    "switch-cost",
    "sharing-delay",
    "bound",
    "unis-motivation",
    "unis-batches",
    "unis-density",
    "unis-multi",
    "unis-occupancy",
    "unis-scale",
    "placement",
    "pendulum",
    "sfc-gap",
];
/// The experiment whose cancellation is in the gate.
const CANCELLED_IN_GATE: &str = "bound";

fn main() -> ExitCode {
    for name in GATE.iter().chain([&CANCELLED_IN_GATE]) {
        let is_known = experiments().iter().any(|one| one.name == *name);
        assert!(is_known, "no experiment `{name}`");
    }
    program::main(experiments().iter().flat_map(tests_of).collect())
}

/// The tests of an experiment. Those that are ignored are thorough: they take long, or judge the
/// figures that this machine measures.
fn tests_of(experiment: &Experiment) -> [Trial; 3] {
    let name = experiment.name;
    let test =
        |what: &str, test: fn(&str)| program::test(format!("{what}::{name}"), move || test(name));
    [
        test("completes", |name| drop(check_trial(name))).with_ignored_flag(!GATE.contains(&name)),
        test("plausible", |name| check_figures(&check_trial(name))).with_ignored_flag(true),
        test("cancelled", check_cancellation).with_ignored_flag(name != CANCELLED_IN_GATE),
    ]
}

/// Runs the experiment once. Its report and its page are complete.
fn check_trial(name: &str) -> Report<Row> {
    let report = program::measure(name, &program::options(Effort::Trial));
    check_report(&report);
    check_page(&report);
    check_leftovers(name);
    let (rows, claims) = (report.rows.len(), report.claims.len());
    println!("{name}: {rows} rows, {claims} claims");
    report
}

/// The report has rows with figures, and claims that one deployment does not decide.
fn check_report(report: &Report<Row>) {
    assert_eq!(report.ended_early, None);
    assert!(!report.rows.is_empty());
    assert_eq!(report.claims.is_empty(), all_skipped(report), "{report:?}");
    for row in measured_rows(report) {
        assert!(row.fields().any(|(_, value)| value.is_number()), "{row:?}");
    }
    for claim in &report.claims {
        assert_eq!(claim.holds, None, "{claim:?} is decided by one deployment");
        assert!(
            claim.verdict().is_none() || claim.undecided.is_some(),
            "{claim:?}"
        );
    }
    if is_simulated(report) {
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.table().starts_with("simulated "))
        );
        assert!(
            report
                .claims
                .iter()
                .all(|claim| claim.id.starts_with("simulated "))
        );
    }
    for setting in ["quiet", "effort", "interval_us", "program_sha256"] {
        let settings = &report.environment.settings;
        assert!(settings.contains_key(setting), "{setting}: {settings:?}");
    }
    let text = seal_envelope(report).unwrap();
    assert_eq!(&open_envelope(&text).unwrap(), report);
}

fn is_simulated(report: &Report<Row>) -> bool {
    let mut all = experiments().iter();
    all.any(|one| one.name == report.experiment && one.is_simulated())
}

fn measured_rows(report: &Report<Row>) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(|row| row.table() != "skipped")
}

/// Each row has a positive figure, and all figures are plausible.
fn check_figures(report: &Report<Row>) {
    for row in measured_rows(report) {
        let is_positive =
            |(_, value): &(&str, &Value)| value.as_f64().is_some_and(|figure| figure > 0.0);
        assert!(row.fields().any(|field| is_positive(&field)), "{row:?}");
        for (name, value) in row.fields() {
            if let (Some((least, most)), Some(figure)) = (plausible_range(name), value.as_f64()) {
                // A trial of simulated cores is shorter than a turn of some schedulers.
                let least = if is_simulated(report) {
                    least.min(0.0)
                } else {
                    least
                };
                assert!((least..=most).contains(&figure), "{name} {figure}: {row:?}");
            }
        }
    }
}

/// The range of a figure with that unit on any machine. A cable alone takes a microsecond, and no
/// step of an experiment takes minutes.
fn plausible_range(column: &str) -> Option<(f64, f64)> {
    let ends_with = |ends: &[&str]| ends.iter().any(|end| column.ends_with(end));
    if column.starts_with("rtt_") {
        Some((1.0, 1e6))
    } else if column.starts_with("times_") {
        Some((1e-3, 1e3))
    } else if ends_with(&["_share"]) {
        Some((0.0, 1.0))
    } else if ends_with(&["_mpps", "_mops"]) {
        Some((1e-4, 1e4))
    } else if ends_with(&["_mib"]) {
        Some((0.5, 4096.0))
    } else if ends_with(&["_ms", "_us"]) {
        // Differences may be below zero.
        Some((-1e3, 60e6))
    } else {
        None
    }
}

/// Whether no subject is available here.
fn all_skipped(report: &Report<Row>) -> bool {
    report.rows.iter().all(|row| row.table() == "skipped")
}

/// The page has the declared plots and all claims.
fn check_page(report: &Report<Row>) {
    let name = &report.experiment;
    let page = myelin_bench::render_page(report).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(!page.contains("NaN"), "{name}");
    assert!(
        page.contains("<svg") || all_skipped(report),
        "{name} declares no plot"
    );
    for claim in &report.claims {
        assert!(
            page.contains(&claim.id.replace('<', "&lt;")),
            "{name}: {}",
            claim.id
        );
    }
}

/// Cancels the experiment at its second step, because some have only a few.
fn check_cancellation(name: &str) {
    let cancelled = AtomicBool::new(false);
    let steps = AtomicU32::new(0);
    let progress = |_| {
        let step = steps.fetch_add(1, Ordering::Relaxed);
        cancelled.store(step >= 1, Ordering::Relaxed);
    };
    let monitor = Monitor {
        emit: &progress,
        cancelled: &cancelled,
    };
    match run(name, &program::options(Effort::Trial), &monitor) {
        Err(Error::Cancelled) => {}
        Ok(report) => {
            let reason = report.ended_early.unwrap_or_default();
            assert!(reason.starts_with("cancelled"), "{name}: {reason:?}");
            assert!(
                !report.rows.is_empty() && report.claims.is_empty(),
                "{name}"
            );
        }
        Err(error) => panic!("{name}: {error}"),
    }
    check_leftovers(&format!("{name} was cancelled"));
}
