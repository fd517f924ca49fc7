//! Deploys chains over nodes: cuts each into parts, which the agents of the nodes take.
//!
//! The agent that owns the topology does this, because it alone knows all nodes. `myelin_manager`
//! has the parts and their order; this file has the nodes.

mod answers;
mod place;
mod restore;
mod status;
mod takers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_manager::deployment::{self, NewPart};
use myelin_manager::{Entrance, PartTakers, PlacedPart, SpanPlan, SpanRequest};
use myelin_planner::{Machine, Plan, PortKind};
use myelin_spec::cut::write_part;
use myelin_spec::{Ports, ServiceChain};

use self::status::describe_up;
use self::takers::Nodes;
use crate::api::{ApiError, ChainSource, ChainUp, Change, UpRequest};
use crate::node::Node;
use crate::node::spans::{ReplicaPath, RunningSpan};
use crate::pool::lock;

pub(crate) use self::restore::{Reason, find_broken, restore};
pub(crate) use self::status::{judge_loss, list};

/// Chains over nodes that a request made or changed. Dropping the value undoes that, unless they
/// are kept.
pub(crate) struct NewSpans<'a> {
    node: &'a Node,
    /// Each with its previous generation.
    changed: Vec<(Arc<RunningSpan>, Option<Arc<RunningSpan>>)>,
    ups: Vec<ChainUp>,
}

impl NewSpans<'_> {
    /// Keeps the chains, because the request has succeeded: removes the parts of previous paths.
    /// Returns the answers.
    pub(crate) fn keep(mut self) -> Vec<ChainUp> {
        for (new, previous) in self.changed.drain(..) {
            if let Some(previous) = previous {
                retire(self.node, &new, &previous);
            }
        }
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
    let old = previous.as_ref().map(|previous| &previous.deployment);
    // Until all parts are gone, `ps` and `down` know the chain.
    let ended = deployment::undo(&nodes, &new.deployment, old)?;
    match previous {
        Some(previous) => {
            let has_one_part = new.deployment.parts.len() == 1;
            let mut earlier_paths = lock(&previous.earlier_paths);
            earlier_paths.add(&ended, has_one_part, true);
            earlier_paths.resumed += new.deployment.left_previous_entrance().unwrap_or_default();
            drop(earlier_paths);
            node.spans.insert(previous);
        }
        None => drop(node.spans.remove(&new.chain.name)),
    }
    Ok(())
}

