//! The chains of nodes, as their agents report them.

use std::collections::BTreeMap;
use std::sync::Arc;

use myelin_manager::{PlacedPart, in_parallel};

use crate::api::ChainStatus;
use crate::node::Node;
use crate::node::spans::RunningSpan;
use crate::node::topologies::RunningTopology;

/// The chains of each node that has answered, by topology and node.
pub(super) struct Answers(BTreeMap<(String, String), Vec<ChainStatus>>);

impl Answers {
    /// Asks the agents of the nodes of all these chains, each once. All are asked at the same time:
    /// a silent agent delays no other one.
    pub(super) fn ask<'s>(node: &Node, spans: impl IntoIterator<Item = &'s RunningSpan>) -> Self {
        let mut agents: BTreeMap<(String, String), Arc<RunningTopology>> = BTreeMap::new();
        for span in spans {
            let Some(topology) = node.topologies.get(&span.topology) else {
                continue;
            };
            for part in &span.deployment.parts {
                let place = (span.topology.clone(), part.at.node.clone());
                agents.insert(place, Arc::clone(&topology));
            }
        }
        let agents: Vec<_> = agents.into_iter().collect();
        let answers = in_parallel(&agents, |(place, topology)| {
            let agent = topology.node(&place.1)?;
            let chains = agent.connect().and_then(|client| client.list()).ok()?;
            Some((place.clone(), chains))
        });
        Self(answers.into_iter().flatten().flatten().collect())
    }

    /// Returns the status of a part; `None` if its node has lost it, or has not answered.
    pub(super) fn status(&self, topology: &str, part: &PlacedPart) -> Option<&ChainStatus> {
        let chains = self.0.get(&(topology.to_owned(), part.node.clone()))?;
        chains.iter().find(|status| status.chain == part.name)
    }
}
