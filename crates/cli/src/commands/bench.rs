//! `myelin bench`: runs experiments and judges their claims.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use myelin_api::ApiError;
use myelin_bench::{
    Effort, Error, Experiment, Fault, Monitor, Options, Report, Row, Verdict, compare,
};
use myelin_report::experiment;

use super::interrupt;
use crate::output::{self, Progress};
use crate::page::Page;

/// Arguments of `myelin bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin bench --list\n  sudo myelin bench hop-cost --quick\n  \
                  sudo myelin bench kernel-chain --json\n  \
                  sudo myelin bench calvin-chain --interval 5ms --report calvin-chain.html\n  \
                  sudo myelin bench chain-length --quick --figures figures\n  \
                  sudo myelin bench hop-cost --compare docs/results/hop-cost.json\n  \
                  sudo myelin bench rings --fault slow-ring\n  \
                  sudo myelin bench --all --quick --results results\n\n\
                  A claim holds when the 95 % interval of its figure, over at least 8 deployments, is within\n\
                  the bound. It is false when the interval is outside, and else undecided. Measure on a quiet\n\
                  machine: the report says whether it was. Ctrl-C ends cleanly and keeps the figures so far.\n\n\
                  Exit status 4: a claim is false or undecided."
)]
pub(crate) struct Arguments {
    /// The experiment's name.
    #[arg(required_unless_present_any = ["list", "all"])]
    name: Option<String>,
    /// List the experiments.
    #[arg(long, conflicts_with_all = ["name", "all"])]
    list: bool,
    /// Run all experiments. Continues a run that was interrupted: skips experiments whose envelope
    /// in the directory of `--results` is of the same program and complete.
    #[arg(long, conflicts_with_all = ["name", "compare", "report"], requires = "results")]
    all: bool,
    /// Fewer packets and a shorter time limit: most experiments then take about a minute.
    #[arg(long)]
    quick: bool,
    /// Number of deployments. Without it, the claims decide, within a time limit.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    deployments: Option<u16>,
    /// Interval between the packets of a probe: `5ms` and `4ms` in the papers. `0ms` sends the next
    /// packet after the reply. Experiments without probes ignore it.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = output::parse_duration)]
    interval: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Exit with status 0 even if a claim is false or undecided.
    #[arg(long)]
    report_only: bool,
    /// Measure with a known-bad system, to see claims turn false: `sleeping-forwarder`,
    /// `leaky-policer`, ... A wrong name lists all.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["all", "results"])]
    fault: Option<Fault>,
    /// Write a self-contained page with the claims, plots next to those of the papers, and all
    /// rows.
    #[arg(long, value_name = "FILE.html", requires = "name")]
    report: Option<PathBuf>,
    /// Write each plot as an SVG file, NAME-PLOT.svg, into this directory. Creates a missing
    /// directory.
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write the envelope, NAME.json, into this directory. Creates a missing directory.
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// The source revision, for the envelope.
    #[arg(long, value_name = "TEXT", requires = "results")]
    revision: Option<String>,
    /// Compare the claims with those of an envelope.
    #[arg(long, value_name = "FILE.json")]
    compare: Option<PathBuf>,
}

/// Runs or lists experiments.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    if arguments.list {
        return list_experiments(arguments.json);
    }
    for (option, directory) in [
        ("--figures", &arguments.figures),
        ("--results", &arguments.results),
    ] {
        if let Some(directory) = directory {
            create_directory(option, directory)?;
        }
    }
    let page = arguments.report.as_deref().map(Page::at).transpose()?;
    let earlier = arguments
        .compare
        .as_deref()
        .map(read_envelope)
        .transpose()?;
    // Ctrl-C ends the experiment, which then removes everything that it made.
    let cancelled = interrupt::catch_signals()?;
    let options = Options {
        effort: if arguments.quick {
            Effort::Quick
        } else {
            Effort::Whole
        },
        deployments: arguments.deployments.map(usize::from),
        interval: arguments.interval,
        program: output::program_path()?,
        revision: arguments.revision.clone(),
        fault: arguments.fault,
    };
    let Some(name) = &arguments.name else {
        return run_all(arguments, &options, cancelled);
    };
    if let Some(earlier) = earlier.as_ref().filter(|one| one.experiment != *name) {
        return Err(ApiError::usage(format!(
            "--compare: the envelope is of experiment `{}`; name an envelope of `{name}`",
            earlier.experiment
        )));
    }
    let report = run(name, &options, cancelled)?;
    print_report(&report, earlier.as_ref(), arguments)?;
    if let (Some(page), Some(path)) = (page, &arguments.report) {
        page.write(&myelin_bench::render_page(&report).map_err(api_error)?)?;
        if !arguments.json {
            println!("report: {}", path.display());
        }
    }
    write_files(&report, arguments)?;
    status(&[report], arguments)
}

