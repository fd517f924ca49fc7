//! `myelin run`: deploys a chain file, measures it against its contract, removes it.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{ApiError, ChainUp, Client, Event, FloodRequest, RunDir, RunRequest};
use myelin_report::plan;

use super::probe::Options;
use crate::output::{self, Progress};
use crate::source;

/// Arguments of `myelin run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin run examples/tactile.yaml\n  \
                  myelin run examples/tactile.yaml -v\n  \
                  myelin run examples/tactile.yaml --mode inline --payload 256 --report tactile.html\n  \
                  myelin run examples/isolation.yaml --flood noisy\n\n\
                  Exit status 3: refused by admission. Exit status 5: the SLA was not met.")]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Deploy chains that admission refuses as best effort, without a promise.
    #[arg(long)]
    force: bool,
    /// Flood this chain with TIMES its rate [default: 10] from its client host, and measure the
    /// other chains. Repeat the option for several chains.
    #[arg(long, value_name = "CHAIN[=TIMES]")]
    flood: Vec<FloodRequest>,
    #[command(flatten)]
    options: Options,
}

/// Asks the agent to run the chain file, and prints the reports.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let source = source::read(&arguments.file)?;
    myelin_api::check_floods(&arguments.flood, &source.parse()?)?;
    let page = arguments.options.open_page()?;
    let client = Client::connect_or_start(run_dir, &output::program_path()?)?;
    let request = RunRequest {
        source,
        options: arguments.options.to_request(),
        force: arguments.force,
        floods: arguments.flood.clone(),
    };
    let mut progress = Progress::new();
    let (mut deployed, mut reports) = (Vec::new(), Vec::new());
    let outcome = client.run(&request, &mut |event| match progress.show_progress(event) {
        Some(Event::Up(up)) => {
            if up.plan.best_effort {
                progress.suspend(|| warn_of_best_effort(&up));
            }
            deployed.push(*up);
        }
        Some(Event::Report(report)) => reports.push(*report),
        _ => {}
    });
    progress.finish();
    outcome?;
    let status = arguments.options.show_reports(&reports, page)?;
    if arguments.options.verbose && !arguments.options.json {
        for up in &deployed {
            println!("deployment of chain {}", up.chain);
            print!("{}", plan::deployment_details(up, output::width()));
        }
    }
    Ok(status)
}

fn warn_of_best_effort(up: &ChainUp) {
    output::warn(&format!(
        "chain {} is best effort, without a promise: {}",
        up.chain,
        up.plan.refusal.as_deref().unwrap_or_default()
    ));
}
