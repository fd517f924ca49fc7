//! Places the functions of a chain over nodes.

use myelin_manager::deployment::NewPart;
use myelin_planner::Plan;
use myelin_planner::admission::{Ledger, name_at_peer, peer_of_node};
use myelin_planner::placement::{self, Running};
use myelin_spec::ServiceChain;

use super::has_all_parts;
use super::takers::Nodes;
use crate::api::ApiError;
use crate::deploy::load_costs;
use crate::node::node_agents::NodeAgent;
use crate::node::spans::RunningSpan;
use crate::pool::lock;

/// Chooses the nodes of the functions that name none: those of the `previous` generation if the
/// description is the same, because chains that came later do not move a chain. Else where the
/// running chains leave room.
///
/// # Errors
/// No node can run a function.
pub(super) fn place(
    nodes: &Nodes<'_>,
    chain: &mut ServiceChain,
    plan: &Plan,
    (declared, previous): (&ServiceChain, Option<&RunningSpan>),
) -> Result<(), ApiError> {
    if let Some(old) = previous.filter(|old| stays_in_place(nodes, chain, (declared, old))) {
        chain.clone_from(&old.chain);
        return Ok(());
    }
    choose_nodes(nodes, chain, plan, previous)
}

/// Whether a chain keeps the nodes of its previous generation.
fn stays_in_place(
    nodes: &Nodes<'_>,
    chain: &ServiceChain,
    (declared, old): (&ServiceChain, &RunningSpan),
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
    chain: &mut ServiceChain,
    plan: &Plan,
    previous: Option<&RunningSpan>,
) -> Result<(), ApiError> {
    if chain
        .functions
        .iter()
        .all(|function| function.node.is_some())
    {
        return Ok(());
    }
    let topology = lock(&nodes.topology.network).topology().clone();
    let cores = myelin_linux::affinity::highest_core() + 1;
    let costs = load_costs()?;
    let is_trusted = |name: &str| nodes.agent(name).is_ok_and(NodeAgent::is_trusted);
    let trusted = topology.with_nodes(&is_trusted);
    let running = running_beside(nodes, previous)?;
    let spans = nodes.node.spans.all();
    let spans = spans
        .iter()
        .filter(|span| span.topology == nodes.topology.name && span.chain.name != chain.name);
    let chains: Vec<_> = spans.map(|span| (&span.chain, &span.plan)).collect();
    let place_on = |topology, ledger: &Ledger| {
        let running = Running {
            ledger,
            chains: &chains,
        };
        placement::place_on(topology, (chain, plan), &costs, cores, running)
    };
    let placed = place_on(&trusted, &running)
        // The agents know all details, and their refusals name the chains that take the room.
        .or_else(|_| place_on(&trusted, &Ledger::default()))
        // Without another choice, the functions wait for the agent of a node that was silent.
        .or_else(|_| place_on(&topology, &Ledger::default()));
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
