//! Deploys chains over nodes: cuts each into parts, which the agents of the nodes take.
//!
//! The agent that owns the topology does this, because it alone knows all nodes. `myelin_manager`
//! has the parts and their order; this file has the nodes.

mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_manager::deployment::{self, NewPart};
use myelin_manager::{PartTakers, PlacedPart, SpanPlan, SpanRequest};
use myelin_packet::MacAddr;
use myelin_planner::{Machine, Plan, PortKind, placement};
use myelin_spec::cut::write_part;
use myelin_spec::{Ports, ServiceChain};

use self::status::describe_up;
use crate::api::{ApiError, ChainSource, ChainStatus, ChainUp, Change, UpRequest};
use crate::node::Node;
use crate::node::node_agents::NodeAgent;
use crate::node::spans::RunningSpan;
use crate::node::topologies::RunningTopology;
use crate::pool::lock;

pub(crate) use self::status::list;

/// The nodes of a topology as takers of parts.
struct Nodes<'a> {
    node: &'a Node,
    topology: Arc<RunningTopology>,
}

impl Nodes<'_> {
    fn agent(&self, node: &str) -> Result<&NodeAgent, ApiError> {
        self.topology.node(node).ok_or_else(|| {
            let topology = &self.topology.name;
            ApiError::failed(format!("the topology `{topology}` has no node `{node}`"))
        })
    }

    /// Returns the Ethernet address of a node's interface.
    fn address(&self, node: &str, interface: &str) -> Result<MacAddr, String> {
        let netns = {
            let network = lock(&self.topology.network);
            let host = network.hosts().find(|host| host.name == node);
            host.map(|host| host.netns)
        };
        let found = netns.map(|netns| {
            let mut netlink = Netlink::open_in(&Netns::open(&netns)?)?;
            netlink.link(interface)
        });
        let mac = match found {
            Some(Ok(link)) => link.mac.and_then(|mac| mac.to_string().parse().ok()),
            Some(Err(error)) => return Err(format!("node `{node}`: {error}")),
            None => None,
        };
        mac.ok_or_else(|| {
            format!("the interface `{interface}` of the node `{node}` has no Ethernet address")
        })
    }
}

impl PartTakers for Nodes<'_> {
    fn take(&self, node: &str, request: &UpRequest) -> Result<ChainUp, ApiError> {
        let ups = self.agent(node)?.connect()?.up(request)?;
        let up = ups.into_iter().next();
        up.ok_or_else(|| ApiError::failed("the agent took no part"))
    }

    fn remove(&self, node: &str, part: &str) -> Result<(), ApiError> {
        let agent = self.agent(node)?;
        let removed = agent.connect().and_then(|client| {
            if client.list()?.iter().any(|status| status.chain == part) {
                client.down(part)?;
            }
            Ok(())
        });
        // What an ended agent left is removed before its successor starts.
        removed.or_else(|error| {
            if agent.has_ended() {
                agent.revive(&self.node.parts)
            } else {
                Err(error)
            }
        })
    }

    fn status(&self, node: &str, part: &str) -> Result<Option<ChainStatus>, ApiError> {
        let list = self.agent(node)?.connect()?.list()?;
        Ok(list.into_iter().find(|status| status.chain == part))
    }
}

/// Chains over nodes that a request made or changed. Dropping the value undoes that, unless they
/// are kept.
pub(crate) struct NewSpans<'a> {
    node: &'a Node,
    /// Each with its previous generation.
    changed: Vec<(Arc<RunningSpan>, Option<Arc<RunningSpan>>)>,
    ups: Vec<ChainUp>,
}

impl NewSpans<'_> {
    /// Keeps the chains, because the request has succeeded. Returns the answers.
    pub(crate) fn keep(mut self) -> Vec<ChainUp> {
        self.changed.clear();
        std::mem::take(&mut self.ups)
    }
}

impl Drop for NewSpans<'_> {
    fn drop(&mut self) {
        while let Some((new, previous)) = self.changed.pop() {
            let name = &new.chain.name;
            if let Err(error) = undo(self.node, &new, previous) {
                tracing::error!(chain = name, %error, "cannot undo a chain over nodes");
            }
        }
    }
}

/// Removes a new chain, or brings its previous generation back.
fn undo(
    node: &Node,
    new: &RunningSpan,
    previous: Option<Arc<RunningSpan>>,
) -> Result<(), ApiError> {
    let nodes = nodes_of(node, &new.chain, &new.topology)?;
    let Some(previous) = previous else {
        node.spans.remove(&new.chain.name);
        return deployment::take_down(&nodes, &new.deployment);
    };
    let links = previous.deployment.links;
    deployment::bring_up(&nodes, &previous.parts, links, Some(&new.deployment))?;
    node.spans.insert(previous);
    Ok(())
}

/// Finds the topology of a chain's nodes.
fn nodes_of<'a>(
    node: &'a Node,
    chain: &ServiceChain,
    topology: &str,
) -> Result<Nodes<'a>, ApiError> {
    let running = node.topologies.get(topology);
    let topology = running.ok_or_else(|| {
        failed(
            chain,
            format!("no topology `{topology}` runs: `myelin up` its file first, or write it into this file"),
        )
    })?;
    Ok(Nodes { node, topology })
}

