//! Deploys chains in seven steps, one file each: parse, plan, admit, place, build, switch on,
//! retire.
//!
//! All chains of a file change, or none. Each step runs for all chains before the next step begins.
//! If a step fails, the agent removes everything that earlier steps made. The agent makes nothing
//! before admission. A live change takes the same steps, with a previous generation.
//!
//! The topologies of a file come up before its chains are planned (`topology`), because chains may
//! name their hosts as ports. They are removed again if a chain fails. Chains over nodes come up
//! next (`spans`); the agents of the nodes take these steps for their parts.
//!
//! A request first reserves the names of its chains (`node::chains`). The request holds no lock
//! that other requests need. A slow step, such as the start of a worker, delays only requests for
//! the same chain or worker.

mod admit;
mod growth;
mod impaired_ports;
mod layout;
mod lost_ports;
mod place;
mod plan;
mod redeploy;
mod retire;
mod revision;
pub(crate) mod spans;
mod switch_on;
pub(crate) mod topology;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use myelin_planner::Costs;
use myelin_spec::{Objects, ServiceChain, Topology};

use crate::api::{
    ApiError, ChainSource, ChainUp, Change, FloodRequest, calibration_file, check_floods,
};
use crate::control::actuator::RealtimeGuard;
use crate::node::Node;
use crate::node::chains::RunningChain;
use crate::node::cpu_latency;
use crate::pool::wait_until_unique;
pub use admit::decide as admit;
use lost_ports::RequestPorts;
pub use plan::{find_port_fault, link_bps, link_mtu, port_kind};
pub(crate) use redeploy::redeploy;

/// Options of [`Engine::up`](crate::Engine::up).
#[derive(Clone, Copy, Default)]
pub struct UpOptions<'a> {
    /// Deploys a refused chain as best effort.
    pub force: bool,
    /// Refuses chains that run already.
    pub only_new: bool,
    /// Refuses chains and topologies that run already and are not among these names.
    pub own: Option<&'a BTreeSet<String>>,
    /// Chains of the file that will be flooded.
    pub floods: &'a [FloodRequest],
    /// Becomes true when the client disconnects.
    pub cancelled: Option<&'a AtomicBool>,
}