/// Removes the parts of the previous path, after their packets have left.
fn retire(node: &Node, new: &RunningSpan, previous: &RunningSpan) {
    let nodes = match nodes_of(node, &new.chain, &new.topology) {
        Ok(nodes) => nodes,
        Err(error) => {
            tracing::error!(chain = new.chain.name, %error, "cannot remove the previous path");
            return;
        }
    };
    let resumed = lock(&previous.earlier_paths).resumed;
    let ended = deployment::retire(&nodes, &previous.deployment, &new.deployment, resumed);
    let has_one_part = previous.deployment.parts.len() == 1;
    lock(&new.earlier_paths).add(&ended, has_one_part, false);
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
    source: &Arc<ChainSource>,
    force: bool,
    start: Instant,
) -> Result<NewSpans<'a>, ApiError> {
    let mut new = NewSpans {
        node,
        changed: Vec::new(),
        ups: Vec::new(),
    };
    // Each as its file describes it, and as it is placed. Replies follow the other direction.
    let mut waiting: VecDeque<_> = chains
        .into_iter()
        .map(|chain| (chain.clone(), chain))
        .collect();
    let waiting_chains = waiting.make_contiguous();
    waiting_chains.sort_by_key(|(_, chain)| chain.follows_reverse());
    while let Some((declared, chain)) = waiting.pop_front() {
        let previous = find_previous(node, &chain)?;
        let chains = (declared, chain);
        let (span, change) = up_one(node, chains, (source, force), previous.as_ref())?;
        for (_, other) in &mut waiting {
            other.follow(&span.chain);
        }
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
    (declared, chain): (ServiceChain, ServiceChain),
    (source, force): (&Arc<ChainSource>, bool),
    previous: Option<&Arc<RunningSpan>>,
) -> Result<(Arc<RunningSpan>, Change), ApiError> {
    let topology = find_topology(&declared);
    let nodes = nodes_of(node, &declared, &topology)?;
    refuse_other_topology(&declared, &topology, previous)?;
    let plan = plan_whole(&chain)?;
    let previous_span = previous.map(Arc::as_ref);
    let chains = place::place(&nodes, (&declared, &chain), &plan, previous_span)?;
    let starts = start_agents(&nodes, &chains)?;
    let entrance = previous.map(|old| &old.entrance);
    let build = |paths: &[u32], generation| {
        let planned = plan_parts(&nodes, (&chains, paths), (generation, entrance), &plan)?;
        let parts = write_parts(&planned, &chain, source, force)?;
        Ok::<_, ApiError>((planned, parts))
    };
    if let Some(old) = previous.filter(|old| old.paths().count() == chains.len()) {
        let paths: Vec<u32> = old.paths().map(|(path, _)| path).collect();
        let (_, parts) = build(&paths, old.generation)?;
        if is_same(&parts, &old.deployment.parts) && has_all_parts(&nodes, old) {
            return Ok((Arc::clone(old), Change::Unchanged));
        }
    }
    let paths: Vec<u32> = chains.iter().map(|_| node.spans.take_path()).collect();
    let generation = previous.map_or(0, |old| old.generation.wrapping_add(1));
    let (planned, parts) = build(&paths, generation)?;
    let links = Duration::from_nanos(planned.links_ns());
    let old = previous.map(|old| &old.deployment);
    let deployment = deployment::bring_up(&nodes, parts, links, old)
        .map_err(|error| super::with_chain_name(&declared, error))?;
    let functions = planned.parts.iter().map(|(_, object)| {
        let own = declared.functions[object.functions.clone()].iter();
        own.map(|function| function.name.clone()).collect()
    });
    let change = previous.map_or(Change::Created, |_| Change::Changed);
    let mut paths = paths.into_iter().zip(chains);
    let (path, chain) = paths.next().unwrap_or_else(|| (0, declared.clone()));
    let earlier_paths = previous.map(|old| lock(&old.earlier_paths).before_new_path());
    let earlier_paths = earlier_paths.unwrap_or_default();
    let span = RunningSpan {
        functions: functions.collect(),
        delays_ns: planned.delays_ns.clone(),
        declared,
        source: Arc::clone(source),
        is_forced: force,
        starts,
        restored: Mutex::default(),
        chain,
        plan,
        topology,
        path,
        replicas: paths
            .map(|(path, chain)| ReplicaPath { path, chain })
            .collect(),
        generation,
        entrance: planned.entrance,
        deployment,
        loss: previous.map_or_else(Arc::default, |old| Arc::clone(&old.loss)),
        earlier_paths: Mutex::new(earlier_paths),
        since: previous.map_or_else(Instant::now, |old| old.since),
    };
    Ok((Arc::new(span), change))
}

/// Returns the topology of a chain's ports.
fn find_topology(chain: &ServiceChain) -> String {
    let ingress = chain.ports.as_ref().map(|ports| ports.ingress.as_str());
    let topology = ingress.and_then(Ports::topology_host);
    topology
        .map(|(topology, _)| topology.to_owned())
        .unwrap_or_default()
}

