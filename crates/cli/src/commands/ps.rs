//! `myelin ps`: lists the running chains and topologies.

use std::process::ExitCode;

use myelin_api::{ApiError, ChainStatus, Client, RunDir, SpanStatus, TopologyStatus};
use myelin_report::graph::ChainGraph;
use myelin_report::{sla, span, status, topology};

use crate::output;
use crate::picture::{self, PictureOption};

/// Arguments of `myelin ps`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin ps\n  myelin ps tactile      one chain: its contract, where its packets are, each function\n  myelin ps tactile -v   with time windows, processes, counters, shaper, rings\n  myelin ps tactile --seconds 10   the last ten seconds (at most 300)\n  myelin ps --flows      the flows, NAT mappings and backends that functions keep\n  myelin ps tactile --graph   a picture: functions, costs, and where packets were lost\n  myelin ps tactile --graph=tactile.svg\n  myelin ps --json"
)]
pub(crate) struct Arguments {
    /// Show each function of this chain, or the hosts and links of this topology.
    chain: Option<String>,
    /// Show the flows, NAT mappings and backends that functions keep, of all chains or of this one.
    #[arg(long, conflicts_with = "graph")]
    flows: bool,
    /// Show the last COUNT seconds of this chain, one a line. Without COUNT: up to 300.
    #[arg(long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "300", requires = "chain", conflicts_with_all = ["flows", "graph"])]
    seconds: Option<usize>,
    /// Show more.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    picture: PictureOption,
}

/// Lists the running chains, their last seconds or their flows.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    if arguments.flows {
        return list_flows(run_dir, arguments);
    }
    if let (Some(name), Some(count)) = (&arguments.chain, arguments.seconds) {
        return list_seconds(run_dir, name, count, arguments.json);
    }
    let (mut chains, spans, topologies, orphans) = if let Some(client) = Client::connect(run_dir)? {
        let (spans, topologies) = (client.spans()?, client.topologies()?);
        (client.list()?, spans, topologies, client.info()?.orphans)
    } else {
        warn_if_abandoned(run_dir);
        Default::default()
    };
    if let Some(name) = &arguments.chain {
        if let Some(found) = topologies.iter().find(|found| found.name == *name) {
            return show_topology(found, arguments);
        }
        if let Some(found) = spans.iter().find(|found| found.chain == *name) {
            return show_span(found, arguments);
        }
        chains.retain(|status| status.chain == *name);
        if chains.is_empty() {
            return Err(output::not_running_error(name));
        }
    }
    if arguments.json {
        let chains = chains.iter().map(Listed::Chain);
        let spans = spans.iter().filter(|_| arguments.chain.is_none());
        let spans = spans.map(Listed::Span);
        return output::print_json(&chains.chain(spans).collect::<Vec<_>>());
    }
    if !orphans.is_empty() {
        println!(
            "a killed agent left {} objects behind, which may still forward packets; `myelin down --all` removes the objects",
            orphans.len()
        );
    }
    if arguments.chain.is_none() && !topologies.is_empty() {
        println!("{}", topology::overview(&topologies, output::width()));
    }
    if arguments.chain.is_none() && !spans.is_empty() {
        println!("{}", span::overview(&spans, output::width()));
    }
    if chains.is_empty() {
        if spans.is_empty() {
            println!("no chain runs");
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(format) = &arguments.picture.graph {
        let graphs: Vec<_> = chains.iter().map(ChainGraph::running).collect();
        picture::show(format, &graphs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = output::width();
    if arguments.chain.is_none() {
        println!("{}", status::overview(&chains, width));
    }
    for chain in &chains {
        if arguments.chain.is_some() {
            print!("{}", status::summary(chain, width));
        }
        if arguments.verbose {
            print!("{}", status::details(chain, width));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A running chain in JSON. Only a chain over nodes has `parts`.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Listed<'a> {
    Chain(&'a ChainStatus),
    Span(&'a SpanStatus),
}

/// Shows the hosts, switches and links of a topology.
fn show_topology(found: &TopologyStatus, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    if arguments.json {
        return output::print_json(found);
    }
    if arguments.picture.graph.is_some() {
        let name = &found.name;
        return Err(ApiError::usage(format!(
            "`{name}` is a topology: `myelin graph {name}` draws it"
        )));
    }
    print!("{}", topology::details(found, output::width()));
    Ok(ExitCode::SUCCESS)
}

/// Shows the parts of a chain over nodes.
fn show_span(found: &SpanStatus, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    if arguments.json {
        return output::print_json(found);
    }
    if arguments.picture.graph.is_some() {
        return Err(ApiError::usage(format!(
            "`{}` runs on several nodes: `myelin --node NODE ps PART --graph` draws a part",
            found.chain
        )));
    }
    print!("{}", span::details(found, output::width()));
    Ok(ExitCode::SUCCESS)
}

/// Lists the last seconds of a chain.
fn list_seconds(
    run_dir: &RunDir,
    name: &str,
    count: usize,
    is_json: bool,
) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| output::not_running_error(name))?;
    let seconds = client.seconds(name, count)?;
    if is_json {
        return output::print_json(&seconds);
    }
    println!("{}", sla::seconds(&seconds, output::width()));
    Ok(ExitCode::SUCCESS)
}

/// Lists the flows of each function that has a flow table.
fn list_flows(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let chain = arguments.chain.as_deref();
    let functions = match Client::connect(run_dir)? {
        Some(client) => client.flows(chain)?,
        None => match chain {
            Some(name) => return Err(output::not_running_error(name)),
            None => Vec::new(),
        },
    };
    if arguments.json {
        return output::print_json(&functions);
    }
    if functions.is_empty() {
        println!(
            "no function keeps flows; the kinds `monitor`, `flow-tracker`, `nat` and `load-balancer` keep flows"
        );
    }
    print!("{}", status::flows(&functions, output::width()));
    Ok(ExitCode::SUCCESS)
}

/// Warns of objects of a killed agent. The journal shows that the agent did not remove them.
fn warn_if_abandoned(run_dir: &RunDir) {
    if run_dir.is_abandoned() {
        eprintln!(
            "no agent runs at {}; the last agent was killed and left objects behind, which may still forward \
             packets; `myelin down --all` removes the objects",
            run_dir.path().display()
        );
    }
}
