//! `myelin link`: changes a link of a running topology under traffic.

use std::process::ExitCode;

use myelin_api::{ApiError, Client, LinkChange, LinkRequest, RunDir, TopologyLink, TopologyStatus};
use myelin_report::topology;

use crate::commands::impairment::ImpairmentOptions;
use crate::output;

/// Arguments of `myelin link`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin link h1-s1 --down      it carries no packet in either direction\n  \
    myelin link h1-s1 --up\n  myelin link h1-s1 --to s2     h1 keeps its interface and addresses\n  \
    myelin link h1-s1 --delay 20ms --loss 1%\n  \
    myelin link h1-s1 --bandwidth 10Mbit\n  \
    myelin link h1-s1 --from h1 --delay 2ms    only packets that h1 sends\n  myelin link lab/h1-s1 --down  if several topologies have such a link"
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
#[group(multiple = false, conflicts_with_all = ["delay", "jitter", "bandwidth", "queue", "loss", "burst", "from"])]
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
    let (topology, link) = split_name(&arguments.link);
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
        topology: topology.map(str::to_owned),
        link: link.to_owned(),
        from: arguments.impairments.from.clone(),
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
        topology::describe_impairments(&changed)
    );
    Ok(ExitCode::SUCCESS)
}

/// Splits `TOPOLOGY/LINK`, or `LINK` of any topology.
pub(super) fn split_name(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((topology, link)) => (Some(topology), link),
        None => (None, name),
    }
}

/// Finds a link by its name or by its two ends in either order.
///
/// # Errors
/// No topology has such a link, or several have.
pub(super) fn find_link(
    topologies: &[TopologyStatus],
    topology: Option<&str>,
    name: &str,
) -> Result<TopologyLink, ApiError> {
    let joins = |link: &TopologyLink| {
        let [one, other] = link.ends.each_ref().map(|end| end.node.as_str());
        format!("{one}-{other}") == name || format!("{other}-{one}") == name
    };
    let searched = topologies.iter();
    let searched = searched.filter(|status| topology.is_none_or(|name| status.name == name));
    let found: Vec<_> = searched
        .filter_map(|status| {
            let named = status.links.iter().find(|link| link.name == name);
            let link = named.or_else(|| status.links.iter().find(|link| joins(link)))?;
            Some((status.name.as_str(), link))
        })
        .collect();
    match found[..] {
        [(_, link)] => Ok(link.clone()),
        [] => Err(ApiError::failed(format!(
            "no running topology has a link `{name}`: `myelin ps TOPOLOGY` lists the links"
        ))),
        [(first, _), ..] => Err(ApiError::usage(format!(
            "several topologies have a link `{name}`: write for example {first}/{name}"
        ))),
    }
}