fn failed(chain: &ServiceChain, reason: impl std::fmt::Display) -> ApiError {
    let (place, name) = (&chain.places.ports, &chain.name);
    ApiError::failed(format!("{place}: chain `{name}`: {reason}"))
}

/// Makes or changes all these chains, or none. The caller has reserved their names.
///
/// # Errors
/// A chain that the topology cannot hold, or a part that its node does not take.
pub(crate) fn up<'a>(
    node: &'a Node,
    chains: Vec<ServiceChain>,
    source: &ChainSource,
    force: bool,
    start: Instant,
) -> Result<NewSpans<'a>, ApiError> {
    let mut new = NewSpans {
        node,
        changed: Vec::new(),
        ups: Vec::new(),
    };
    for chain in chains {
        remove_broken(node, &chain)?;
        let previous = node.spans.get(&chain.name);
        let (span, change) = up_one(node, chain, (source, force), previous.as_ref())?;
        let mut up = describe_up(&span, change);
        if change != Change::Unchanged {
            up.rendering_ms = start.elapsed().as_secs_f64() * 1e3;
            tracing::info!(
                chain = up.chain,
                generation = up.generation,
                up.rendering_ms,
                "up"
            );
            node.spans.insert(Arc::clone(&span));
            new.changed.push((span, previous));
        }
        new.ups.push(up);
    }
    Ok(new)
}

fn up_one(
    node: &Node,
    mut chain: ServiceChain,
    (source, force): (&ChainSource, bool),
    previous: Option<&Arc<RunningSpan>>,
) -> Result<(Arc<RunningSpan>, Change), ApiError> {
    let ingress = chain.ports.as_ref().map(|ports| ports.ingress.clone());
    let topology = ingress.as_deref().and_then(Ports::topology_host);
    let topology = topology
        .map(|(topology, _)| topology.to_owned())
        .unwrap_or_default();
    let nodes = nodes_of(node, &chain, &topology)?;
    if let Some(old) = previous.filter(|old| old.topology != topology) {
        return Err(failed(
            &chain,
            format!(
                "the chain runs on the nodes of the topology `{}`: `myelin down {}` first",
                old.topology, chain.name
            ),
        ));
    }
    let plan = plan_whole(&chain)?;
    place(&nodes, &mut chain, &plan)?;
    for name in myelin_manager::cut(&chain)
        .iter()
        .map(|section| &section.node)
    {
        if let Some(agent) = nodes.topology.node(name) {
            agent.revive(&node.parts)?;
        }
    }
    let build = |path, generation| {
        let costs: Vec<f64> = plan
            .hops
            .iter()
            .map(myelin_planner::Hop::total_ns)
            .collect();
        let network = lock(&nodes.topology.network).topology().clone();
        let planned = myelin_manager::plan(&SpanRequest {
            chain: &chain,
            topology: &network,
            path,
            generation,
            costs_ns: &costs,
            address: &|node, interface| nodes.address(node, interface),
        });
        let planned = planned.map_err(|reason| failed(&chain, reason))?;
        let parts = write_parts(&planned, &chain, source, force)?;
        Ok::<_, ApiError>((planned, parts))
    };
    if let Some(old) = previous {
        let (_, parts) = build(old.path, old.generation)?;
        if is_same(&parts, &old.parts) && has_all_parts(&nodes, old) {
            return Ok((Arc::clone(old), Change::Unchanged));
        }
    }
    let path = node.spans.take_path();
    let generation = previous.map_or(0, |old| old.generation.wrapping_add(1));
    let (planned, parts) = build(path, generation)?;
    refuse_other_ingress(&chain, &parts, previous)?;
    let links = Duration::from_nanos(planned.links_ns);
    let old = previous.map(|old| &old.deployment);
    let deployment = deployment::bring_up(&nodes, &parts, links, old)
        .map_err(|error| super::with_chain_name(&chain, error))?;
    let functions = planned.parts.iter().map(|(_, object)| {
        let own = chain.functions[object.functions.clone()].iter();
        own.map(|function| function.name.clone()).collect()
    });
    let change = previous.map_or(Change::Created, |_| Change::Changed);
    let span = RunningSpan {
        functions: functions.collect(),
        chain,
        plan,
        topology,
        path,
        generation,
        parts,
        deployment,
        since: previous.map_or_else(Instant::now, |old| old.since),
    };
    Ok((Arc::new(span), change))
}

/// Chooses the nodes of the functions that name none.
fn place(nodes: &Nodes<'_>, chain: &mut ServiceChain, plan: &Plan) -> Result<(), ApiError> {
    if chain
        .functions
        .iter()
        .all(|function| function.node.is_some())
    {
        return Ok(());
    }
    let topology = lock(&nodes.topology.network).topology().clone();
    let cores = myelin_linux::affinity::highest_core() + 1;
    let costs = super::load_costs()?;
    let placed = placement::place_on(&topology, chain, plan, &costs, cores);
    let placed = placed.map_err(|refusal| {
        ApiError::refused(format!(
            "{}: chain `{}`: {refusal}",
            chain.places.chain, chain.name
        ))
    })?;
    tracing::info!(
        chain = chain.name,
        algorithm = %placed.algorithm,
        crossings = placed.crossings,
        delay_ns = placed.delay_ns,
        "placed"
    );
    for (function, place) in chain.functions.iter_mut().zip(placed.functions) {
        function.node = Some(place.node);
    }
    Ok(())
}

