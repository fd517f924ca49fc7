//! Watches the agents of topologies' nodes: ends silent ones, starts ended ones anew, and brings
//! the chains over nodes up again that lost a part with an agent, or lack a replica. Starts the
//! daemons of OpenFlow switches anew.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::control::watched::Watched;
use crate::deploy::spans::{self, Reason};
use crate::node::Node;
use crate::node::node_agents::{Health, NodeAgent};
use crate::node::topologies::RunningTopology;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two attempts to bring a chain up again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time between two attempts to have a missing replica again. It doubles up to here.
const LONGEST_RETRY_INTERVAL: Duration = Duration::from_secs(320);

/// Watches until the node is dropped.
pub(crate) fn start(node: &Arc<Node>) {
    let node = Arc::downgrade(node);
    std::thread::spawn(move || {
        let mut watched = Watched::default();
        while let Some(running) = node.upgrade() {
            for topology in running.topologies.all() {
                // Each agent has a thread, so a silent one delays no other.
                let agents = topology.nodes.len();
                watched.start_missing(&topology, agents + 1, |task| {
                    if task < agents {
                        watch_agent(&node, &topology, task)
                    } else {
                        watch_chains(&node, &topology)
                    }
                });
            }
            drop(running);
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
}

/// Watches an agent of a topology, by its number.
fn watch_agent(
    node: &Weak<Node>,
    topology: &Arc<RunningTopology>,
    number: usize,
) -> io::Result<()> {
    watch(node, topology, move |node, topology| {
        if let Some(agent) = topology.nodes.get(number) {
            check_agent(node, topology, agent);
        }
    })
}

/// Watches the switches of a topology, and the chains over its nodes.
fn watch_chains(node: &Weak<Node>, topology: &Arc<RunningTopology>) -> io::Result<()> {
    let mut failed = BTreeMap::new();
    watch(node, topology, move |node, topology| {
        check_switches(node, topology);
        restore_chains(node, topology, &mut failed);
    })
}

/// Calls `check` in a thread until the node is dropped or the topology is removed.
fn watch(
    node: &Weak<Node>,
    topology: &Arc<RunningTopology>,
    mut check: impl FnMut(&Node, &Arc<RunningTopology>) + Send + 'static,
) -> io::Result<()> {
    let (node, topology) = (Weak::clone(node), Arc::downgrade(topology));
    let watching = std::thread::Builder::new().spawn(move || {
        // The removal of a topology waits until no thread holds it, so none takes it again then.
        while let Some((node, topology)) = node.upgrade().zip(topology.upgrade()) {
            if !is_running(&node, &topology) {
                break;
            }
            check(&node, &topology);
            drop((topology, node));
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
    watching.map(drop)
}

/// Heals an agent of a topology.
fn check_agent(node: &Node, topology: &Arc<RunningTopology>, agent: &NodeAgent) {
    match agent.check() {
        Health::Answers => {}
        Health::Silent => agent.end_silent(&node.parts),
        Health::Ended => {
            let names = BTreeSet::from([topology.name.clone()]);
            // A request that works on the topology starts the agent itself, or ends it.
            let Ok(_reserved) = node.chains.reserved.reserve(names, &|| true) else {
                return;
            };
            if is_running(node, topology) {
                agent.restart(&node.parts);
            }
        }
    }
}

/// Heals the OpenFlow switches of a topology.
fn check_switches(node: &Node, topology: &Arc<RunningTopology>) {
    let Some(openflow) = topology.openflow.as_ref().filter(|all| all.must_restart()) else {
        return;
    };
    let names = BTreeSet::from([topology.name.clone()]);
    // A request that works on the topology may end the switches.
    let Ok(_reserved) = node.chains.reserved.reserve(names, &|| true) else {
        return;
    };
    if is_running(node, topology) {
        openflow.restart();
    }
}

fn is_running(node: &Node, topology: &Arc<RunningTopology>) -> bool {
    let running = node.topologies.get(&topology.name);
    running.is_some_and(|running| Arc::ptr_eq(&running, topology))
}

/// The agents that a round has asked whether they are silent: each once, because a silent one takes
/// seconds.
struct Silence<'a> {
    ask: &'a dyn Fn(&str) -> bool,
    asked: BTreeMap<String, bool>,
}

impl<'a> Silence<'a> {
    fn new(ask: &'a dyn Fn(&str) -> bool) -> Self {
        let asked = BTreeMap::new();
        Self { ask, asked }
    }

    fn is_of_any(&mut self, nodes: BTreeSet<&str>) -> bool {
        // Those that are known to be silent first.
        let is_known = |node: &&str| self.asked.get(*node) == Some(&true);
        nodes.iter().any(is_known)
            || nodes.into_iter().any(|node| {
                let asked = self.asked.entry(node.to_owned());
                *asked.or_insert_with(|| (self.ask)(node))
            })
    }
}

/// Returns the nodes that take part when a chain is brought up again: those of the chain and of the
/// chain of the other direction, which follows, and those that return. `starts` has the nodes of
/// both directions.
fn find_nodes<'a>(
    starts: [Option<&'a BTreeMap<String, u32>>; 2],
    reason: &'a Reason,
) -> BTreeSet<&'a str> {
    let own = starts.into_iter().flatten().flat_map(BTreeMap::keys);
    let returned = match reason {
        Reason::Returned(nodes) => &nodes[..],
        Reason::Lost(_) => &[],
    };
    own.chain(returned).map(String::as_str).collect()
}

/// Attempts to bring a chain up again, for one reason.
struct Attempts {
    reason: Reason,
    last: Instant,
    /// Time until the next one.
    wait: Duration,
}

/// Brings up again the chains that lost a part, or that can have a missing replica again. `failed`
/// has the failed attempts for each name.
fn restore_chains(
    node: &Node,
    topology: &Arc<RunningTopology>,
    failed: &mut BTreeMap<String, Attempts>,
) {
    failed.retain(|name, _| node.spans.get(name).is_some());
    let is_silent = |name: &str| topology.node(name).is_some_and(NodeAgent::is_silent);
    let mut silence = Silence::new(&is_silent);
    for (span, reason) in spans::find_broken(node, topology) {
        let name = &span.chain.name;
        let before = failed.get(name).filter(|before| before.reason == reason);
        if before.is_some_and(|before| before.last.elapsed() < before.wait) {
            continue;
        }
        let waited = before.map(|before| before.wait);
        // Without the names, so that another agent of the topology can be started meanwhile.
        let reverse = span.chain.reverse.as_ref();
        let reverse = reverse.and_then(|reverse| node.spans.get(reverse));
        let starts = [Some(&span), reverse.as_ref()].map(|span| span.map(|span| &span.starts));
        if silence.is_of_any(find_nodes(starts, &reason)) {
            continue;
        }
        let mut names = BTreeSet::from([topology.name.clone(), name.clone()]);
        names.extend(span.chain.reverse.clone());
        let Ok(_reserved) = node.chains.reserved.reserve(names, &|| true) else {
            return;
        };
        let current = node.spans.get(name);
        let is_current = current.is_some_and(|current| Arc::ptr_eq(&current, &span));
        if !is_running(node, topology) || !is_current {
            continue;
        }
        let restored = spans::restore(node, &span, &reason);
        if let Err(error) = &restored {
            tracing::warn!(chain = name, %error, "cannot bring a chain over nodes up again");
        }
        if restored.is_ok_and(|is_complete| is_complete) {
            failed.remove(name);
            continue;
        }
        let wait = match (&reason, waited) {
            // The other replicas carry its flows, so there is no hurry.
            (Reason::Returned(_), Some(waited)) => (waited * 2).min(LONGEST_RETRY_INTERVAL),
            _ => RETRY_INTERVAL,
        };
        let last = Instant::now();
        failed.insert(name.clone(), Attempts { reason, last, wait });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn each_agent_is_asked_once_a_round_whether_it_is_silent() {
        let asked = RefCell::new(Vec::new());
        let ask = |node: &str| {
            asked.borrow_mut().push(node.to_owned());
            node == "n2"
        };
        let mut silence = Silence::new(&ask);
        assert!(!silence.is_of_any(BTreeSet::from(["n1"])));
        assert!(silence.is_of_any(BTreeSet::from(["n1", "n2"])));
        assert!(silence.is_of_any(BTreeSet::from(["n0", "n2"])));
        assert!(!silence.is_of_any(BTreeSet::from(["n1", "n3"])));
        assert_eq!(*asked.borrow(), ["n1", "n2", "n3"]);
    }

    #[test]
    fn nodes_of_both_directions_and_returned_nodes_take_part() {
        let starts = |nodes: &[&str]| -> BTreeMap<String, u32> {
            nodes.iter().map(|node| ((*node).to_owned(), 0)).collect()
        };
        let (own, reverse) = (starts(&["n1", "n2"]), starts(&["n2", "n3"]));
        let both = [Some(&own), Some(&reverse)];
        let returned = Reason::Returned(vec!["n4".to_owned()]);
        let nodes = find_nodes(both, &returned).into_iter();
        assert_eq!(nodes.collect::<Vec<_>>(), ["n1", "n2", "n3", "n4"]);
        let lost = Reason::Lost("n1".to_owned());
        let nodes = find_nodes([Some(&own), None], &lost).into_iter();
        assert_eq!(nodes.collect::<Vec<_>>(), ["n1", "n2"]);
    }
}