/// Deploys all chains of a file, or none. A new chain comes up. A running chain with another
/// description changes under traffic. Slow steps check `is_cancelled`.
///
/// # Errors
/// A bad file, a refused chain, a change that cannot be made live, or a system error. The node is
/// then unchanged.
pub(crate) fn up(
    node: &Node,
    source: &ChainSource,
    options: UpOptions<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Vec<ChainUp>, ApiError> {
    let start = Instant::now();
    let Objects { chains, topologies } = source.parse_objects()?;
    check_floods(options.floods, &chains)?;
    let mut names = names_to_reserve(&chains);
    names.extend(topologies.iter().map(|topology| topology.name.clone()));
    let _reserved = node.chains.reserved.reserve(names, is_cancelled)?;
    topology::check_names(node, &chains, &topologies)?;
    if options.only_new {
        refuse_running_chains(node, &chains)?;
        topology::refuse_all(&topologies)?;
        refuse_nodes(&chains)?;
    }
    if let Some(own) = options.own {
        refuse_foreign_objects(node, &chains, &topologies, own)?;
    }
    let made = topology::make(node, &topologies)?;
    let source = Arc::new(source.clone());
    let (over_nodes, chains): (Vec<_>, Vec<_>) =
        chains.into_iter().partition(ServiceChain::is_over_nodes);
    let spans = spans::up(node, over_nodes, &source, options.force, start)?;
    let mut ups = deploy(node, chains, &source, options.force, (start, is_cancelled))?;
    ups.extend(spans.keep());
    made.keep()?;
    Ok(ups)
}

/// The names that a request for these chains reserves: of the chains, their reverse chains, and the
/// topologies whose hosts are their ports.
fn names_to_reserve(chains: &[ServiceChain]) -> BTreeSet<String> {
    let reverses = chains.iter().filter_map(|chain| chain.reverse.clone());
    let names = chains.iter().map(|chain| chain.name.clone());
    let topologies = topology::named_hosts(chains).map(|(topology, _)| topology.to_owned());
    names.chain(reverses).chain(topologies).collect()
}

/// Deploys these chains of `source`, or none. The caller has reserved their names.
fn deploy(
    node: &Node,
    mut chains: Vec<ServiceChain>,
    source: &Arc<ChainSource>,
    force: bool,
    request: (Instant, &dyn Fn() -> bool),
) -> Result<Vec<ChainUp>, ApiError> {
    topology::resolve_ports(node, &mut chains)?;
    let ports = RequestPorts::find(node, &chains);
    take_steps(node, chains, source, force, request).map_err(|error| ports.explain(error))
}

fn take_steps(
    node: &Node,
    chains: Vec<ServiceChain>,
    source: &Arc<ChainSource>,
    force: bool,
    (start, is_cancelled): (Instant, &dyn Fn() -> bool),
) -> Result<Vec<ChainUp>, ApiError> {
    let costs = load_costs_of(node)?;
    let names: Vec<String> = chains.iter().map(|chain| chain.name.clone()).collect();
    let ports = chains.iter().filter_map(|chain| chain.ports.as_ref());
    let interfaces = ports.flat_map(|ports| [ports.ingress.clone(), ports.egress.clone()]);
    let interfaces = node
        .interfaces
        .reserve(interfaces.collect(), is_cancelled)?;
    let node_view = plan::NodeView {
        chains: &node.chains,
        circuits: &node.parts.circuits,
        ports: &node.parts.ports,
        links_are_whole: node.parts.links_are_whole(),
    };
    let plan::FilePlans {
        mut planned,
        unchanged,
    } = plan::plan(node_view, chains, &costs)?;
    impaired_ports::check_chains(node, &planned)?;
    let admission = admit::admit(&node.ledger, &costs, &mut planned, force, is_cancelled)?;
    let latencies = cpu_latency::request_limits(planned.iter().map(|planned| &planned.chain))?;
    let placed = run_step(planned, |planned| place::place(&node.parts, planned))?;
    drop(interfaces);
    let built = run_step(placed, |placed| {
        layout::build_chain(&node.parts, placed, source, is_cancelled)
    })?;
    let mut ups = switch_all_on(node, built, start)?;
    admission.commit();
    node.latencies.keep(latencies);
    for name in &names {
        drop(node.chains.remove_waiting(name));
    }
    let unchanged = unchanged.iter();
    ups.extend(unchanged.map(|running| describe_up(running, Change::Unchanged, 0.0)));
    ups.sort_by_key(|up| names.iter().position(|name| *name == up.chain));
    Ok(ups)
}

/// Runs a step for all chains of a file. If it fails for one chain, drops the results of earlier
/// chains, the newest first: a newer chain may use the ports of an older one.
fn run_step<T, U>(
    chains: Vec<T>,
    mut step: impl FnMut(T) -> Result<U, ApiError>,
) -> Result<Vec<U>, ApiError> {
    let mut results = Vec::with_capacity(chains.len());
    for chain in chains {
        match step(chain) {
            Ok(result) => results.push(result),
            Err(error) => {
                tracing::info!(%error, "cannot deploy the chain file");
                while results.pop().is_some() {}
                return Err(error);
            }
        }
    }
    Ok(results)
}

/// Redirects packets to all chains of a file, or to none, and retires the previous generations. All
/// new generations are complete by now, so chains that share state have different generations only
/// while the front doors switch.
fn switch_all_on(
    node: &Node,
    built: Vec<layout::BuiltChain>,
    start: Instant,
) -> Result<Vec<ChainUp>, ApiError> {
    let plane = &node.parts.plane;
    // Packets see the change from here on.
    let is_change = built.iter().any(|built| built.running.is_some());
    let realtime = is_change.then(RealtimeGuard::begin);
    let mut switched = Vec::new();
    let mut rest = built.into_iter();
    while let Some(built) = rest.next() {
        match switch_on::switch_on(plane, built) {
            Ok(done) => {
                node.chains.insert(Arc::clone(&done.running));
                // The supervisor fails only the chains that it finds.
                if done.running.generation().layout.has_failed() {
                    done.running.fail();
                }
                switched.push(done);
            }
            Err(error) => {
                drop(realtime);
                tracing::info!(%error, "cannot deploy the chain file");
                rest.rev().for_each(drop);
                for done in switched.into_iter().rev() {
                    if let Some(running) = switch_on::switch_back(plane, done) {
                        take_down(node, running);
                    }
                }
                return Err(error);
            }
        }
    }
    for done in &mut switched {
        done.worker_change.keep();
    }
    let took = retire::drain_previous(plane, &switched);
    drop(realtime);
    let finish = |(done, took): (&switch_on::SwitchedOn, Option<Duration>)| {
        let sent = retire::retire_previous(plane, &done.running);
        let change = if done.is_change {
            Change::Changed
        } else {
            Change::Created
        };
        let rendering_ms = (done.since - start).as_secs_f64() * 1e3;
        let mut up = describe_up(&done.running, change, rendering_ms);
        up.exchange_ms = took.map(|took| took.as_secs_f64() * 1e3);
        up.previous_packets_out = sent;
        tracing::info!(
            chain = up.chain,
            generation = up.generation,
            rendering_ms,
            exchange_ms = up.exchange_ms,
            "up"
        );
        up
    };
    Ok(switched.iter().zip(took).map(finish).collect())
}

/// Removes a chain. Returns false when no chain has that name.
///
/// # Errors
/// The agent is stopping.
pub(crate) fn down(node: &Node, name: &str) -> Result<bool, ApiError> {
    let names = BTreeSet::from([name.to_owned()]);
    let _reserved = node.chains.reserved.reserve(names, &|| false)?;
    let running = node.chains.get(name);
    let waiting = node.chains.remove_waiting(name);
    if running.is_none() && waiting.is_none() {
        return Ok(false);
    }
    // Readers hold a waiting chain briefly.
    drop(waiting.map(wait_until_unique));
    if let Some(running) = running {
        take_down(node, running);
    }
    node.ledger.remove(name);
    Ok(true)
}

/// Removes all chains of a node that accepts no more reservations.
pub(crate) fn down_all(node: &Node) {
    for running in node.chains.all() {
        take_down(node, running);
    }
    for waiting in node.chains.all_waiting() {
        drop(node.chains.remove_waiting(&waiting.chain.name));
        drop(wait_until_unique(waiting));
    }
    // The parts go with the agents of the nodes.
    for span in node.spans.all() {
        node.spans.remove(&span.chain.name);
    }
    for topology in node.topologies.all() {
        topology::take_down(node, topology);
    }
}

/// Removes a chain from its front door, and frees everything that no other chain uses. The caller
/// has reserved its name.
fn take_down(node: &Node, running: Arc<RunningChain>) {
    switch_on::switch_off(&node.parts.plane, &running);
    let name = running.name.clone();
    node.latencies.release(&name);
    node.chains.remove(&name);
    running.tear_down();
    tracing::info!(chain = name, "down");
}

/// Refuses running chains, because `run` removes at its end all chains of its file.
fn refuse_running_chains(node: &Node, chains: &[ServiceChain]) -> Result<(), ApiError> {
    let mut chains = chains.iter();
    let running = chains.find(|chain| {
        let name = &chain.name;
        node.chains.get(name).is_some() || node.chains.get_waiting(name).is_some()
    });
    running.map_or(Ok(()), |chain| {
        let name = &chain.name;
        Err(ApiError::failed(format!(
            "{}: chain `{name}` runs already: `myelin probe {name}` measures the running chain, `myelin down {name}` removes it",
            chain.places.name
        )))
    })
}

/// Refuses objects that run and that another program made.
fn refuse_foreign_objects(
    node: &Node,
    chains: &[ServiceChain],
    topologies: &[Topology],
    own: &BTreeSet<String>,
) -> Result<(), ApiError> {
    let runs = |name: &String| {
        let chains = &node.chains;
        chains.get(name).is_some()
            || chains.get_waiting(name).is_some()
            || node.spans.get(name).is_some()
            || node.topologies.get(name).is_some()
    };
    let chains = chains.iter().map(|chain| (&chain.name, &chain.places.name));
    let topologies = topologies
        .iter()
        .map(|topology| (&topology.name, &topology.place));
    let mut foreign = chains
        .chain(topologies)
        .filter(|(name, _)| !own.contains(*name) && runs(name));
    foreign.next().map_or(Ok(()), |(name, place)| {
        Err(ApiError::failed(format!(
            "{place}: `{name}` runs already, and this lease does not hold it: choose another name, or run `myelin down {name}`"
        )))
    })
}

/// Refuses chains over nodes, because `run` probes chains from end hosts of their own.
fn refuse_nodes(chains: &[ServiceChain]) -> Result<(), ApiError> {
    let over_nodes = chains.iter().find(|chain| chain.is_over_nodes());
    over_nodes.map_or(Ok(()), |chain| {
        Err(ApiError::usage(format!(
            "{}: chain `{}`: `run` measures no chains over nodes: use `up`, and send your own traffic",
            chain.places.chain, chain.name
        )))
    })
}

/// Adds the chain's name to an error of a step, unless the message contains it.
fn with_chain_name(chain: &ServiceChain, error: ApiError) -> ApiError {
    let name = format!("`{}`", chain.name);
    if error.message.contains(&name) {
        return error;
    }
    ApiError {
        message: format!("{}: chain {name}: {}", chain.places.chain, error.message),
        ..error
    }
}

fn describe_up(running: &RunningChain, change: Change, rendering_ms: f64) -> ChainUp {
    let generation = running.generation();
    ChainUp {
        chain: running.name.clone(),
        owner: generation.chain.owner().to_owned(),
        change,
        spi: running.spi,
        generation: generation.number,
        plan: generation.plan.clone(),
        ingress: generation.ports.ingress.clone(),
        egress: generation.ports.egress.clone(),
        hosts: generation.ports.hosts.clone(),
        rendering_ms,
        exchange_ms: None,
        previous_packets_out: None,
    }
}

/// Returns the costs on the agent's share of the cores.
fn load_costs_of(node: &Node) -> Result<Costs, ApiError> {
    let costs = load_costs()?;
    Ok(match node.parts.share {
        Some(share) => costs.on_share(share),
        None => costs,
    })
}

/// Returns the costs measured on this machine, or the built-in costs if no calibration file exists.
///
/// # Errors
/// The calibration file is not valid.
pub fn load_costs() -> Result<Costs, ApiError> {
    load_costs_from(&calibration_file())
}

/// As [`load_costs`], of this file.
pub(crate) fn load_costs_from(path: &Path) -> Result<Costs, ApiError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Costs::from_json(&text)
            .map_err(|error| ApiError::failed(format!("{}: {error}", path.display()))),
        Err(_) => Ok(Costs::default()),
    }
}
