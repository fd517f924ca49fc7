//! Watches the agents of topologies' nodes: ends silent ones, starts ended ones anew, and brings
//! the chains over nodes up again that lost a part with an agent. Starts the daemons of OpenFlow
//! switches anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deploy::spans;
use crate::node::Node;
use crate::node::node_agents::Health;
use crate::node::topologies::RunningTopology;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two attempts to bring a chain up again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Watches until the node is dropped.
pub(crate) fn start(node: &Arc<Node>) {
    let node = Arc::downgrade(node);
    std::thread::spawn(move || {
        let mut failed = BTreeMap::new();
        while let Some(node) = node.upgrade() {
            for topology in node.topologies.all() {
                check_agents(&node, &topology);
                check_switches(&node, &topology);
                restore_chains(&node, &topology, &mut failed);
            }
            drop(node);
            std::thread::sleep(CHECK_INTERVAL);
        }
    });
}

/// Heals the agents of a topology.
fn check_agents(node: &Node, topology: &Arc<RunningTopology>) {
    for agent in &topology.nodes {
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

/// Brings up again the chains that lost a part. `failed` has the last failed attempt for each name.
fn restore_chains(
    node: &Node,
    topology: &Arc<RunningTopology>,
    failed: &mut BTreeMap<String, Instant>,
) {
    for (span, lost) in spans::find_broken(node, topology) {
        let name = &span.chain.name;
        let is_due = |at: &Instant| at.elapsed() > RETRY_INTERVAL;
        if !failed.get(name).is_none_or(is_due) {
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
        match spans::restore(node, &span, &lost) {
            Ok(()) => drop(failed.remove(name)),
            Err(error) => {
                tracing::warn!(chain = name, %error, "cannot bring a chain over nodes up again");
                failed.insert(name.clone(), Instant::now());
            }
        }
    }
}
