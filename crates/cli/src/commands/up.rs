//! `myelin up`: bring the chains of a file into the form that it gives them and leave them running.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{ApiError, ChainUp, Client, RunDir, UpRequest};
use myelin_report::plan;

use crate::{output, source};

/// Arguments of `myelin up`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin up examples/tactile.yaml\n  myelin up -v chain.yaml        with its plan, ports and times\n  myelin up -                    reads standard input\n\nAll chains of the file come up, or none. One that runs already is changed under its traffic:\nno packet is lost, and each is processed by the old or by the new form as a whole.\n\nExit status 3: a chain is refused by admission."
)]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Deploy what admission refuses all the same: as best effort, without a promise.
    #[arg(long)]
    force: bool,
    /// Show more.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Deploys.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let source = source::read(&arguments.file)?;
    // A bad file is an error even where no agent can be started.
    source.parse()?;
    let client = Client::connect_or_start(run_dir, &output::program()?)?;
    let chains = client.up(&UpRequest {
        source,
        force: arguments.force,
    })?;
    if arguments.json {
        return output::json(&chains);
    }
    print(&chains, arguments.verbose);
    Ok(ExitCode::SUCCESS)
}

/// Prints what was done with the chains, and how to reach them.
pub(crate) fn print(chains: &[ChainUp], verbose: bool) {
    let width = output::width();
    for up in chains {
        print!("{}", plan::up(up, chains.len() > 1, width));
        if verbose {
            print!("{}", plan::up_details(up, width));
        }
    }
}
