//! `myelin plan`: shows the space and the cost of each function. Needs neither root nor an agent.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{ApiError, TopologyStatus};
use myelin_planner::admission::{self, Ledger, Node, Site};
use myelin_planner::placement::{self, Paths, Placement, Running};
use myelin_planner::{Costs, Machine, Plan, PortKind};
use myelin_report::graph::ChainGraph;
use myelin_report::{plan as report, topology};
use myelin_spec::{Objects, Ports, ServiceChain, Topology};

use crate::picture::{self, PictureOption};
use crate::{output, source};

/// Arguments of `myelin plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin plan examples/tactile.yaml\n  myelin plan -v examples/tactile.yaml     why, step by step\n  myelin plan --json examples/mixed-order.yaml\n  myelin plan --graph examples/tactile.yaml   a picture of the chain\n  myelin plan --graph=tactile.svg examples/tactile.yaml\n\n\
                  Uses the costs that `myelin calibrate` measured here, else built-in costs. The output says which.\n\
                  Exit status 3: admission would refuse a chain."
)]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Show more.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    picture: PictureOption,
}

/// Plans every chain of the file.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let source = source::read(&arguments.file)?;
    let Objects { chains, topologies } = source.parse_objects()?;
    let costs = myelin_agent::load_costs()?;
    // Reviews each chain together with the earlier chains of the file. Only the agent knows the
    // running chains.
    let mut ledger = Ledger::default();
    let mut plans = Vec::with_capacity(chains.len());
    for chain in &chains {
        warn_of_port_fault(chain);
        let machine = describe_machine(chain);
        let mut plan = myelin_planner::plan(chain, &costs, &machine).map_err(ApiError::usage)?;
        let node = Node {
            costs: &costs,
            machine: &machine,
            ledger: &ledger,
        };
        let site = Site::planned(chain, &machine);
        let booking = admission::review(&mut plan, chain, &node, &site);
        ledger.insert(booking);
        plans.push(plan);
    }
    let graphs = plans.iter().map(ChainGraph::planned);
    if arguments.json {
        let placements = place_all(chains, &plans, &topologies, &costs)?;
        let planned = plans.iter().zip(placements).map(|(plan, placed)| {
            let mut placed = placed.into_iter();
            Planned {
                plan,
                placement: placed.next(),
                replicas: placed.collect(),
            }
        });
        output::print_json(&planned.collect::<Vec<_>>())?;
    } else if let Some(format) = &arguments.picture.graph {
        picture::show(format, &graphs.collect::<Vec<_>>())?;
        for plan in plans.iter().filter(|plan| plan.refusal.is_some()) {
            println!("{}", report::verdict(plan, output::width()));
        }
    } else {
        for topology in &topologies {
            println!("{}", topology::summary(&TopologyStatus::of(topology)));
        }
        let placements = place_all(chains, &plans, &topologies, &costs)?;
        for (plan, placed) in plans.iter().zip(placements) {
            print!("{}", report::summary(plan, output::width()));
            for placed in placed {
                print!("{}", report::placement(&placed, output::width()));
            }
            if arguments.verbose {
                print!("{}", report::details(plan, output::width()));
            }
        }
    }
    let admitted = plans.iter().all(|plan| plan.admitted);
    Ok(output::exit_status(admitted, output::REFUSED_STATUS))
}

/// A plan in JSON.
#[derive(serde::Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    /// The nodes of a chain over nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    /// The nodes on the paths of the further replicas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replicas: Vec<Placement>,
}

/// Places all chains over nodes whose topologies are in the file, each on all its paths. Functions
/// that undo functions of the other direction are on the nodes of those.
fn place_all(
    mut chains: Vec<ServiceChain>,
    plans: &[Plan],
    topologies: &[Topology],
    costs: &Costs,
) -> Result<Vec<Vec<Placement>>, ApiError> {
    let mut order: Vec<usize> = (0..chains.len()).collect();
    order.sort_by_key(|number| chains[*number].follows_reverse());
    let mut placements: Vec<Vec<Placement>> = chains.iter().map(|_| Vec::new()).collect();
    for number in order {
        let placed = place(&chains[number], &plans[number], topologies, costs)?;
        if let Some(placed) = placed.first() {
            let functions = chains[number].functions.iter_mut();
            for (function, place) in functions.zip(&placed.functions) {
                function.node = Some(place.node.clone());
            }
            let followed = chains[number].clone();
            for other in &mut chains {
                other.follow(&followed);
            }
        }
        placements[number] = placed;
    }
    Ok(placements)
}

/// Places each path of a chain over nodes, if its topology is in the file.
fn place(
    chain: &ServiceChain,
    plan: &Plan,
    topologies: &[Topology],
    costs: &Costs,
) -> Result<Vec<Placement>, ApiError> {
    let ingress = chain.ports.as_ref().map(|ports| ports.ingress.as_str());
    let named = ingress.and_then(Ports::topology_host);
    let topology = named.and_then(|(name, _)| topologies.iter().find(|one| one.name == name));
    let Some(topology) = topology.filter(|_| chain.is_over_nodes()) else {
        return Ok(Vec::new());
    };
    let cores = myelin_linux::affinity::highest_core() + 1;
    let nothing = Running {
        ledger: &Ledger::default(),
        chains: &[],
    };
    let placed = placement::place_paths(&Paths {
        chain,
        nodes: topology.nodes().map(|node| &*node.name).collect(),
        kept: BTreeSet::new(),
        is_trusted: &|_| true,
        place: &|chain| placement::place_on(topology, (chain, plan), costs, cores, nothing),
    });
    placed.map_err(|refusal| {
        ApiError::failed(format!(
            "{}: chain `{}`: {refusal}",
            chain.places.chain, chain.name
        ))
    })
}

/// Describes this machine, with the ports that the chain names.
fn describe_machine(chain: &myelin_spec::ServiceChain) -> Machine {
    let mut machine = Machine::with_end_hosts(myelin_linux::affinity::highest_core() + 1);
    if chain.is_driven_by_worker() {
        machine.ingress = PortKind::Native;
        machine.egress = PortKind::Native;
    } else if let Some(ports) = &chain.ports {
        machine.ingress = myelin_agent::port_kind(&ports.ingress);
        machine.egress = myelin_agent::port_kind(&ports.egress);
        machine.egress_bps = myelin_agent::link_bps(&ports.egress);
        machine.ingress_mtu = myelin_agent::link_mtu(&ports.ingress);
        machine.egress_mtu = myelin_agent::link_mtu(&ports.egress);
    }
    machine
}

/// Warns if `up` would refuse the interfaces of the chain on this machine.
fn warn_of_port_fault(chain: &myelin_spec::ServiceChain) {
    let ports = chain
        .ports
        .as_ref()
        .filter(|_| !chain.is_driven_by_worker());
    if let Some(fault) = ports.and_then(myelin_agent::find_port_fault) {
        output::warn(&format!("chain `{}`: spec.ports: {fault}", chain.name));
    }
}
