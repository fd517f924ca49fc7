//! The chains of nodes, as their agents report them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use myelin_manager::PlacedPart;

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
        let ask = |topology: &RunningTopology, name: &str| {
            let agent = topology.node(name)?;
            agent.connect().and_then(|client| client.list()).ok()
        };
        let ask = &ask;
        let answers = thread::scope(|scope| {
            let threads: Vec<_> = agents
                .iter()
                .map(|(place, topology)| (place, scope.spawn(move || ask(topology, &place.1))))
                .collect();
            let answers = threads.into_iter().filter_map(|(place, thread)| {
                let chains = thread.join().ok().flatten()?;
                Some((place.clone(), chains))
            });
            answers.collect()
        });
        Self(answers)
    }

    /// Returns the status of a part; `None` if its node has lost it, or has not answered.
    pub(super) fn status(&self, topology: &str, part: &PlacedPart) -> Option<&ChainStatus> {
        let chains = self.0.get(&(topology.to_owned(), part.node.clone()))?;
        chains.iter().find(|status| status.chain == part.name)
    }
}
