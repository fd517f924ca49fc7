//! Brings chains over nodes up again after a node has lost its part with its agent, and with all
//! replicas after a node without one has returned.

use std::sync::Arc;
use std::time::Instant;

use super::up;
use crate::api::{ApiError, NodeEventKind};
use crate::node::Node;
use crate::node::node_agents::NodeAgent;
use crate::node::spans::RunningSpan;
use crate::node::topologies::RunningTopology;
use crate::pool::lock;

/// Why a chain is brought up again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The node lost its part with its agent.
    Lost(String),
    /// A replica is missing, and these nodes can take one.
    Returned(Vec<String>),
}

/// Returns the chains of a topology to bring up again, each with the reason.
pub(crate) fn find_broken(
    node: &Node,
    topology: &RunningTopology,
) -> Vec<(Arc<RunningSpan>, Reason)> {
    let spans = node.spans.all().into_iter();
    let spans = spans.filter(|span| span.topology == topology.name);
    let has_failed = |name: &str| topology.node(name).is_some_and(NodeAgent::has_failed);
    let waits = |span: &RunningSpan| {
        let mut nodes = span
            .declared
            .functions
            .iter()
            .map(|function| &function.node);
        nodes.all(Option::is_some) && span.starts.keys().any(|name| has_failed(name))
    };
    // Only a request of a user starts an agent anew that ended too often.
    let spans = spans.filter(|span| !waits(span));
    let broken = spans.filter_map(|span| {
        let lost = find_lost(topology, &span).map(Reason::Lost);
        let reason = lost.or_else(|| find_returned(topology, &span).map(Reason::Returned));
        Some((span, reason?))
    });
    broken.collect()
}

/// Returns a node that has lost its part: its agent was started anew, or is no longer started.
fn find_lost(topology: &RunningTopology, span: &RunningSpan) -> Option<String> {
    let lost = span.starts.iter().find(|(name, starts)| {
        let agent = topology.node(name);
        agent.is_some_and(|agent| agent.starts() != **starts || agent.has_failed())
    });
    lost.map(|(name, _)| name.clone())
}

/// Returns the nodes without a part that can take a missing replica; `None` if no replica is
/// missing, or no such node answers.
fn find_returned(topology: &RunningTopology, span: &RunningSpan) -> Option<Vec<String>> {
    if span.has_all_replicas() {
        return None;
    }
    let is_free = |agent: &&NodeAgent| {
        let has_part = span.starts.contains_key(agent.name());
        !has_part && agent.is_trusted() && agent.pid().is_some()
    };
    let free = topology.nodes.iter().filter(is_free);
    let free: Vec<String> = free.map(|agent| agent.name().to_owned()).collect();
    (!free.is_empty()).then_some(free)
}

/// Brings a chain up again, on other nodes where its file leaves the choice. Its other parts carry
/// packets until then. The chain of the other direction follows. The caller has reserved the names
/// of both, and that of the topology. Returns whether the chain has all its replicas.
///
/// # Errors
/// A node does not take its part. The chain stays as it is.
pub(crate) fn restore(node: &Node, span: &RunningSpan, reason: &Reason) -> Result<bool, ApiError> {
    let reverse = span.chain.reverse.as_ref();
    let reverse = reverse.and_then(|reverse| node.spans.get(reverse));
    let pair: Vec<&RunningSpan> = std::iter::once(span).chain(reverse.as_deref()).collect();
    let declared = pair.iter().map(|span| span.declared.clone()).collect();
    up(node, declared, &span.source, span.is_forced, Instant::now())?.keep();
    for before in pair {
        let restored = node.spans.get(&before.chain.name);
        // The other direction may have lost nothing.
        if let Some(now) = restored.filter(|now| now.path != before.path) {
            note_restored(node, before, &now, reason);
        }
    }
    let now = node.spans.get(&span.chain.name);
    Ok(now.is_none_or(|now| now.has_all_replicas() || matches!(reason, Reason::Lost(_))))
}

/// Records that a chain was brought up again.
fn note_restored(node: &Node, before: &RunningSpan, now: &RunningSpan, reason: &Reason) {
    let name = &now.chain.name;
    let (place, reason, moves) = match reason {
        Reason::Lost(lost) => (
            lost.clone(),
            format!("the agent of the node `{lost}` lost its part"),
            describe_moves(before, now),
        ),
        Reason::Returned(_) => {
            let nodes = find_new_replicas(before, now).join(", ");
            if nodes.is_empty() {
                return;
            }
            let reason = format!("the node {nodes} answers again, and takes a replica");
            let moves = format!("with a replica on {nodes}");
            (nodes, reason, moves)
        }
    };
    let text = format!("chain `{name}` was brought up again, {moves}");
    let place = (now.topology.as_str(), place.as_str());
    let kind = NodeEventKind::Restored;
    node.parts.node_events.record(place, Some(name), kind, text);
    tracing::warn!(
        chain = name,
        reason,
        "a chain over nodes was brought up again"
    );
    *lock(&now.restored) = Some(reason);
}

/// Names the nodes with a replica now and without one before.
fn find_new_replicas<'n>(before: &RunningSpan, now: &'n RunningSpan) -> Vec<&'n str> {
    let earlier: Vec<&str> = before.replica_nodes().collect();
    let nodes = now.replica_nodes();
    nodes.filter(|node| !earlier.contains(node)).collect()
}

/// Names the functions that are on other nodes than before.
fn describe_moves(before: &RunningSpan, now: &RunningSpan) -> String {
    let functions = before.chain.functions.iter().zip(&now.chain.functions);
    let moves = functions.filter_map(|(before, now)| {
        let (from, to) = before.node.as_ref().zip(now.node.as_ref())?;
        (from != to).then(|| format!("`{}` placed anew: from {from} to {to}", now.name))
    });
    let moves: Vec<String> = moves.collect();
    if moves.is_empty() {
        return "its functions on the same nodes".to_owned();
    }
    moves.join(", ")
}
