//! Places the functions of a chain over nodes.

use myelin_manager::deployment::NewPart;
use myelin_planner::admission::{Ledger, name_at_peer, peer_of_node};
use myelin_planner::placement::{self, Paths, Placement, Refusal, Running};
use myelin_planner::{Costs, Plan};
use myelin_spec::{ServiceChain, Topology};

use super::has_all_parts;
use super::takers::Nodes;
use crate::api::ApiError;
use crate::deploy::load_costs;
use crate::node::node_agents::NodeAgent;
use crate::node::spans::RunningSpan;
use crate::pool::lock;

/// Where functions can be placed.
struct Room<'a> {
    topology: Topology,
    /// The topology without nodes that were silent or ended too often.
    trusted: Topology,
    costs: Costs,
    /// The chains of all agents, without this chain.
    ledger: Ledger,
    /// The other chains over nodes of the topology, on each of their paths.
    others: Vec<(&'a ServiceChain, &'a Plan)>,
    plan: &'a Plan,
}

impl Room<'_> {
    fn place_on(
        &self,
        topology: &Topology,
        ledger: &Ledger,
        chain: &ServiceChain,
    ) -> Result<Placement, Refusal> {
        let running = Running {
            ledger,
            chains: &self.others,
        };
        let cores = myelin_linux::affinity::highest_core() + 1;
        placement::place_on(topology, (chain, self.plan), &self.costs, cores, running)
    }

    fn place(&self, chain: &ServiceChain) -> Result<Placement, Refusal> {
        self.place_on(&self.trusted, &self.ledger, chain)
            // The agents know all details, and their refusals name the chains that take the room.
            .or_else(|_| self.place_on(&self.trusted, &Ledger::default(), chain))
            // Without another choice, the functions wait for the agent of a node that was silent.
            .or_else(|_| self.place_on(&self.topology, &Ledger::default(), chain))
    }
}

/// Returns the chain with a node for each function, on each of its paths: one, or with replicas of
/// a function one for each replica. The nodes are those of the `previous` generation if the
/// description is the same, because chains that came later do not move a chain. Else they are where
/// the running chains leave room. Of a chain that lacks replicas, the other functions stay while
/// a replica returns.
///
/// # Errors
/// The constraint that no placement keeps.
pub(super) fn place(
    nodes: &Nodes<'_>,
    (declared, chain): (&ServiceChain, &ServiceChain),
    plan: &Plan,
    previous: Option<&RunningSpan>,
) -> Result<Vec<ServiceChain>, ApiError> {
    let can_stay = |old: &&RunningSpan| can_stay(nodes, (declared, chain), old);
    let Some(old) = previous.filter(can_stay) else {
        return choose_nodes(nodes, chain, plan, previous);
    };
    let paths: Vec<ServiceChain> = old.paths().map(|(_, chain)| chain.clone()).collect();
    if old.has_all_replicas() {
        return Ok(paths);
    }
    let kept = keep_nodes(chain, &old.chain);
    let chosen = choose_nodes(nodes, &kept, plan, previous);
    // Without room for a further replica, the chain stays as it is.
    let more = chosen.ok().filter(|chosen| chosen.len() > paths.len());
    Ok(more.unwrap_or(paths))
}

/// Returns the chain with the nodes of its previous generation, but for the function with replicas.
fn keep_nodes(chain: &ServiceChain, old: &ServiceChain) -> ServiceChain {
    let mut kept = chain.clone();
    let replicated = chain.replicated().map(|(position, _)| position);
    let functions = kept.functions.iter_mut().zip(&old.functions);
    for (position, (function, old)) in functions.enumerate() {
        if replicated != Some(position) {
            function.node.clone_from(&old.node);
        }
    }
    kept
}

/// Whether a chain can keep the nodes of its previous generation.
fn can_stay(
    nodes: &Nodes<'_>,
    (declared, chain): (&ServiceChain, &ServiceChain),
    old: &RunningSpan,
) -> bool {
    // Functions of the other direction may have moved, and with them those that share their state.
    let mut functions = chain.functions.iter().zip(&old.chain.functions);
    old.declared == *declared
        && functions.all(|(new, old)| new.node.is_none() || new.node == old.node)
        && has_all_parts(nodes, old)
}

