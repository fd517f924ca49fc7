//! The running topologies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use myelin_emulator::{Network, NetworkEnd};
use myelin_linux::netns::Netns;
use myelin_linux::process;
use myelin_spec::Topology;

use crate::api::{TopologyEnd, TopologyStatus};
use crate::node::delay_line::LineSlot;
use crate::node::host_containers::HostContainers;
use crate::node::node_agents::{NodeAgent, programs_of};
use crate::node::openflow::OpenFlow;
use crate::pool::lock;

/// A running topology.
pub(crate) struct RunningTopology {
    // Fields drop in this order.
    /// The containers in the hosts.
    pub(crate) containers: HostContainers,
    /// The agents of the nodes, in the order of the topology.
    pub(crate) nodes: Vec<NodeAgent>,
    /// The OpenFlow switches.
    pub(crate) openflow: Option<OpenFlow>,
    /// The name of the topology.
    pub(crate) name: String,
    /// The topology as its file describes it. Its links have the order of the network's links.
    pub(crate) declared: Mutex<Topology>,
    /// The network, with its live changes. Locked for one change or one reading at a time.
    pub(crate) network: Mutex<Network>,
    /// The delay line of links with delay, rate or loss.
    pub(crate) line: LineSlot,
    /// Time that the agent took to make the network, ms.
    pub(crate) made_ms: f64,
}

/// The running topologies, by name.
#[derive(Default)]
pub(crate) struct Topologies(Mutex<BTreeMap<String, Arc<RunningTopology>>>);

impl Topologies {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<RunningTopology>> {
        lock(&self.0).get(name).cloned()
    }

    /// Returns all topologies, by name.
    pub(crate) fn all(&self) -> Vec<Arc<RunningTopology>> {
        lock(&self.0).values().cloned().collect()
    }

    pub(crate) fn insert(&self, topology: RunningTopology) {
        let name = topology.name.clone();
        lock(&self.0).insert(name, Arc::new(topology));
    }

    pub(crate) fn remove(&self, name: &str) -> Option<Arc<RunningTopology>> {
        lock(&self.0).remove(name)
    }
}

impl Drop for RunningTopology {
    fn drop(&mut self) {
        NodeAgent::stop_all(&self.nodes);
        let hosts: Vec<_> = lock(&self.network).hosts().collect();
        let hosts: Vec<_> = hosts
            .iter()
            .filter_map(|host| Netns::open(&host.netns).ok())
            .collect();
        if let Err(error) = process::kill_in_namespaces(&hosts) {
            tracing::warn!(%error, "programs of a topology's hosts go on");
        }
    }
}

impl RunningTopology {
    /// Returns the agent of a node.
    pub(crate) fn node(&self, name: &str) -> Option<&NodeAgent> {
        self.nodes.iter().find(|node| node.name() == name)
    }

    /// Describes the topology with its interfaces and live changes.
    pub(crate) fn status(&self) -> TopologyStatus {
        let network = lock(&self.network);
        let mut status = TopologyStatus::of(network.topology());
        for (described, host) in status.hosts.iter_mut().zip(network.hosts()) {
            let programs = |group: String| {
                if host.is_node {
                    programs_of(&group)
                } else {
                    group
                }
            };
            (described.netns, described.cgroup) = (host.netns, host.cgroup.map(programs));
            let mut nodes = self.nodes.iter();
            let node = nodes.find(|node| host.is_node && node.name() == host.name);
            described.agent = node.map(NodeAgent::status);
        }
        for (described, (_, bridges)) in status.switches.iter_mut().zip(network.bridges()) {
            described.bridges = bridges.into_iter().map(str::to_owned).collect();
            let openflow = self.openflow.as_ref();
            if let Some(controller) = &mut described.controller {
                controller.state = openflow
                    .and_then(|openflow| openflow.state(&described.name))
                    .unwrap_or_default();
            }
        }
        let links = status.links.iter_mut().zip(network.links());
        for (position, (described, (_, ends, is_up))) in links.enumerate() {
            described.ends = ends.map(describe_end);
            described.is_up = is_up;
            let number = network.link_number(position);
            described.directions = number.and_then(|number| self.line.directions(number));
        }
        status.delay_line = self.line.status();
        status.made_ms = Some(self.made_ms);
        status
    }
}

fn describe_end(end: NetworkEnd) -> TopologyEnd {
    TopologyEnd {
        node: end.node,
        interface: end.interface,
        netns: end.netns,
    }
}