/// Plans the parts on all paths of a chain. With replicas, each replica has a path.
fn plan_parts(
    nodes: &Nodes<'_>,
    (chains, paths): (&[ServiceChain], &[u32]),
    (generation, previous): (u16, Option<&Entrance>),
    plan: &Plan,
) -> Result<SpanPlan, ApiError> {
    let costs = plan.hops.iter().map(myelin_planner::Hop::total_ns);
    let costs: Vec<f64> = costs.collect();
    let spaces: Vec<_> = plan.hops.iter().map(|hop| hop.space).collect();
    let network = lock(&nodes.topology.network).topology().clone();
    let plan_path = |(replica, (chain, path)): (usize, (&ServiceChain, &u32))| {
        let planned = myelin_manager::plan(&SpanRequest {
            chain,
            topology: &network,
            path: *path,
            replica,
            generation,
            previous,
            costs_ns: &costs,
            spaces: &spaces,
            address: &|node, interface| nodes.address(node, interface),
        });
        planned.map_err(|reason| failed(chain, reason))
    };
    let planned = chains.iter().zip(paths).enumerate().map(plan_path);
    let mut planned: Vec<SpanPlan> = planned.collect::<Result<_, _>>()?;
    let Some(chain) = chains.first() else {
        return Err(ApiError::usage("the chain has no functions"));
    };
    match (chain.replicated(), planned.pop()) {
        (None, Some(only)) => Ok(only),
        (Some((position, _)), Some(last)) => {
            planned.push(last);
            myelin_manager::join(planned, position).map_err(|reason| failed(chain, reason))
        }
        (_, None) => Err(ApiError::usage("the chain has no functions")),
    }
}

/// Starts the agents anew that have ended, of the nodes on all paths of a chain. Returns how often
/// each agent was started.
fn start_agents(
    nodes: &Nodes<'_>,
    chains: &[ServiceChain],
) -> Result<BTreeMap<String, u32>, ApiError> {
    let mut starts = BTreeMap::new();
    for section in chains.iter().flat_map(myelin_manager::cut) {
        if let Some(agent) = nodes.topology.node(&section.node) {
            agent.revive(&nodes.node.parts)?;
            starts.insert(section.node, agent.starts());
        }
    }
    Ok(starts)
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
    let write = |(number, (node, object)): (usize, &(String, myelin_spec::cut::PartObject))| {
        let text = write_part(&source.text, &chain.name, object);
        let text = text.ok_or_else(|| failed(chain, "the file does not have the chain"))?;
        Ok(NewPart {
            at: PlacedPart {
                node: node.clone(),
                name: object.name.clone(),
                begins_branch: planned.branches.contains(&number),
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
    planned.parts.iter().enumerate().map(write).collect()
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
    let is_there = |NewPart { at: part, .. }: &NewPart| {
        let status = nodes.status(&part.node, &part.name);
        status.is_ok_and(|status| status.is_some())
    };
    span.deployment.parts.iter().all(is_there)
}

/// Returns the running generation of a chain. Removes its parts instead if a node has lost the
/// first part: no packet enters it. `ps` and `down` know the chain until the next generation is up.
fn find_previous(node: &Node, chain: &ServiceChain) -> Result<Option<Arc<RunningSpan>>, ApiError> {
    let Some(old) = node.spans.get(&chain.name) else {
        return Ok(None);
    };
    let nodes = nodes_of(node, chain, &old.topology)?;
    if let Some(first) = old.deployment.parts.first() {
        match nodes.status(&first.at.node, &first.at.name) {
            Ok(Some(_)) => return Ok(Some(old)),
            // A silent agent may still have the part, and serve it.
            Err(error) if !nodes.agent(&first.at.node)?.has_ended() => {
                return Err(super::with_chain_name(chain, error));
            }
            Ok(None) | Err(_) => {}
        }
    }
    let removed = deployment::take_down(&nodes, &old.deployment);
    removed.map_err(|error| super::with_chain_name(chain, error))?;
    Ok(None)
}

/// Refuses a change that moves the chain to the nodes of another topology.
fn refuse_other_topology(
    chain: &ServiceChain,
    topology: &str,
    previous: Option<&Arc<RunningSpan>>,
) -> Result<(), ApiError> {
    match previous.filter(|old| old.topology != topology) {
        Some(old) => Err(failed(
            chain,
            format!(
                "the chain runs on the nodes of the topology `{}`: `myelin down {}` first",
                old.topology, chain.name
            ),
        )),
        None => Ok(()),
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
