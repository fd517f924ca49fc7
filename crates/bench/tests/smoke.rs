//! Runs every experiment with very few rounds. Each has a complete report and leaves nothing
//! behind.
//!
//! The experiments start an executable as worker, as agent and for `plan`. Here this test
//! executable replaces `myelin`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use myelin_agent::ServeOptions;
use myelin_api::RunDir;
use myelin_bench::{Effort, Error, Monitor, Options, Report, Row, experiments, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("worker") => run_worker(&arguments),
        Some("agent") => run_agent(&arguments),
        Some("plan") => {
            std::io::read_to_string(std::io::stdin()).unwrap();
            ExitCode::SUCCESS
        }
        // Every test executable must support this option.
        Some("--list") => {
            println!("smoke: test");
            ExitCode::SUCCESS
        }
        filter => {
            run_experiments(filter);
            ExitCode::SUCCESS
        }
    }
}

fn run_worker(arguments: &[String]) -> ! {
    let control = myelin_dataplane::control_from_stdin().unwrap();
    if arguments.iter().any(|word| word == "--dpdk") {
        myelin_dataplane::worker_main::<myelin_dpdk::Dpdk>(control)
    }
    myelin_dataplane::worker_main::<myelin_dataplane::Sockets>(control)
}

fn run_agent(arguments: &[String]) -> ExitCode {
    let run_dir = arguments
        .iter()
        .skip_while(|word| *word != "--run-dir")
        .nth(1)
        .unwrap();
    let run_dir = RunDir::resolve(Some(Path::new(run_dir)));
    myelin_agent::serve(&run_dir, &program(), ServeOptions { idle_exit: None }).unwrap();
    ExitCode::SUCCESS
}

fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Runs the experiments whose name contains `filter`.
fn run_experiments(filter: Option<&str>) {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: experiments need root");
        return;
    }
    for experiment in experiments() {
        if filter
            .is_some_and(|filter| !filter.starts_with('-') && !experiment.name.contains(filter))
        {
            continue;
        }
        let report = measure(experiment.name);
        check_report(&report);
        check_page(&report);
        assert_eq!(
            find_leftovers(),
            Vec::<String>::new(),
            "after {}",
            experiment.name
        );
        check_cancellation(experiment.name);
        assert_eq!(
            find_leftovers(),
            Vec::<String>::new(),
            "after {} was cancelled",
            experiment.name
        );
        println!(
            "{}: {} rows, {} claims",
            experiment.name,
            report.rows.len(),
            report.claims.len()
        );
    }
}

fn options() -> Options {
    Options {
        effort: Effort::Trial,
        program: program(),
    }
}

fn measure(name: &str) -> Report<Row> {
    let cancelled = AtomicBool::new(false);
    let monitor = Monitor {
        emit: &|_| {},
        cancelled: &cancelled,
    };
    run(name, &options(), &monitor).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The report has rows with figures, and claims that these few rounds do not decide.
fn check_report(report: &Report<Row>) {
    assert!(!report.rows.is_empty());
    assert_eq!(report.claims.is_empty(), all_skipped(report), "{report:?}");
    for row in report.rows.iter().filter(|row| row.table() != "skipped") {
        let figures = row
            .fields()
            .filter(|(_, value)| value.as_f64().is_some_and(|figure| figure > 0.0));
        assert!(figures.count() > 0, "{row:?}");
    }
    for claim in &report.claims {
        let memory = claim.id.contains("memory");
        assert!(
            memory || claim.holds.is_none(),
            "{claim:?} is decided by two rounds"
        );
    }
    assert!(report.environment.settings.contains_key("quiet"));
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
    let steps = std::sync::atomic::AtomicU32::new(0);
    let progress = |_| {
        let step = steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        cancelled.store(step >= 1, std::sync::atomic::Ordering::Relaxed);
    };
    let outcome = run(
        name,
        &options(),
        &Monitor {
            emit: &progress,
            cancelled: &cancelled,
        },
    );
    assert!(
        matches!(outcome, Err(Error::Cancelled)),
        "{name}: {outcome:?}"
    );
}

/// Network namespaces and run directories of this process.
fn find_leftovers() -> Vec<String> {
    let own = format!("bench-{}-", std::process::id());
    ["/run", "/run/netns"]
        .into_iter()
        .flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten().flatten())
        .map(|entry| entry.path().display().to_string())
        .filter(|path| path.contains(&own))
        .collect()
}
