//! `myelin bench`: reproduce an experiment.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_agent::api::{ApiError, ErrorKind, Event};
use myelin_bench::{Claim, Effort, Error, Monitor, Options, Report, Row};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use serde_json::Value;

use crate::output::{self, Progress};

/// Arguments of `myelin bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin bench --list\n  sudo myelin bench hop-cost --quick\n  \
                  sudo myelin bench kernel-chain --json\n\n\
                  A claim on a ratio holds when the 95 % interval of the median over at least 30 interleaved rounds lies\n\
                  within its bound. Measure on a quiet machine: the report says whether it was. Ctrl-C ends cleanly."
)]
pub(crate) struct Arguments {
    /// The experiment's name.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the experiments.
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Fewer rounds: under a minute.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Set by an interrupt; read by the experiment between two measurements.
static CANCELLED: AtomicBool = AtomicBool::new(false);

extern "C" fn cancel(_: nix::libc::c_int) {
    CANCELLED.store(true, Ordering::Relaxed);
}

/// Runs.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let Some(name) = &arguments.name else {
        return list(arguments.json);
    };
    cancel_on_interrupt()?;
    let options = Options {
        effort: if arguments.quick {
            Effort::Quick
        } else {
            Effort::Whole
        },
        program: output::program()?,
    };
    let progress = std::sync::Mutex::new(Progress::new());
    let show = |stage: &str, done: u64, total: u64| {
        if let Ok(mut progress) = progress.lock() {
            progress.take(Event::Progress {
                stage: stage.to_owned(),
                done,
                total,
            });
        }
    };
    let outcome = myelin_bench::run(
        name,
        &options,
        &Monitor {
            progress: &show,
            cancelled: &CANCELLED,
        },
    );
    if let Ok(progress) = progress.into_inner() {
        progress.finish();
    }
    let report = outcome.map_err(api_error)?;
    if arguments.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool) -> Result<ExitCode, ApiError> {
    let experiments = myelin_bench::experiments();
    if json {
        let named = |experiment: &myelin_bench::Experiment| serde_json::json!({ "name": experiment.name, "about": experiment.about });
        return output::json(&experiments.iter().map(named).collect::<Vec<_>>());
    }
    let mut table = output::table(["experiment", "what it measures"]);
    for experiment in experiments {
        table.add_row([experiment.name, experiment.about]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// An interrupt ends the experiment, which then removes what it made, instead of the process.
fn cancel_on_interrupt() -> Result<(), ApiError> {
    let action = SigAction::new(
        SigHandler::Handler(cancel),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is allowed at any point of any thread.
        unsafe { sigaction(signal, &action) }
            .map_err(|errno| ApiError::failed(format!("cannot take {signal}: {errno}")))?;
    }
    Ok(())
}

fn api_error(error: Error) -> ApiError {
    match error {
        Error::Agent(error) => error,
        Error::Unknown(_) => ApiError {
            kind: ErrorKind::Usage,
            message: error.to_string(),
        },
        error => ApiError::failed(error),
    }
}

fn print(report: &Report<Row>) {
    for rows in report
        .rows
        .chunk_by(|one, next| one.table() == next.table())
    {
        println!("{}\n{}\n", rows[0].table(), rows_table(rows));
    }
    let mut table = output::table(["claim", "measured", "bound", "holds"]);
    for claim in &report.claims {
        let cells = [
            claim.id.clone(),
            measured(&claim.measured),
            plain(&claim.bound),
            holds(claim).to_owned(),
        ];
        table.add_row(cells);
    }
    println!("claims (95 % interval, rounds)\n{table}\n");
    for (name, value) in report.environment.lines() {
        println!("{name:<24}{value}");
    }
}

/// Rows of one table; an interval is shown with its figure.
fn rows_table(rows: &[Row]) -> comfy_table::Table {
    let shown = |name: &str| !name.contains("_ci95_");
    let headings: Vec<&str> = rows[0]
        .fields()
        .map(|(name, _)| name)
        .filter(|name| shown(name))
        .collect();
    let mut table = output::table([""; 0]);
    table.set_header(headings.iter().map(|name| name.replace('_', " ")));
    for row in rows {
        table.add_row(headings.iter().map(|name| cell(row, name)));
    }
    for (index, name) in headings.iter().enumerate() {
        if let (true, Some(column)) = (
            rows[0].get(name).is_some_and(|value| !value.is_string()),
            table.column_mut(index),
        ) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    table
}

/// A figure, with half the width of its interval where it has one.
fn cell(row: &Row, name: &str) -> String {
    let end = |end: &str| {
        let (figure, unit) = name.rsplit_once('_')?;
        row.get(&format!("{figure}_ci95_{end}_{unit}"))?.as_f64()
    };
    let figure = row.get(name).map_or_else(String::new, plain);
    match (end("low"), end("high")) {
        (Some(low), Some(high)) => format!("{figure} \u{b1} {}", number((high - low) / 2.0)),
        _ => figure,
    }
}

/// What was measured for a claim: a figure, or a median with its interval.
fn measured(value: &Value) -> String {
    let figure = |name: &str| value.get(name).and_then(Value::as_f64);
    let Some(median) = figure("median_ratio").or_else(|| figure("median")) else {
        return plain(value);
    };
    let rounds = value
        .get("rounds")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    match (figure("ci95_low"), figure("ci95_high")) {
        (Some(low), Some(high)) => {
            format!(
                "{} [{}, {}] ({rounds})",
                number(median),
                number(low),
                number(high)
            )
        }
        _ => format!("{} ({rounds})", number(median)),
    }
}

fn holds(claim: &Claim) -> &'static str {
    match claim.holds {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "undecided",
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(whole) if !whole.is_f64() => whole.to_string(),
        value => value.as_f64().map_or_else(|| value.to_string(), number),
    }
}

/// Three digits behind the point for ratios, fewer for larger figures.
fn number(figure: f64) -> String {
    match figure.abs() {
        size if size < 10.0 => format!("{figure:.3}"),
        size if size < 1000.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_interval() {
        let row = Row::of("rtt")
            .with("variant", "tcx")
            .with("payload_bytes", 256)
            .with("rtt_p50_us", 9.1234)
            .with("rtt_p50_ci95_low_us", 9.0)
            .with("rtt_p50_ci95_high_us", 9.2)
            .with("what", Value::Null);
        assert_eq!(cell(&row, "rtt_p50_us"), "9.123 \u{b1} 0.100");
        assert_eq!(cell(&row, "payload_bytes"), "256");
        assert_eq!(cell(&row, "what"), "-");
        let table = rows_table(&[row]).to_string();
        assert!(
            table.contains("rtt p50 us") && !table.contains("ci95"),
            "{table}"
        );
    }

    #[test]
    fn claims_show_what_they_rest_on() {
        let ratio = serde_json::json!({ "median_ratio": 0.93, "ci95_low": 0.92, "ci95_high": 0.94, "rounds": 60 });
        assert_eq!(measured(&ratio), "0.930 [0.920, 0.940] (60)");
        assert_eq!(measured(&serde_json::json!(41.5)), "41.5");
        let claim = |holds| Claim {
            id: "x".to_owned(),
            paper: Value::Null,
            measured: Value::Null,
            bound: Value::Null,
            holds,
        };
        assert_eq!(
            [Some(true), Some(false), None].map(|decided| holds(&claim(decided))),
            ["yes", "NO", "undecided"]
        );
    }
}
