//! Brings chains over nodes up again after a node has lost its part with its agent.

use std::sync::Arc;
use std::time::Instant;

use super::up;
use crate::api::{ApiError, NodeEventKind};
use crate::node::Node;
use crate::node::node_agents::NodeAgent;
use crate::node::spans::RunningSpan;
use crate::node::topologies::RunningTopology;
use crate::pool::lock;

/// Returns the chains of a topology of which a node has lost its part, each with the node.
pub(crate) fn find_broken(
    node: &Node,
    topology: &RunningTopology,
) -> Vec<(Arc<RunningSpan>, String)> {
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
        let lost = span.starts.iter().find(|(name, starts)| {
            let agent = topology.node(name);
            agent.is_some_and(|agent| agent.starts() != **starts || agent.pid().is_none())
        });
        let lost = lost.map(|(name, _)| name.clone());
        Some((Arc::clone(&span), lost?))
    });
    broken.collect()
}

/// Brings a chain up again, on other nodes where its file leaves the choice. Its other parts carry
/// packets until then. The chain of the other direction follows. The caller has reserved the names
/// of both, and that of the topology.
///
/// # Errors
/// A node does not take its part. The chain stays as it is.
pub(crate) fn restore(node: &Node, span: &RunningSpan, lost: &str) -> Result<(), ApiError> {
    let reverse = span.chain.reverse.as_ref();
    let reverse = reverse.and_then(|reverse| node.spans.get(reverse));
    let pair: Vec<&RunningSpan> = std::iter::once(span).chain(reverse.as_deref()).collect();
    let declared = pair.iter().map(|span| span.declared.clone()).collect();
    up(node, declared, &span.source, span.is_forced, Instant::now())?.keep();
    for before in pair {
        let restored = node.spans.get(&before.chain.name);
        // The other direction may have lost nothing.
        if let Some(now) = restored.filter(|now| now.path != before.path) {
            note_restored(node, before, &now, lost);
        }
    }
    Ok(())
}

/// Records that a chain was brought up again.
fn note_restored(node: &Node, before: &RunningSpan, now: &RunningSpan, lost: &str) {
    let name = &now.chain.name;
    let reason = format!("the agent of the node `{lost}` lost its part");
    let moves = describe_moves(before, now);
    let text = format!("chain `{name}` was brought up again, {moves}");
    let place = (now.topology.as_str(), lost);
    let kind = NodeEventKind::Restored;
    node.parts.node_events.record(place, Some(name), kind, text);
    tracing::warn!(
        chain = name,
        reason,
        "a chain over nodes was brought up again"
    );
    *lock(&now.restored) = Some(reason);
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
