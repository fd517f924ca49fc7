//! `myelin run`: the main job.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{ApiError, Client, Event, FloodRequest, RunDir, RunRequest};

use super::probe::Options;
use crate::output::{self, Progress};
use crate::source;

/// Arguments of `myelin run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin run examples/tactile.yaml\n  \
                  myelin run examples/tactile.yaml --mode inline --payload 256 --report tactile.html\n  \
                  myelin run examples/isolation.yaml --flood noisy\n\n\
                  Exit status 3: refused by admission. Exit status 5: the SLA was not met.")]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Deploy what admission refuses all the same: as best effort, without a promise.
    #[arg(long)]
    force: bool,
    /// Do not measure this chain of the file, but send it so many times its rate (10, unless said) from its client host while the others are
    /// measured; may be given for several chains.
    #[arg(long, value_name = "CHAIN[=TIMES]")]
    flood: Vec<FloodRequest>,
    #[command(flatten)]
    options: Options,
}

/// Deploys, measures, reports, tears down.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let source = source::read(&arguments.file)?;
    myelin_api::check_floods(&arguments.flood, &source.parse()?)?;
    let page = arguments.options.page()?;
    let client = Client::connect_or_start(run_dir, &output::program()?)?;
    let request = RunRequest {
        source,
        options: arguments.options.to_request(),
        force: arguments.force,
        floods: arguments.flood.clone(),
    };
    let mut progress = Progress::new();
    let mut reports = Vec::new();
    let outcome = client.run(&request, &mut |event| match progress.take(event) {
        Some(Event::Up(up)) if !arguments.options.json => {
            progress.suspend(|| super::up::print(std::slice::from_ref(&up), false));
        }
        Some(Event::Report(report)) => reports.push(*report),
        _ => {}
    });
    progress.finish();
    outcome?;
    arguments.options.show(&reports, page)
}
