//! The running chains over nodes of topologies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use myelin_manager::deployment::NewPart;
use myelin_manager::{Deployment, EndedEntrance, EndedPath, Entrance};
use myelin_packet::meta::MAX_SPI;
use myelin_planner::Plan;
use myelin_policy::sla::WholeLoss;
use myelin_spec::ServiceChain;
use myelin_spec::part::FIRST_PATH;

use crate::api::ChainSource;
use crate::pool::lock;

/// A running chain over nodes.
pub(crate) struct RunningSpan {
    /// The whole.
    pub(crate) chain: ServiceChain,
    /// The whole as its file describes it: without the nodes that placement chose.
    pub(crate) declared: ServiceChain,
    /// The file.
    pub(crate) source: Arc<ChainSource>,
    /// Whether the parts may be best effort.
    pub(crate) is_forced: bool,
    /// The plan of the whole.
    pub(crate) plan: Plan,
    /// The topology of the nodes.
    pub(crate) topology: String,
    /// The service path identifier of the whole; with replicas of a function, that of the first.
    pub(crate) path: u32,
    /// The paths of the other replicas.
    pub(crate) replicas: Vec<ReplicaPath>,
    pub(crate) generation: u16,
    /// The names of the functions of each part.
    pub(crate) functions: Vec<Vec<String>>,
    /// The place where packets enter.
    pub(crate) entrance: Entrance,
    pub(crate) deployment: Deployment,
    /// The longest delay of the links before each part, ns.
    pub(crate) delays_ns: Vec<u64>,
    /// How often the agent of each node had been started when it took its parts.
    pub(crate) starts: BTreeMap<String, u32>,
    /// Why the chain was last brought up again.
    pub(crate) restored: Mutex<Option<String>>,
    /// The loss of the whole. All generations share it, so a reading of one that ends meanwhile
    /// counts.
    pub(crate) loss: Arc<Mutex<WholeLoss>>,
    /// Packets of previous paths.
    pub(crate) earlier_paths: Mutex<EarlierPaths>,
    /// The time since which the first generation is up.
    pub(crate) since: Instant,
}

/// The path of a further replica of a function.
pub(crate) struct ReplicaPath {
    /// The service path identifier.
    pub(crate) path: u32,
    /// The chain with the nodes of this path.
    pub(crate) chain: ServiceChain,
}

impl RunningSpan {
    /// Returns the identifier and the chain of each path, one for each replica.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (u32, &ServiceChain)> {
        let others = self.replicas.iter().map(|path| (path.path, &path.chain));
        std::iter::once((self.path, &self.chain)).chain(others)
    }

    /// Returns the number of the part before each part; `None` for the first one. The first parts
    /// of all branches have the same one before them.
    pub(crate) fn parts_before(&self) -> impl Iterator<Item = Option<usize>> {
        let parts = &self.deployment.parts;
        let first_branch = parts.iter().position(|part| part.at.begins_branch);
        let before = move |(number, part): (usize, &NewPart)| {
            let number = match first_branch {
                Some(first) if part.at.begins_branch => first,
                _ => number,
            };
            number.checked_sub(1)
        };
        parts.iter().enumerate().map(before)
    }

    /// Returns the node of each replica, in the order of the paths; empty without replicas.
    pub(crate) fn replica_nodes(&self) -> impl Iterator<Item = &str> {
        let at = self.chain.replicated().map(|(at, _)| at);
        let functions = self
            .paths()
            .filter_map(move |(_, chain)| chain.functions.get(at?));
        functions.filter_map(|function| function.node.as_deref())
    }

    /// Whether as many replicas run as the chain declares. A silent node leaves fewer.
    pub(crate) fn has_all_replicas(&self) -> bool {
        let declared = self.declared.replicated().map_or(1, |(_, count)| count);
        self.paths().count() == declared
    }
}

