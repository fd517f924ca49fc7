//! What the commands share: parsing a source, JSON and tables on standard output, progress on a terminal.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressStyle};
use myelin_agent::api::{ApiError, ChainSource, Event};
use serde::Serialize;

/// Exit status of a chain that was refused, or whose SLA was not met.
pub(crate) const REFUSED: u8 = 3;

/// The program that runs: the agent and the workers are the same one.
pub(crate) fn program() -> Result<PathBuf, ApiError> {
    std::env::current_exe()
        .map_err(|error| ApiError::failed(format!("cannot tell where this program lies: {error}")))
}

/// Parses a chain file.
///
/// # Errors
/// Every fault of the file, each with its place.
pub(crate) fn parse(source: &ChainSource) -> Result<Vec<myelin_spec::ServiceChain>, ApiError> {
    myelin_agent::parse_source(source)
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<ExitCode, ApiError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| ApiError::failed(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// A table with these headings; columns whose heading starts with `>` are aligned to the right.
pub(crate) fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(columns());
    table.set_header(headings.map(|heading| heading.trim_start_matches('>')));
    for (index, heading) in headings.iter().enumerate() {
        if heading.starts_with('>')
            && let Some(column) = table.column_mut(index)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
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
    myelin_spec::units::parse_duration(text).map_err(|error| error.to_string())
}

/// Lets a write to a closed pipe end the process, as for other tools; Rust turns that signal off.
pub(crate) fn restore_sigpipe() {
    // SAFETY: called first in `main`, before any other thread exists; SIG_DFL is a valid disposition.
    let _ = unsafe {
        nix::sys::signal::signal(
            nix::sys::signal::Signal::SIGPIPE,
            nix::sys::signal::SigHandler::SigDfl,
        )
    };
}