/// Chooses the nodes of the functions that name none, where the running chains leave room.
fn choose_nodes(
    nodes: &Nodes<'_>,
    chain: &ServiceChain,
    plan: &Plan,
    previous: Option<&RunningSpan>,
) -> Result<Vec<ServiceChain>, ApiError> {
    let mut functions = chain.functions.iter();
    if functions.all(|function| function.node.is_some()) {
        return Ok(vec![chain.clone()]);
    }
    let topology = lock(&nodes.topology.network).topology().clone();
    let is_trusted = |name: &str| nodes.agent(name).is_ok_and(NodeAgent::is_trusted);
    let spans = nodes.node.spans.all();
    let spans = spans
        .iter()
        .filter(|span| span.topology == nodes.topology.name && span.chain.name != chain.name);
    let others = spans.flat_map(|span| span.paths().map(|(_, chain)| (chain, &span.plan)));
    let room = Room {
        trusted: topology.with_nodes(&is_trusted),
        topology,
        costs: load_costs()?,
        ledger: running_beside(nodes, previous)?,
        others: others.collect(),
        plan,
    };
    let kept = previous.into_iter().flat_map(RunningSpan::replica_nodes);
    let placed = placement::place_paths(&Paths {
        chain,
        nodes: room.topology.nodes().map(|node| &*node.name).collect(),
        kept: kept.map(str::to_owned).collect(),
        is_trusted: &|node| room.trusted.node(node).is_some(),
        place: &|chain| room.place(chain),
    });
    let placed = placed.map_err(|refusal| {
        ApiError::refused(format!(
            "{}: chain `{}`: {refusal}",
            chain.places.chain, chain.name
        ))
    })?;
    Ok(placed
        .iter()
        .map(|placed| with_nodes(chain, placed))
        .collect())
}

fn with_nodes(chain: &ServiceChain, placed: &Placement) -> ServiceChain {
    tracing::info!(
        chain = chain.name,
        algorithm = %placed.algorithm,
        crossings = placed.crossings,
        delay_ns = placed.delay_ns,
        "placed"
    );
    let mut chain = chain.clone();
    for (function, place) in chain.functions.iter_mut().zip(&placed.functions) {
        function.node = Some(place.node.clone());
    }
    chain
}

/// Returns the chains of all agents of the machine, without the parts of a previous generation.
fn running_beside(nodes: &Nodes<'_>, previous: Option<&RunningSpan>) -> Result<Ledger, ApiError> {
    let mut running = nodes.node.ledger.of_machine()?;
    let parts = previous.iter().flat_map(|old| &old.deployment.parts);
    for NewPart { at: part, .. } in parts {
        let peer = peer_of_node(&nodes.topology.name, &part.node);
        running.remove(&name_at_peer(&part.name, &peer));
    }
    Ok(running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_function_with_replicas_moves_when_a_replica_returns() {
        let text = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: c }
spec:
  match: {}
  ports: { ingress: line/h1, egress: line/h2 }
  functions:
    - { name: first, kind: forward, node: n1 }
    - { name: work, kind: xor, replicas: 2, config: { key: 1 } }
    - { name: last, kind: forward }
";
        let source = crate::api::ChainSource {
            text: text.to_owned(),
            ..Default::default()
        };
        let declared = source.parse().unwrap().remove(0);
        let mut old = declared.clone();
        for (function, node) in old.functions.iter_mut().zip(["n1", "n2", "n3"]) {
            function.node = Some(node.to_owned());
        }
        let kept = keep_nodes(&declared, &old).functions.into_iter();
        let nodes: Vec<_> = kept.map(|function| function.node).collect();
        let node = |name: &str| Some(name.to_owned());
        assert_eq!(nodes, [node("n1"), None, node("n3")]);
    }
}