/// Plans the whole, as if one node had all functions: refuses what no node can hold.
fn plan_whole(chain: &ServiceChain) -> Result<Plan, ApiError> {
    let machine = Machine {
        ingress: PortKind::Virtual,
        egress: PortKind::Virtual,
        ..Machine::with_end_hosts(myelin_linux::affinity::highest_core() + 1)
    };
    let mut plan =
        myelin_planner::plan(chain, &super::load_costs()?, &machine).map_err(ApiError::usage)?;
    plan.admitted = true;
    plan.no_bound = Some(format!(
        "each node bounds its own part: `myelin ps {}` adds the parts and the links between them",
        chain.name
    ));
    Ok(plan)
}

/// Writes the requests to the agents of the nodes.
fn write_parts(
    planned: &SpanPlan,
    chain: &ServiceChain,
    source: &ChainSource,
    force: bool,
) -> Result<Vec<NewPart>, ApiError> {
    let write = |(node, object): &(String, myelin_spec::cut::PartObject)| {
        let text = write_part(&source.text, &chain.name, object);
        let text = text.ok_or_else(|| failed(chain, "the file does not have the chain"))?;
        Ok(NewPart {
            at: PlacedPart {
                node: node.clone(),
                name: object.name.clone(),
            },
            request: UpRequest {
                source: ChainSource {
                    name: format!("{} ({} on {node})", source.name, object.name),
                    text,
                    files: source.files.clone(),
                },
                force,
                // The whole chain has the lease, and takes its parts down.
                lease: None,
            },
        })
    };
    planned.parts.iter().map(write).collect()
}

fn is_same(new: &[NewPart], old: &[NewPart]) -> bool {
    let same = |(new, old): (&NewPart, &NewPart)| {
        let (one, other) = (&new.request, &old.request);
        new.at == old.at
            && one.source.text == other.source.text
            && one.source.files == other.source.files
            && one.force == other.force
    };
    new.len() == old.len() && new.iter().zip(old).all(same)
}

fn has_all_parts(nodes: &Nodes<'_>, span: &RunningSpan) -> bool {
    let is_there = |part: &PlacedPart| {
        let status = nodes.status(&part.node, &part.name);
        status.is_ok_and(|status| status.is_some())
    };
    span.deployment.parts.iter().all(is_there)
}

/// Removes the running generation of a chain if a node has lost its part: it carries no packets.
fn remove_broken(node: &Node, chain: &ServiceChain) -> Result<(), ApiError> {
    let Some(old) = node.spans.get(&chain.name) else {
        return Ok(());
    };
    let nodes = nodes_of(node, chain, &old.topology)?;
    if has_all_parts(&nodes, &old) {
        return Ok(());
    }
    deployment::take_down(&nodes, &old.deployment)
        .map_err(|error| super::with_chain_name(chain, error))?;
    node.spans.remove(&chain.name);
    Ok(())
}

/// Refuses changes that the first part cannot make live: packets enter all generations at one node,
/// and an agent changes neither path nor neighbours of a running part.
fn refuse_other_ingress(
    chain: &ServiceChain,
    parts: &[NewPart],
    previous: Option<&Arc<RunningSpan>>,
) -> Result<(), ApiError> {
    let old = previous.and_then(|old| old.parts.first());
    match (old, parts.first()) {
        (Some(old), Some(new)) if old.at.node != new.at.node => Err(failed(
            chain,
            format!(
                "the first functions run on the node `{}` and cannot move to `{}` live: `myelin down {}` first",
                old.at.node, new.at.node, chain.name
            ),
        )),
        (Some(_), Some(_))
            if previous.is_some_and(|old| old.parts.len() > 1) || parts.len() > 1 =>
        {
            Err(failed(
                chain,
                format!(
                    "a chain whose functions run on several nodes cannot change live: `myelin down {}` first",
                    chain.name
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Removes a chain over nodes. Returns false when none has that name.
///
/// # Errors
/// A part that its node does not remove. The chain then remains, and can be removed again.
pub(crate) fn down(node: &Node, name: &str) -> Result<bool, ApiError> {
    let names = BTreeSet::from([name.to_owned()]);
    let _reserved = node.chains.reserved.reserve(names, &|| false)?;
    let Some(span) = node.spans.get(name) else {
        return Ok(false);
    };
    let nodes = nodes_of(node, &span.chain, &span.topology)?;
    deployment::take_down(&nodes, &span.deployment)
        .map_err(|error| super::with_chain_name(&span.chain, error))?;
    node.spans.remove(name);
    tracing::info!(chain = name, "down");
    Ok(true)
}
