//! `myelin up`: makes the topologies and deploys or changes the chains of a file, and leaves them
//! running.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{ApiError, ChainUp, Client, RunDir, TopologyStatus, UpRequest};
use myelin_report::{plan, topology};
use myelin_spec::Topology;

use crate::{output, source};

/// Arguments of `myelin up`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin up examples/tactile.yaml\n  \
    myelin up -v chain.yaml        with its plan, ports and times\n  \
    myelin up -                    reads standard input\n\n\
    Myelin deploys all topologies and chains of the file, or none. It changes a chain that runs already under\n\
    traffic: no packet is lost, and each packet passes either the old or the new generation.\n\n\
    Exit status 3: admission refuses a chain.")]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Deploy chains that admission refuses as best effort, without a promise.
    #[arg(long)]
    force: bool,
    /// Show more.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Deploys the chains and prints the result.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let source = source::read(&arguments.file)?;
    // A bad file fails here, before this command starts an agent.
    let objects = source.parse_objects()?;
    let client = Client::connect_or_start(run_dir, &output::program_path()?)?;
    let chains = client.up(&UpRequest {
        source,
        force: arguments.force,
        lease: None,
    })?;
    if arguments.json {
        return output::print_json(&chains);
    }
    if !objects.topologies.is_empty() {
        print_topologies(&client.topologies()?, &objects.topologies);
    }
    print_changes(&chains, arguments.verbose);
    Ok(ExitCode::SUCCESS)
}

/// Prints the topologies of the file and the time that the agent took to make them.
fn print_topologies(running: &[TopologyStatus], of_file: &[Topology]) {
    let is_of_file = |status: &&TopologyStatus| {
        let mut names = of_file.iter().map(|topology| &topology.name);
        names.any(|name| *name == status.name)
    };
    for status in running.iter().filter(is_of_file) {
        let took = status.made_ms.map(|ms| format!(", made in {ms:.0} ms"));
        println!("{}{}", topology::summary(status), took.unwrap_or_default());
        if let Some(host) = status.hosts.first() {
            println!(
                "  myelin exec {} -- PROGRAM runs a program on a host",
                host.name
            );
        }
    }
}

/// Prints the change of each chain and how to reach its hosts.
fn print_changes(chains: &[ChainUp], verbose: bool) {
    let width = output::width();
    for up in chains {
        print!("{}", plan::deployment_summary(up, chains.len() > 1, width));
        if verbose {
            print!("{}", plan::deployment_details(up, width));
        }
    }
}