/// Packets of the previous paths of a chain, as far as these have ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EarlierPaths {
    /// Packets that entered at first parts that have ended.
    pub(crate) entered: u64,
    /// Of these, packets that the policers dropped.
    pub(crate) policed: u64,
    /// Packets that left the first part, which counts on with each path.
    pub(crate) first: u64,
    /// Packets that left the last part of each path.
    pub(crate) whole: u64,
    /// Packets that left the first part on the running path before undone changes. Its exit counts
    /// from zero after each.
    pub(crate) resumed: u64,
}

impl EarlierPaths {
    /// Adds a path that has ended, with whether its only part counted the packets of earlier paths
    /// too. `is_undone`: the path before goes on.
    pub(crate) fn add(&mut self, ended: &EndedPath, has_one_part: bool, is_undone: bool) {
        match ended.first {
            EndedEntrance::Stays(left) => {
                self.first += left;
                self.whole += ended.left;
            }
            // The part was new with its path.
            EndedEntrance::Gone { entered, policed } => {
                self.entered += entered;
                self.policed += policed;
                let earlier = if has_one_part && !is_undone {
                    self.first
                } else {
                    0
                };
                self.whole += ended.left.saturating_sub(earlier);
                if !is_undone {
                    self.first = 0;
                }
            }
        }
    }

    /// Returns the packets of the paths before a new path.
    pub(crate) fn before_new_path(self) -> Self {
        Self { resumed: 0, ..self }
    }
}

/// The running chains over nodes, by name.
#[derive(Default)]
pub(crate) struct Spans {
    running: Mutex<BTreeMap<String, Arc<RunningSpan>>>,
    next_path: AtomicU32,
}

impl Spans {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<RunningSpan>> {
        lock(&self.running).get(name).cloned()
    }

    /// Returns all chains, by name.
    pub(crate) fn all(&self) -> Vec<Arc<RunningSpan>> {
        lock(&self.running).values().cloned().collect()
    }

    pub(crate) fn insert(&self, span: Arc<RunningSpan>) {
        lock(&self.running).insert(span.chain.name.clone(), span);
    }

    pub(crate) fn remove(&self, name: &str) -> Option<Arc<RunningSpan>> {
        lock(&self.running).remove(name)
    }

    /// Returns an unused identifier of a path. The identifier of an earlier generation is not
    /// reused, so a late packet cannot enter another one.
    pub(crate) fn take_path(&self) -> u32 {
        let number = self.next_path.fetch_add(1, Ordering::Relaxed);
        FIRST_PATH + number % (MAX_SPI - FIRST_PATH + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(first: EndedEntrance, left: u64) -> EndedPath {
        EndedPath { first, left }
    }

    #[test]
    fn packets_of_a_resumed_path_count_once_when_it_ends() {
        // A chain of one part sends 10 packets. Then 5 packets take a new path, which is undone.
        let mut earlier = EarlierPaths::default();
        earlier.add(&ended(EndedEntrance::Stays(5), 5), false, true);
        earlier.resumed += 10;
        // Then 20 packets take the first path again, before a path of several parts.
        let mut next = earlier.before_new_path();
        assert_eq!((next.resumed, next.first, next.whole), (0, 5, 5));
        next.add(&ended(EndedEntrance::Stays(10 + 20), 10 + 20), true, false);
        // All packets that have left the first part have left the whole.
        assert_eq!((next.first, next.whole), (35, 35));
    }

    #[test]
    fn packets_that_policers_dropped_stay_counted_when_their_part_goes() {
        let gone = |entered, policed| EndedEntrance::Gone { entered, policed };
        let mut earlier = EarlierPaths::default();
        earlier.add(&ended(EndedEntrance::Stays(6), 6), false, false);
        // Of 60 packets of the only part, 6 had left it on an earlier path.
        earlier.add(&ended(gone(60, 7), 50), true, false);
        assert_eq!((earlier.entered, earlier.policed), (60, 7));
        assert_eq!((earlier.first, earlier.whole), (0, 50));
        // The undone path had a first part of its own.
        earlier.add(&ended(gone(4, 1), 3), true, true);
        assert_eq!((earlier.entered, earlier.policed), (64, 8));
        assert_eq!((earlier.first, earlier.whole), (0, 53));
    }
}
