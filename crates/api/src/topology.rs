//! Topologies over the agent's socket: their status, and changes of their links.

use myelin_spec::{LinkEmulation, LinkSpec, Topology};
use serde::{Deserialize, Serialize};

use crate::{DelayLineStatus, DirectionStatus, ImpairmentChange, LinkImpairments};

/// A topology: of a file, or running.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopologyStatus {
    /// The topology's name.
    pub name: String,
    /// The hosts, in the order of the file, then the nodes.
    pub hosts: Vec<TopologyHost>,
    /// The switches, in the order of the file.
    pub switches: Vec<TopologySwitch>,
    /// The links, in the order of the file.
    pub links: Vec<TopologyLink>,
    /// The delay line; `None`: no link has had delay, rate or loss.
    pub delay_line: Option<DelayLineStatus>,
    /// Time that the agent took to make the topology, ms; `None`: it does not run.
    pub made_ms: Option<f64>,
}

/// A host, node or router of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopologyHost {
    /// The host's name.
    pub name: String,
    /// The host's network namespace, as in `ip netns`; empty if the topology does not run.
    pub netns: String,
    /// The addresses of `eth0`, each with its prefix length; of a router, those of all links.
    pub addresses: Vec<String>,
    /// The control group of a host with limits, below each hierarchy's root.
    pub cgroup: Option<String>,
    /// The limit of processor time, thousandths of a core.
    pub cpu_millicores: Option<u32>,
    /// The limit of memory, bytes.
    pub memory_bytes: Option<u64>,
    /// The cores of the host's programs; empty: all cores.
    pub cpus: Vec<u32>,
    /// Whether the host is a node: it runs an agent.
    #[serde(default)]
    pub is_node: bool,
    /// Whether the host is a router: it forwards IP packets between its links.
    #[serde(default)]
    pub is_router: bool,
    /// The agent of a running node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<NodeAgentStatus>,
}

/// An emulated host: an end host of a chain, or a host or node of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostStatus {
    /// The chain or topology.
    pub object: String,
    /// The host's name in the object.
    pub host: String,
    /// The host's network namespace, as in `ip netns`.
    pub netns: String,
}

/// The agent of a topology's node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeAgentStatus {
    /// The agent's run directory.
    pub run_dir: String,
    /// The agent's process number; absent if the agent has ended.
    pub pid: Option<u32>,
    /// How often the agent was started anew.
    pub restarts: u32,
    /// Why the agent was last started anew, or why it is not.
    pub fault: Option<String>,
}

/// A switch of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopologySwitch {
    /// The switch's name.
    pub name: String,
    /// The kernel bridges of the switch; none if the topology does not run.
    pub bridges: Vec<String>,
    /// The controller of an OpenFlow switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerStatus>,
}

/// The controller of an OpenFlow switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ControllerStatus {
    /// Its address, as in the file.
    pub address: String,
    /// Whether the switch has reached it.
    pub state: ControllerState,
}

/// Whether an OpenFlow switch has reached its controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ControllerState {
    /// The topology does not run.
    #[default]
    NotRunning,
    /// The controller does not answer. The switch keeps its flows, and tries again each second.
    Silent,
    /// The switch has a connection.
    Connected,
    /// Open vSwitch has ended.
    SwitchEnded,
}

/// A link of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopologyLink {
    /// The link's name.
    pub name: String,
    /// Both ends.
    pub ends: [TopologyEnd; 2],
    /// Whether `myelin link` has not set the link down.
    pub is_up: bool,
    /// Delay, rate and loss from the first end to the second.
    pub impairments: LinkImpairments,
    /// Delay, rate and loss from the second end to the first; `None`: those of the other direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back: Option<LinkImpairments>,
    /// What delays and loses the packets.
    #[serde(default)]
    pub by: LinkEmulation,
    /// Counters of the direction from the first end to the second, and back, while the delay line
    /// serves the link.
    pub directions: Option<[DirectionStatus; 2]>,
}

/// An end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopologyEnd {
    /// The host or switch.
    pub node: String,
    /// The interface; empty if the topology does not run.
    pub interface: String,
    /// The network namespace of a host's interface; `None`: the agent's.
    pub netns: Option<String>,
}

/// Request to change a link under traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkRequest {
    /// The topology; `None`: the only one with such a link.
    pub topology: Option<String>,
    /// The link's name, or its ends: `A-B`.
    pub link: String,
    /// Of a change of delay, rate or loss: the end that sends the packets whose direction changes;
    /// `None`: both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The change.
    pub change: LinkChange,
}

/// A change of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LinkChange {
    /// Set the link up.
    Up,
    /// Set the link down: it carries no packet.
    Down,
    /// Move the end at a switch to this switch.
    Move(String),
    /// Change delay, rate or loss of one direction or of both.
    Impair(ImpairmentChange),
}

impl TopologyStatus {
    /// Describes a topology that does not run.
    pub fn of(topology: &Topology) -> Self {
        Self {
            name: topology.name.clone(),
            hosts: topology.hosts.iter().map(describe_host).collect(),
            switches: topology
                .switches
                .iter()
                .map(|name| describe_switch(topology, name))
                .collect(),
            links: topology.links.iter().map(describe_link).collect(),
            delay_line: None,
            made_ms: None,
        }
    }
}

fn describe_host(host: &myelin_spec::HostSpec) -> TopologyHost {
    TopologyHost {
        name: host.name.clone(),
        netns: String::new(),
        addresses: host.addresses.iter().map(ToString::to_string).collect(),
        cgroup: None,
        cpu_millicores: host.limits.cpu_millicores,
        memory_bytes: host.limits.memory_bytes,
        cpus: host.cpus.clone(),
        is_node: host.is_node,
        is_router: host.is_router,
        agent: None,
    }
}

fn describe_switch(topology: &Topology, name: &str) -> TopologySwitch {
    let controller = topology.controllers.get(name);
    TopologySwitch {
        name: name.to_owned(),
        bridges: Vec::new(),
        controller: controller.map(|controller| ControllerStatus {
            address: controller.to_string(),
            state: ControllerState::default(),
        }),
    }
}

fn describe_link(link: &LinkSpec) -> TopologyLink {
    let end = |node: &String| TopologyEnd {
        node: node.clone(),
        interface: String::new(),
        netns: None,
    };
    TopologyLink {
        name: link.name.clone(),
        ends: link.ends.each_ref().map(end),
        is_up: true,
        impairments: (&link.impairments).into(),
        back: link.back.as_ref().map(LinkImpairments::from),
        by: link.by,
        directions: None,
    }
}

/// One emulated end host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostInfo {
    /// `client` or `server`.
    pub role: String,
    /// The host's network namespace, as in `ip netns`.
    pub netns: String,
    /// The host's IP address.
    pub address: String,
    /// The host's interface inside the namespace.
    pub interface: String,
    /// The interface at the agent's end of the host's link.
    pub link: String,
}
