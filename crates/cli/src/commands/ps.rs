//! `myelin ps`: the running chains.

use std::process::ExitCode;

use myelin_agent::api::{ApiError, ChainState, ChainStatus};
use myelin_agent::{Client, RunDir};

use crate::output;

/// Arguments of `myelin ps`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin ps\n  myelin ps tactile      each function of one chain\n  myelin ps --json"
)]
pub(crate) struct Arguments {
    /// Show each function of this chain.
    chain: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Lists.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let (mut chains, orphans) = match Client::connect(run_dir)? {
        Some(client) => (client.list()?, client.info()?.orphans),
        None => (Vec::new(), Vec::new()),
    };
    if let Some(name) = &arguments.chain {
        chains.retain(|status| status.chain == *name);
        if chains.is_empty() {
            return Err(ApiError::failed(format!(
                "no chain `{name}` runs; `myelin ps` lists those that do"
            )));
        }
    }
    if arguments.json {
        return output::json(&chains);
    }
    if !orphans.is_empty() {
        println!(
            "an agent that was killed left {} things behind, which may still forward; `myelin down --all` removes them",
            orphans.len()
        );
    }
    if chains.is_empty() {
        println!("no chain runs");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", overview(&chains));
    if arguments.chain.is_some() {
        for status in &chains {
            details(status);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn overview(chains: &[ChainStatus]) -> comfy_table::Table {
    let mut table = output::table([
        "chain", "state", "hook", "ports", ">in", ">out", ">drops", ">p50 us", ">p99 us", "worker",
    ]);
    for status in chains {
        table.add_row([
            status.chain.clone(),
            state(status.state).to_owned(),
            status.hook.clone(),
            format!("{} -> {}", status.ingress, status.egress),
            status.packets_in.to_string(),
            status.packets_out.to_string(),
            status.drops.to_string(),
            format!("{:.1}", status.sojourn.p50_us),
            format!("{:.1}", status.sojourn.p99_us),
            status.worker.as_ref().map_or_else(
                || "-".to_owned(),
                |worker| format!("{} ({} restarts)", worker.pid, worker.restarts),
            ),
        ]);
    }
    table
}

fn details(status: &ChainStatus) {
    let mut table = output::table([
        ">#", "function", "kind", "space", ">in", ">bytes", ">drops", ">cost ns",
    ]);
    for hop in &status.hops {
        table.add_row([
            hop.position.to_string(),
            hop.name.clone(),
            hop.kind.clone(),
            hop.space.clone(),
            hop.packets_in.to_string(),
            hop.bytes_in
                .map_or_else(|| "-".to_owned(), |bytes| bytes.to_string()),
            hop.drops.to_string(),
            hop.cost_ns
                .map_or_else(|| "-".to_owned(), |cost| format!("{cost:.0}")),
        ]);
    }
    println!("{table}");
    for host in &status.hosts {
        println!("{}: {} in {}", host.role, host.address, host.netns);
    }
}

/// The word for a state.
fn state(state: ChainState) -> &'static str {
    match state {
        ChainState::Active => "active",
        ChainState::Failed => "failed",
    }
}
