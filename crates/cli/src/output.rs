//! What the commands share: parsing a source, JSON and tables on standard output, progress on a terminal.

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
pub(crate) const REFUSED: u8 = 3;
/// Exit status when an SLA is not met, or traffic does not conform.
pub(crate) const NOT_MET: u8 = 5;

/// The program that runs: the agent and the workers are the same one.
pub(crate) fn program() -> Result<PathBuf, ApiError> {
    std::env::current_exe()
        .map_err(|error| ApiError::failed(format!("cannot tell where this program lies: {error}")))
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<ExitCode, ApiError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| ApiError::failed(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Prints a value as JSON in one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), ApiError> {
    let text = serde_json::to_string(value)
        .map_err(|error| ApiError::failed(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(())
}

/// There is no chain of that name.
pub(crate) fn not_running(name: &str) -> ApiError {
    ApiError::failed(format!(
        "no chain `{name}` runs; `myelin ps` lists those that do"
    ))
}

/// An empty table with these headings; columns whose heading starts with `>` are aligned to the right.
pub(crate) fn table<const N: usize>(headings: [&str; N]) -> Table {
    terminal::grid(headings, width())
}

/// A table with a row for each item, as text.
pub(crate) fn listing<T>(columns: &[Column<T>], items: &[T]) -> String {
    terminal::listing(columns, items, width())
}

/// Exit status 0 if the condition holds, else `failure`.
pub(crate) fn status(holds: bool, failure: u8) -> ExitCode {
    ExitCode::from(if holds { 0 } else { failure })
}

/// Columns of a table: those of the terminal, at most 100; 100 in a pipe.
pub(crate) fn width() -> u16 {
    columns().min(100)
}

/// Progress of a streamed answer: a bar on a terminal, nothing in a pipe.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Quiet when standard error is no terminal.
    pub(crate) fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{msg:28} {wide_bar} {pos}/{len}") {
                bar.set_style(style);
            }
            bar
        }))
    }

    /// Shows a progress event; hands every other event back.
    pub(crate) fn take(&mut self, event: Event) -> Option<Event> {
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

    /// Prints without the bar in between.
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

/// Width of the terminal; 100 columns in a pipe.
pub(crate) fn columns() -> u16 {
    console::Term::stdout()
        .size_checked()
        .map_or(100, |(_, columns)| columns)
}

/// A written time, such as `5ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let ns = myelin_spec::units::DURATION.parse(text);
    ns.map(Duration::from_nanos)
        .map_err(|error| error.to_string())
}

/// The status of a program that SIGPIPE ends, as a shell has it.
const BROKEN_PIPE: i32 = 128 + 13;

/// Lets a write to a closed pipe end the process quietly, as for other tools. Not by the signal, which Rust turns off: it would also end an
/// agent whose client has gone away, or a client whose agent has.
pub(crate) fn end_on_closed_pipe() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The words of `print!` (library/std/src/io/stdio.rs).
        let words = panic.payload().downcast_ref::<String>();
        if words.is_some_and(|words| {
            words.starts_with("failed printing to std") && words.contains("Broken pipe")
        }) {
            std::process::exit(BROKEN_PIPE);
        }
        report(panic);
    }));
}

/// The style of plain tables.
pub(crate) fn style() -> terminal::Style {
    terminal::Style {
        ascii: false,
        width: width().into(),
    }
}
