//! Brings chains over nodes up again after a node has lost its part with its agent.

use std::sync::Arc;
use std::time::Instant;

use super::up;
use crate::api::ApiError;
use crate::node::Node;
use crate::node::node_agents::NodeAgent;
use crate::node::spans::RunningSpan;
use crate::node::topologies::RunningTopology;

/// Returns the chains of a topology of which a node has lost its part, each with the reason.
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
        let reason = lost.map(|(name, _)| format!("the agent of the node `{name}` lost its part"));
        Some((Arc::clone(&span), reason?))
    });
    broken.collect()
}

/// Brings a chain up again, on other nodes where its file leaves the choice. Its other parts carry
/// packets until then. The chain of the other direction follows. The caller has reserved the names
/// of both, and that of the topology.
///
/// # Errors
/// A node does not take its part. The chain stays as it is.
pub(crate) fn restore(node: &Node, span: &RunningSpan, reason: &str) -> Result<(), ApiError> {
    let name = &span.chain.name;
    let reverse = span.chain.reverse.as_ref();
    let reverse = reverse.and_then(|reverse| node.spans.get(reverse));
    let reverse = reverse.map(|reverse| reverse.declared.clone());
    let declared = std::iter::once(span.declared.clone()).chain(reverse);
    let (declared, source) = (declared.collect(), &span.source);
    up(node, declared, source, span.is_forced, Instant::now())?.keep();
    if let Some(restored) = node.spans.get(name) {
        *crate::pool::lock(&restored.restored) = Some(reason.to_owned());
    }
    tracing::warn!(
        chain = name,
        reason,
        "a chain over nodes was brought up again"
    );
    Ok(())
}
