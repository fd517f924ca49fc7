//! `myelin down`: removes chains and topologies, and the objects of killed processes.

use std::process::ExitCode;

use myelin_api::{ApiError, Client, DownReply, RunDir};
use myelin_linux::capability;

use crate::output;

/// Arguments of `myelin down`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin down tactile\n  myelin down examples/tactile.yaml\n  \
    myelin down --all    also cleans up after a killed agent or bench, and stops the agent"
)]
pub(crate) struct Arguments {
    /// The name of the chain or topology, or its file.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// Remove every chain, every topology and all objects of a killed agent or `myelin bench`, then
    /// stop the agent.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Removes the chains and prints the removed objects.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let reply = if arguments.all {
        let mut reply = remove_all(run_dir)?;
        remove_abandoned_experiments(&mut reply)?;
        reply
    } else {
        let client = Client::connect_or_start(run_dir, &output::program_path()?)?;
        let mut reply = DownReply::default();
        for name in resolve_names(arguments.name.as_deref().unwrap_or_default())? {
            append_reply(&mut reply, client.down(&name)?);
        }
        reply
    };
    if arguments.json {
        return output::print_json(&reply);
    }
    for name in &reply.removed {
        println!("removed {name}");
    }
    for object in &reply.recovered {
        println!("recovered {object}");
    }
    if reply.removed.is_empty() && reply.recovered.is_empty() {
        println!("nothing to remove");
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes everything in the run directory and stops its agent.
fn remove_all(run_dir: &RunDir) -> Result<DownReply, ApiError> {
    // Without an agent and a run directory there is nothing to remove, so no need for root.
    if Client::connect(run_dir)?.is_none() && !run_dir.path().exists() {
        return Ok(DownReply::default());
    }
    let result = match request_removal(run_dir) {
        // The agent ended before it answered. A new agent removes the old agent's objects.
        Err((_, Some(client))) if client.has_ended() => request_removal(run_dir),
        result => result,
    };
    result.map_err(|(error, _)| error)
}

/// Removes all objects of killed `myelin bench` processes.
fn remove_abandoned_experiments(reply: &mut DownReply) -> Result<(), ApiError> {
    let abandoned = myelin_bench::find_abandoned_run_dirs();
    if !abandoned.is_empty() && !capability::is_root() {
        output::warn(
            "a killed `myelin bench` left objects behind; `sudo myelin down --all` removes these objects",
        );
        return Ok(());
    }
    for run_dir in abandoned {
        append_reply(reply, remove_all(&run_dir)?);
        myelin_bench::remove_run_dir(&run_dir)?;
        let path = run_dir.path().display();
        reply.recovered.push(format!("run directory {path}"));
    }
    Ok(())
}

fn append_reply(reply: &mut DownReply, more: DownReply) {
    reply.removed.extend(more.removed);
    reply.recovered.extend(more.recovered);
}

/// Asks the agent to remove everything and to stop. The error includes the client if the connection
/// succeeded.
fn request_removal(run_dir: &RunDir) -> Result<DownReply, (ApiError, Option<Box<Client>>)> {
    let client = output::program_path()
        .and_then(|program| Client::connect_or_start(run_dir, &program))
        .map_err(|error| (error, None))?;
    client
        .down_all()
        .map_err(|error| (error, Some(Box::new(client))))
}

/// Returns the names of the chains and topologies if the argument is a file, else the argument.
fn resolve_names(argument: &str) -> Result<Vec<String>, ApiError> {
    let path = std::path::Path::new(argument);
    if !path.is_file() {
        return Ok(vec![argument.to_owned()]);
    }
    let objects = crate::source::read(path)?.parse_objects()?;
    let chains = objects.chains.into_iter().map(|chain| chain.name);
    // Chains may use the hosts of topologies, so they go first.
    let topologies = objects.topologies.into_iter();
    Ok(chains
        .chain(topologies.map(|topology| topology.name))
        .collect())
}
