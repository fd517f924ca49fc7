//! Watches the agents of topologies' nodes: ends silent ones, starts ended ones anew, and brings
//! the chains over nodes up again that lost a part with an agent, or lack a replica. Starts the
//! daemons of OpenFlow switches anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

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
        let mut watched: Vec<Weak<RunningTopology>> = Vec::new();
        while let Some(running) = node.upgrade() {
            watched.retain(|topology| topology.strong_count() > 0);
            for topology in running.topologies.all() {
                let known = Arc::downgrade(&topology);
                if !watched.iter().any(|other| other.ptr_eq(&known)) {
                    watch_topology(&node, &topology);
                    watched.push(known);
                }
            }
            drop(running);
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
}

/// Watches a topology until it is removed: each agent in a thread of its own, so a silent one
/// delays no other.
fn watch_topology(node: &Weak<Node>, topology: &Arc<RunningTopology>) {
    for number in 0..topology.nodes.len() {
        watch(node, topology, move |node, topology| {
            if let Some(agent) = topology.nodes.get(number) {
                check_agent(node, topology, agent);
            }
        });
    }
    let mut failed = BTreeMap::new();
    watch(node, topology, move |node, topology| {
        check_switches(node, topology);
        restore_chains(node, topology, &mut failed);
    });
}

/// Calls `check` in a thread until the node is dropped or the topology is removed.
fn watch(
    node: &Weak<Node>,
    topology: &Arc<RunningTopology>,
    mut check: impl FnMut(&Node, &Arc<RunningTopology>) + Send + 'static,
) {
    let (node, topology) = (Weak::clone(node), Arc::downgrade(topology));
    std::thread::spawn(move || {
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
    for (span, reason) in spans::find_broken(node, topology) {
        let name = &span.chain.name;
        let before = failed.get(name).filter(|before| before.reason == reason);
        if before.is_some_and(|before| before.last.elapsed() < before.wait) {
            continue;
        }
        let waited = before.map(|before| before.wait);
        // Without the names, so that another agent of the topology can be started meanwhile.
        let mut agents = span.starts.keys().filter_map(|name| topology.node(name));
        if agents.any(NodeAgent::is_silent) {
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
