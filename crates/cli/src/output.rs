//! Output of the commands: exit statuses, JSON, tables, warnings, progress.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use myelin_api::{ApiError, Event};
use myelin_report::terminal::{self, Column};
use serde::Serialize;

/// Exit status when admission refuses a chain.
pub(crate) const REFUSED_STATUS: u8 = 3;
/// Exit status when a claim is false or undecided.
pub(crate) const CLAIM_STATUS: u8 = 4;
/// Exit status when an SLA is not met, or traffic does not conform.
pub(crate) const NOT_MET_STATUS: u8 = 5;

/// Returns the path of this program. The agent and the workers run the same program.
pub(crate) fn program_path() -> Result<PathBuf, ApiError> {
    std::env::current_exe()
        .map_err(|error| ApiError::failed(format!("cannot find the path of this program: {error}")))
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<ExitCode, ApiError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| ApiError::failed(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Prints a value as JSON in one line.
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<(), ApiError> {
    let text = serde_json::to_string(value)
        .map_err(|error| ApiError::failed(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(())
}

/// Makes the error of a command whose chain does not run.
pub(crate) fn not_running_error(name: &str) -> ApiError {
    ApiError::failed(format!(
        "no chain `{name}` runs; `myelin ps` lists the running chains"
    ))
}

/// Makes an empty table. Columns whose heading starts with `>` are aligned to the right.
pub(crate) fn new_table<const N: usize>(headings: [&str; N]) -> Table {
    terminal::grid(headings, width())
}

/// Formats a table with a row for each item.
pub(crate) fn format_table<T>(columns: &[Column<T>], items: &[T]) -> String {
    terminal::listing(columns, items, width())
}

/// Returns exit status 0 on success, else `failure`.
pub(crate) fn exit_status(is_success: bool, failure: u8) -> ExitCode {
    ExitCode::from(if is_success { 0 } else { failure })
}

/// Longest line, columns.
const MAX_COLUMNS: u16 = 100;

/// Returns the columns of a line: the terminal's columns, at most 100, or 100 in a pipe.
pub(crate) fn width() -> u16 {
    let size = console::Term::stdout().size_checked();
    size.map_or(MAX_COLUMNS, |(_, columns)| columns.min(MAX_COLUMNS))
}

/// Wraps a text to the width of a line, and indents further lines.
pub(crate) fn wrap(text: &str) -> String {
    terminal::wrap(text, 2, width())
}

/// Prints an error to standard error: wrapped on a terminal, else on one line for log files.
pub(crate) fn print_error(error: &ApiError) {
    let text = format!("myelin: {error}");
    if std::io::stderr().is_terminal() {
        eprintln!("{}", wrap(&text));
    } else {
        eprintln!("{text}");
    }
}

/// Prints a warning to standard error, wrapped.
pub(crate) fn warn(warning: &str) {
    eprintln!("{}", wrap(&format!("warning: {warning}")));
}

/// Progress of a request: a bar if standard error is a terminal, else nothing.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Makes a bar if standard error is a terminal.
    pub(crate) fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{msg:28} {wide_bar} {pos}/{len}") {
                bar.set_style(style);
            }
            bar
        }))
    }

    /// Shows a progress event, and returns any other event.
    pub(crate) fn show_progress(&mut self, event: Event) -> Option<Event> {
        let Event::Progress { stage, done, total } = event else {
            return Some(event);
        };
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(stage);
        }
        None
    }

    /// Hides the bar while `print` runs.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Parses a time with its unit, such as `5ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let ns = myelin_spec::units::DURATION.parse(text);
    ns.map(Duration::from_nanos)
        .map_err(|error| error.to_string())
}

/// The exit status that a shell reports for a program that SIGPIPE ends.
const BROKEN_PIPE: i32 = 128 + 13;

/// Ends the process quietly when it writes to a closed pipe (`myelin ps | head`). SIGPIPE stays
/// ignored (Rust's default), because the signal would also end an agent whose client disconnects,
/// and a client whose agent ends.
pub(crate) fn end_on_closed_pipe() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The message of `print!` (library/std/src/io/stdio.rs).
        let message = panic.payload().downcast_ref::<String>();
        if message.is_some_and(|message| {
            message.starts_with("failed printing to std") && message.contains("Broken pipe")
        }) {
            std::process::exit(BROKEN_PIPE);
        }
        default_hook(panic);
    }));
}

/// Returns the style of tables.
pub(crate) fn style() -> terminal::Style {
    terminal::Style {
        ascii: false,
        width: width().into(),
    }
}
