//! `myelin up`: bring the chains of a file into the form that it gives them and leave them running.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{ApiError, ChainUp, Change, Client, RunDir, UpRequest};

use crate::{output, source};

/// Arguments of `myelin up`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin up examples/tactile.yaml\n  myelin up -    reads standard input\n\nAll chains of the file come up, or none. One that runs already is changed under its traffic:\nno packet is lost, and each is processed by the old or by the new form as a whole.\n\nExit status 3: a chain is refused by admission."
)]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Deploy what admission refuses all the same: as best effort, without a promise.
    #[arg(long)]
    force: bool,
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
    for chain in &chains {
        print(chain);
    }
    Ok(ExitCode::SUCCESS)
}

/// What was done with a chain, and how to reach it.
pub(crate) fn print(up: &ChainUp) {
    match up.change {
        Change::Created => println!(
            "chain {} is up: {} -> {} (SPI {}, {:.1} ms)",
            up.chain, up.ingress, up.egress, up.spi, up.rendering_ms
        ),
        Change::Changed => println!(
            "chain {} is changed: {} -> {} (SPI {}, generation {}, {:.1} ms, exchanged in {:.1} ms)",
            up.chain,
            up.ingress,
            up.egress,
            up.spi,
            up.generation,
            up.rendering_ms,
            up.exchange_ms.unwrap_or_default()
        ),
        Change::Unchanged => {
            println!(
                "chain {} is unchanged (SPI {}, generation {})",
                up.chain, up.spi, up.generation
            );
            return;
        }
    }
    super::plan::print_hops(&up.plan);
    super::plan::print_bound(&up.plan);
    for host in &up.hosts {
        println!(
            "  {:<7} {}  in network namespace {}: myelin exec {} -- CMD",
            host.role, host.address, host.netns, host.role
        );
    }
}