/// Runs all experiments that have no finished envelope yet. Prints a line for each. One that fails
/// does not stop the others.
fn run_all(
    arguments: &Arguments,
    options: &Options,
    cancelled: &'static AtomicBool,
) -> Result<ExitCode, ApiError> {
    let mut reports = Vec::new();
    let mut failure = None;
    for Experiment { name, .. } in myelin_bench::experiments() {
        let file = arguments
            .results
            .as_ref()
            .map(|directory| envelope_path(directory, name));
        let earlier = file.and_then(|file| read_envelope(&file).ok());
        let finished = earlier.filter(|report| myelin_bench::is_finished(report, options));
        let before = if finished.is_some() {
            ", measured before"
        } else {
            ""
        };
        let report = match finished {
            Some(report) => report,
            None => match run(name, options, cancelled) {
                Ok(report) => report,
                Err(error) if cancelled.load(Ordering::Relaxed) => return Err(error),
                Err(error) => {
                    println!("{name}: failed: {error}");
                    failure.get_or_insert(error);
                    continue;
                }
            },
        };
        println!("{name}: {}{before}", experiment::verdict(&report));
        write_files(&report, arguments)?;
        let has_ended = report.ended_early.is_some();
        reports.push(report);
        if has_ended && cancelled.load(Ordering::Relaxed) {
            break;
        }
    }
    failure.map_or_else(|| status(&reports, arguments), Err)
}

/// Runs an experiment and shows its progress.
fn run(
    name: &str,
    options: &Options,
    cancelled: &'static AtomicBool,
) -> Result<Report<Row>, ApiError> {
    let progress = std::sync::Mutex::new(Progress::new());
    let show = |event| {
        if let Ok(mut progress) = progress.lock() {
            progress.show_progress(event);
        }
    };
    let monitor = Monitor {
        emit: &show,
        cancelled,
    };
    let outcome = myelin_bench::run(name, options, &monitor);
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    outcome.map_err(api_error)
}

fn print_report(
    report: &Report<Row>,
    earlier: Option<&Report<Row>>,
    arguments: &Arguments,
) -> Result<(), ApiError> {
    let changes = earlier.map(|earlier| compare(earlier, report));
    if arguments.json {
        let mut json = serde_json::to_value(report).map_err(ApiError::failed)?;
        if let (Some(object), Some(changes)) = (json.as_object_mut(), &changes) {
            let changes = serde_json::to_value(changes).map_err(ApiError::failed)?;
            object.insert("compared".to_owned(), changes);
        }
        return output::print_json(&json).map(drop);
    }
    if let Some(changes) = &changes {
        println!("{}", experiment::comparison(changes, output::width()));
    }
    print!("{}", experiment::text(report, output::width()));
    Ok(())
}

/// Writes the figures and the envelope of a report.
fn write_files(report: &Report<Row>, arguments: &Arguments) -> Result<(), ApiError> {
    let print = |what: &str, path: &Path| {
        if !arguments.json && !arguments.all {
            println!("{what}: {}", path.display());
        }
    };
    if let Some(directory) = &arguments.figures {
        for figure in myelin_bench::render_figures(report).map_err(api_error)? {
            let path = directory.join(figure.name);
            Page::at(&path)?.write(&figure.text)?;
            print("figure", &path);
        }
    }
    if let Some(directory) = &arguments.results {
        let path = envelope_path(directory, &report.experiment);
        let text = myelin_bench::seal_envelope(report).map_err(ApiError::failed)?;
        Page::at(&path)?.write(&text)?;
        print("envelope", &path);
    }
    Ok(())
}

/// The exit status of experiments: an error if one ended early.
fn status(reports: &[Report<Row>], arguments: &Arguments) -> Result<ExitCode, ApiError> {
    for report in reports {
        if let Some(reason) = &report.ended_early {
            let name = &report.experiment;
            return Err(ApiError::failed(format!(
                "experiment {name} ended early: {reason}; its figures are kept, no claim is made"
            )));
        }
    }
    let mut claims = reports.iter().flat_map(|report| &report.claims);
    let all_hold = claims.all(|claim| matches!(claim.verdict(), None | Some(Verdict::Holds)));
    Ok(output::exit_status(
        all_hold || arguments.report_only,
        output::CLAIM_STATUS,
    ))
}

fn envelope_path(directory: &Path, experiment: &str) -> PathBuf {
    directory.join(format!("{experiment}.json"))
}

fn read_envelope(path: &Path) -> Result<Report<Row>, ApiError> {
    let failed = |cause: &dyn std::fmt::Display| {
        ApiError::usage(format!("cannot read {}: {cause}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|cause| failed(&cause))?;
    myelin_bench::open_envelope(&text).map_err(|cause| failed(&cause))
}

fn create_directory(option: &str, directory: &Path) -> Result<(), ApiError> {
    let refused = |cause| {
        ApiError::usage(format!(
            "{option} {}: cannot create the directory: {cause}; name another directory",
            directory.display()
        ))
    };
    std::fs::create_dir_all(directory).map_err(refused)?;
    Page::at(&directory.join("myelin")).map(drop)
}

fn list_experiments(json: bool) -> Result<ExitCode, ApiError> {
    let experiments = myelin_bench::experiments();
    if json {
        let named = |one: &Experiment| serde_json::json!({ "name": one.name, "about": one.about });
        return output::print_json(&experiments.iter().map(named).collect::<Vec<_>>());
    }
    println!(
        "{} experiments; `sudo myelin bench NAME --quick` runs one in its short form",
        experiments.len()
    );
    let mut table = output::new_table(["experiment", "what it measures"]);
    table.add_rows(experiments.iter().map(|one| [one.name, one.about]));
    println!("{}", table.trim_fmt());
    Ok(ExitCode::SUCCESS)
}

fn api_error(error: Error) -> ApiError {
    match error {
        Error::Agent(error) => error,
        Error::Unknown(_) | Error::Fault(..) => ApiError::usage(error),
        error => ApiError::failed(error),
    }
}
