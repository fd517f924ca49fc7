//! An emulated network: the hosts, switches and links of a topology.
//!
//! A host is a named network namespace, a switch a kernel bridge (or several, see `bridges`), a
//! link a veth pair with the kernel's default offloads. All bridges and the links' ends at switches
//! are in the caller's namespace, so chains can attach to them. A node is a host with a control
//! group; if it has several links, a bridge in its namespace forwards frames between them. A router
//! is a host whose kernel forwards IP packets between its links. All OpenFlow switches of a
//! topology are programs in one more namespace, with an interface for each link; here, a bridge of
//! two ports joins the link to that interface.

mod bridges;
mod build;
mod grow;
mod live;
mod names;
mod numbers;
mod openflow;
mod remove;

use myelin_linux::cgroup::Cgroup;
use myelin_linux::journal::{Journal, ResourceGuard, ResourceGuards};
use myelin_linux::link::LinkId;
use myelin_spec::{LinkSpec, Topology};

use bridges::SwitchPorts;
pub use grow::Growth;
use names::NetworkNames;
pub use names::Run;
pub use openflow::OpenFlowPorts;

/// The error of a network that cannot be made or changed. Nothing is left of a network that cannot
/// be made.
#[derive(Debug, thiserror::Error)]
#[error("topology `{topology}`: {cause}")]
pub struct NetworkError {
    topology: String,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

/// An emulated network. Dropping the value removes the network. Programs on hosts without limits
/// continue without a link; programs on hosts with limits end.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    names: NetworkNames,
    /// For each switch: its bridges and their ports.
    switches: Vec<Switch>,
    /// For each link of the topology.
    links: Vec<LinkEnds>,
    // These fields drop in this order. The kernel removes a group of links in one step.
    /// All links in the caller's namespace.
    links_guard: Option<ResourceGuard>,
    /// The groups of nodes and of hosts with limits.
    groups: Vec<Cgroup>,
    /// The namespaces and groups of the hosts.
    resources: ResourceGuards,
}

#[derive(Debug)]
struct Switch {
    bridges: Vec<LinkId>,
    /// The number of each bridge.
    numbers: Vec<usize>,
    ports: SwitchPorts,
    /// Of an OpenFlow switch: for each bridge, its joint with the switch.
    joints: Vec<LinkId>,
}

/// The two ends of a link, in the order of the topology.
#[derive(Debug)]
struct LinkEnds {
    /// No other link has it. It stays while other links go.
    number: usize,
    ends: [LinkEnd; 2],
    /// The ends in the caller's namespace of an impaired link between hosts: the opposite of the
    /// first host's end, and of the second host's. No bridge joins them.
    wires: Option<[LinkId; 2]>,
    is_down: bool,
}

impl LinkEnds {
    /// Returns the ends in the caller's namespace.
    fn ends_here(&self) -> impl Iterator<Item = &LinkId> {
        let ports = self.ends.iter().filter(|end| end.is_port());
        let ports = ports.map(|end| &end.link);
        ports.chain(self.wires.iter().flatten())
    }
}

/// The place of a link where a delay line takes its packets, in the caller's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DelayPoint {
    /// An end at a switch: packets arrive there from the other end, and leave there.
    Port {
        /// The interface.
        end: LinkId,
        /// Whether this is the second end of the link.
        is_second: bool,
    },
    /// Two interfaces, each the opposite of a host's interface. Nothing else joins them.
    Wires([LinkId; 2]),
}

#[derive(Debug, Clone)]
struct LinkEnd {
    link: LinkId,
    at: Attachment,
}

impl LinkEnd {
    /// Whether the end is a port of a switch.
    fn is_port(&self) -> bool {
        matches!(self.at, Attachment::Switch { .. })
    }
}

/// Where an end of a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attachment {
    /// In the namespace of this host.
    Host(usize),
    /// At a bridge of a switch, in the caller's namespace.
    Switch { switch: usize, bridge: usize },
}

/// A host as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkHost {
    /// The host's name.
    pub name: String,
    /// The network namespace.
    pub netns: String,
    /// The control group: of a node, and of a host with limits.
    pub cgroup: Option<String>,
    /// Whether the host is a node.
    pub is_node: bool,
}

/// One end of a link as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkEnd {
    /// The host or switch.
    pub node: String,
    /// The interface.
    pub interface: String,
    /// The network namespace of the interface; `None`: the one that made the network.
    pub netns: Option<String>,
}

