//! `myelin down`: remove a chain, or everything.

use std::process::ExitCode;

use myelin_api::{ApiError, Client, DownReply, RunDir};

use crate::output;

/// Arguments of `myelin down`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin down tactile\n  myelin down --all    also cleans up after a killed agent, and stops the agent"
)]
pub(crate) struct Arguments {
    /// The chain's name, or the chain file it came from.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// Remove every chain and whatever a killed agent left behind, then stop the agent.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Removes.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let reply = if arguments.all {
        // Without an agent and without traces of one there is nothing to remove and no need for root.
        if Client::connect(run_dir)?.is_none() && !run_dir.path().exists() {
            DownReply::default()
        } else {
            match clean(run_dir) {
                // It was being killed; what it left behind is for the next one to remove.
                Err((_, Some(client))) if client.has_ended() => clean(run_dir),
                result => result,
            }
            .map_err(|(error, _)| error)?
        }
    } else {
        let client = Client::connect_or_start(run_dir, &output::program()?)?;
        let mut reply = DownReply::default();
        for name in names(arguments.name.as_deref().unwrap_or_default())? {
            let one = client.down(&name)?;
            reply.removed.extend(one.removed);
            reply.recovered.extend(one.recovered);
        }
        reply
    };
    if arguments.json {
        return output::json(&reply);
    }
    for name in &reply.removed {
        println!("removed {name}");
    }
    for thing in &reply.recovered {
        println!("recovered {thing}");
    }
    if reply.removed.is_empty() && reply.recovered.is_empty() {
        println!("nothing to remove");
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes everything and stops the agent. An error comes with the client, if the agent could be spoken to.
fn clean(run_dir: &RunDir) -> Result<DownReply, (ApiError, Option<Client>)> {
    let client = output::program()
        .and_then(|program| Client::connect_or_start(run_dir, &program))
        .map_err(|error| (error, None))?;
    client.down_all().map_err(|error| (error, Some(client)))
}

/// A chain's name stands for itself; a chain file for the chains in it.
fn names(argument: &str) -> Result<Vec<String>, ApiError> {
    let path = std::path::Path::new(argument);
    if !path.is_file() {
        return Ok(vec![argument.to_owned()]);
    }
    let chains = crate::source::read(path)?.parse()?;
    Ok(chains.into_iter().map(|chain| chain.name).collect())
}
