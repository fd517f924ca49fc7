//! `myelin link`: changes a link of a running topology under traffic.

use std::process::ExitCode;

use myelin_api::{ApiError, Client, LinkChange, LinkRequest, RunDir};
use myelin_report::topology;

use crate::commands::impairment::ImpairmentOptions;
use crate::output;

/// Arguments of `myelin link`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin link h1-s1 --down      it carries no packet in either direction\n  \
    myelin link h1-s1 --up\n  myelin link h1-s1 --to s2     h1 keeps its interface and addresses\n  \
    myelin link h1-s1 --delay 20ms --loss 1%\n  \
    myelin link h1-s1 --bandwidth 10Mbit\n  myelin link lab/h1-s1 --down  if several topologies have such a link"
)]
pub(crate) struct Arguments {
    /// The link's name, or its two ends: `A-B`, or `TOPOLOGY/A-B`.
    link: String,
    #[command(flatten)]
    change: ChangeOption,
    #[command(flatten)]
    impairments: ImpairmentOptions,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[group(multiple = false, conflicts_with_all = ["delay", "jitter", "bandwidth", "queue", "loss", "burst"])]
struct ChangeOption {
    /// Set the link up.
    #[arg(long)]
    up: bool,
    /// Set the link down.
    #[arg(long)]
    down: bool,
    /// Move the link's end at a switch to this switch. Of a link between switches, A stays.
    #[arg(long, value_name = "SWITCH")]
    to: Option<String>,
}

/// Changes the link.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed("no agent runs, so there is no link: `myelin up FILE` makes a topology")
    })?;
    let (topology, link) = match arguments.link.split_once('/') {
        Some((topology, link)) => (Some(topology.to_owned()), link),
        None => (None, arguments.link.as_str()),
    };
    let ChangeOption { to, up, down } = &arguments.change;
    let change = match (to, arguments.impairments.change()) {
        (Some(switch), _) => LinkChange::Move(switch.clone()),
        (None, Some(change)) => LinkChange::Impair(change),
        (None, None) if *up => LinkChange::Up,
        (None, None) if *down => LinkChange::Down,
        (None, None) => {
            return Err(ApiError::usage(
                "no change: write `--up`, `--down`, `--to`, `--delay`, `--bandwidth` or `--loss`",
            ));
        }
    };
    let request = LinkRequest {
        topology,
        link: link.to_owned(),
        change,
    };
    let changed = client.change_link(&request)?;
    if arguments.json {
        return output::print_json(&changed);
    }
    let [one, other] = &changed.ends;
    let state = if changed.is_up { "up" } else { "down" };
    println!(
        "link {}: {} - {}, {state}{}",
        changed.name,
        one.node,
        other.node,
        topology::describe_impairments(&changed.impairments)
    );
    Ok(ExitCode::SUCCESS)
}