impl Network {
    /// Makes the network. After a failure, removes all objects.
    ///
    /// # Errors
    /// A link that this version cannot make, a core that the machine lacks, or a system error.
    pub fn create(
        run: Run<'_>,
        topology: &Topology,
        journal: &Journal,
    ) -> Result<Self, NetworkError> {
        let mut network = Self {
            topology: Topology {
                hosts: Vec::new(),
                switches: Vec::new(),
                links: Vec::new(),
                ..topology.clone()
            },
            names: NetworkNames::new(run, &topology.name),
            switches: Vec::new(),
            links: Vec::new(),
            links_guard: None,
            groups: Vec::new(),
            resources: ResourceGuards::default(),
        };
        check(topology).map_err(|cause| network.failed(cause))?;
        build::build(&mut network, topology, journal).map_err(|error| network.failed(error))?;
        Ok(network)
    }

    /// The topology, with the changes that were made since.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether an interface of the network has that name.
    pub fn owns_interface(&self, name: &str) -> bool {
        name.starts_with(&self.names.group.prefix)
    }

    /// Returns the hosts in the order of the topology.
    pub fn hosts(&self) -> impl Iterator<Item = NetworkHost> {
        self.topology.hosts.iter().map(|host| NetworkHost {
            name: host.name.clone(),
            netns: self.names.netns(&host.name),
            cgroup: has_group(host).then(|| self.names.cgroup(&host.name)),
            is_node: host.is_node,
        })
    }

    /// Returns the links in the order of the topology: description, ends, and whether the link is
    /// up.
    pub fn links(&self) -> impl Iterator<Item = (&LinkSpec, [NetworkEnd; 2], bool)> {
        let links = self.topology.links.iter().zip(&self.links);
        links.map(|(spec, made)| {
            let end = |side: usize| {
                let end = &made.ends[side];
                let host = match end.at {
                    Attachment::Host(host) => self.topology.hosts.get(host),
                    Attachment::Switch { .. } => None,
                };
                NetworkEnd {
                    node: spec.ends[side].clone(),
                    interface: end.link.name.clone(),
                    netns: host.map(|host| self.names.netns(&host.name)),
                }
            };
            (spec, [end(0), end(1)], !made.is_down)
        })
    }

    /// Returns the number of the link at this position of the topology, which it keeps while
    /// others go.
    pub fn link_number(&self, position: usize) -> Option<usize> {
        self.links.get(position).map(|link| link.number)
    }

    /// Returns the place where a delay line takes the packets of a link.
    ///
    /// # Errors
    /// No such link, or a link that joins two hosts directly.
    pub fn delay_point(&self, name: &str) -> Result<DelayPoint, NetworkError> {
        let made = &self.links[self.find_link(name)?];
        if let Some(wires) = &made.wires {
            return Ok(DelayPoint::Wires(wires.clone()));
        }
        let side = made.ends.iter().position(LinkEnd::is_port);
        let side = side.ok_or_else(|| {
            self.failed(format!(
                "the link `{name}` was made without delay, rate and loss, and joins two hosts directly: write `delay`, \
                 `bandwidth` or `loss` into the file, or put a switch between the hosts"
            ))
        })?;
        Ok(DelayPoint::Port {
            end: made.ends[side].link.clone(),
            is_second: side == 1,
        })
    }

    /// Returns the names of the bridges of each switch.
    pub fn bridges(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        let switches = self.topology.switches.iter().zip(&self.switches);
        switches.map(|(name, switch)| {
            let bridges = switch.bridges.iter().map(|bridge| bridge.name.as_str());
            (name.as_str(), bridges.collect())
        })
    }

    /// Returns the interface at a switch where the packets of a host arrive: the port of a chain.
    ///
    /// # Errors
    /// No such host, or its first link leads to no switch.
    pub fn port_of(&self, host: &str) -> Result<&str, NetworkError> {
        let failed = |cause: String| NetworkError {
            topology: self.topology.name.clone(),
            cause: cause.into(),
        };
        let link = self.topology.port_link(host).map_err(failed)?;
        let mut links = self.topology.links.iter().zip(&self.links);
        let made = links.find(|(spec, _)| spec.name == link.name);
        let mut ends = made.into_iter().flat_map(|(_, made)| &made.ends);
        let port = ends.find(|end| end.is_port());
        port.map(|end| end.link.name.as_str())
            .ok_or_else(|| failed(format!("the host `{host}` has no link to a switch")))
    }
}

/// Whether the host's programs run in a control group.
fn has_group(host: &myelin_spec::HostSpec) -> bool {
    host.is_node || host.limits.has_any() || !host.cpus.is_empty()
}

/// Refuses what the machine or this version cannot make.
fn check(topology: &Topology) -> Result<(), String> {
    let cores = myelin_linux::affinity::count_cores();
    for host in &topology.hosts {
        if let Some(core) = host
            .cpus
            .iter()
            .find(|core| **core as usize >= cores as usize)
        {
            return Err(format!(
                "the host `{}` has the core {core} in `cpus`, but this machine has the cores 0 to {}",
                host.name,
                cores - 1
            ));
        }
    }
    Ok(())
}
