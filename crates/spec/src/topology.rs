//! A topology: emulated hosts, nodes, switches, and the links between them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use myelin_packet::Prefix;
use serde::{Deserialize, Serialize};

use crate::error::FileLocation;
use crate::isolation::Limits;
use crate::keys::words::word_enum;
use crate::openflow::ControllerAddress;

mod change;
mod routing;
mod way;

pub use change::{Removal, TopologyChange};
pub(crate) use routing::{Networks, Segments};
pub use way::{NodeWay, NodeWays};

/// Largest number of hosts of a topology, and of switches.
pub const MAX_NODES: usize = 16_384;
/// Largest number of links of a topology. The names of their interfaces have four hexadecimal
/// digits.
pub const MAX_LINKS: usize = 65_535;

/// Largest number of routers of a topology.
pub const MAX_ROUTERS: usize = 256;
/// Largest number of networks between the routers of a topology.
pub const MAX_NETWORKS: usize = 4096;
/// The bridge of a node with several links, in the node's namespace.
pub const NODE_BRIDGE: &str = "br0";

/// An emulated network on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The name, unique on the node also among chains.
    pub name: String,
    /// The hosts, in the order of the file, then the nodes, then the routers.
    pub hosts: Vec<HostSpec>,
    /// The names of the switches.
    pub switches: Vec<String>,
    /// The controllers of OpenFlow switches, by the name of the switch. The other switches learn by
    /// themselves.
    #[serde(default)]
    pub controllers: BTreeMap<String, ControllerAddress>,
    /// The links. The switches and the links between them form no loop.
    pub links: Vec<LinkSpec>,
    /// The location of the topology's name.
    pub place: FileLocation,
}

/// A host: a network namespace with a link for each end that names it. A node is a host that runs
/// an agent, and that forwards frames between its links as a switch does. A router is a host that
/// forwards IP packets between its links.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// The name, unique among hosts and switches.
    pub name: String,
    /// The addresses: of the first link, `eth0`, or of the bridge `br0` of a node with several
    /// links. A router has addresses on each link.
    pub addresses: Vec<HostAddress>,
    /// The routes to other networks. A host has default routes only.
    #[serde(default)]
    pub routes: Vec<HostRoute>,
    /// Limits of all programs of the host together.
    pub limits: Limits,
    /// The cores of the host's programs; empty: all cores.
    pub cpus: Vec<u32>,
    /// Whether the host is a node.
    #[serde(default)]
    pub is_node: bool,
    /// The clock of a node.
    #[serde(default)]
    pub clock: NodeClock,
    /// Whether the host is a router.
    #[serde(default)]
    pub is_router: bool,
}

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// The number of the router's link with this address, from 0 on; 0 at all other hosts.
    #[serde(default)]
    pub link: usize,
}

/// A route over a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoute {
    /// The destinations.
    pub prefix: Prefix,
    /// The next router, in a network of the host.
    pub gateway: IpAddr,
}

/// A link between two nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// The name, `A-B` if the file has none.
    pub name: String,
    /// The names of the two hosts or switches.
    pub ends: [String; 2],
    /// Delay, rate and loss from the first end to the second.
    pub impairments: Impairments,
    /// Delay, rate and loss from the second end to the first; `None`: those of the other direction.
    pub back: Option<Impairments>,
    /// What delays and loses the packets.
    pub by: LinkEmulation,
}

word_enum! {
    /// The clock of a node.
    #[derive(Default)]
    pub enum NodeClock {
        /// The clock of this machine, as all nodes with this word.
        #[default]
        Shared = "shared",
        /// A clock of its own, as on a machine of its own: no time of another node is compared with
        /// it.
        Own = "own",
    }
}

word_enum! {
    /// What delays and loses the packets of a link.
    #[derive(Default)]
    pub enum LinkEmulation {
        /// The delay line, a worker of Myelin.
        #[default]
        DelayLine = "delay-line",
        /// The queueing discipline netem of the kernel, which not every kernel has.
        Netem = "netem",
    }
}

/// Delay, rate and loss of a direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impairments {
    /// Propagation delay, ns.
    pub delay_ns: u64,
    /// Largest deviation from the delay, ns; at most the delay.
    pub jitter_ns: u64,
    /// Rate, bits a second; `None`: not limited.
    pub rate_bps: Option<u64>,
    /// Longest queue before a limited rate, packets.
    pub queue_packets: Option<u32>,
    /// Loss; `None`: no loss.
    pub loss: Option<Loss>,
}

/// Loss of a link's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The share of lost packets, millionths.
    pub ppm: u32,
    /// Mean number of packets that are lost in a row (Gilbert's model); 1: packets are lost
    /// independently.
    pub burst: u32,
}

impl LinkSpec {
    /// Returns delay, rate and loss from the first end to the second, and back.
    pub fn directions(&self) -> [Impairments; 2] {
        [self.impairments, self.back.unwrap_or(self.impairments)]
    }

    /// Sets delay, rate and loss from the first end to the second, and back.
    pub fn set_directions(&mut self, [there, back]: [Impairments; 2]) {
        self.impairments = there;
        self.back = (back != there).then_some(back);
    }

    /// Whether a direction has delay, rate or loss.
    pub fn is_impaired(&self) -> bool {
        self.directions().iter().any(|one| !one.is_none())
    }
}

impl Impairments {
    /// Whether the link delays or loses no packet and has no rate.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl HostAddress {
    /// The interface with the address, at all but nodes with several links.
    pub fn interface(&self) -> String {
        format!("eth{}", self.link)
    }

    /// The network of the address.
    pub fn network(&self) -> Prefix {
        Prefix::new(self.address, self.prefix_len).unwrap_or_else(|_| Prefix::host(self.address))
    }
}

impl HostSpec {
    /// Returns the address in whose network another address is.
    pub fn address_near(&self, other: IpAddr) -> Option<&HostAddress> {
        let mut addresses = self.addresses.iter();
        addresses.find(|own| own.network().contains(other))
    }
}

impl std::fmt::Display for HostAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

impl Topology {
    /// Returns the host of that name.
    pub fn host(&self, name: &str) -> Option<&HostSpec> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// Returns the node of that name.
    pub fn node(&self, name: &str) -> Option<&HostSpec> {
        self.host(name).filter(|host| host.is_node)
    }

    /// Returns the nodes, in the order of the file.
    pub fn nodes(&self) -> impl Iterator<Item = &HostSpec> {
        self.hosts.iter().filter(|host| host.is_node)
    }

    /// Returns the routers, in the order of the file.
    pub fn routers(&self) -> impl Iterator<Item = &HostSpec> {
        self.hosts.iter().filter(|host| host.is_router)
    }

    /// Returns the links of a host, node, router or switch, in the order of the file.
    pub fn links_of(&self, name: &str) -> impl Iterator<Item = &LinkSpec> {
        let links = self.links.iter();
        links.filter(move |link| link.ends.iter().any(|end| end == name))
    }

    /// Returns the topology with all other nodes as switches: they forward frames, and run no
    /// functions.
    #[must_use]
    pub fn with_nodes(&self, is_kept: &dyn Fn(&str) -> bool) -> Self {
        let mut changed = self.clone();
        let others = changed
            .hosts
            .extract_if(.., |host| host.is_node && !is_kept(&host.name));
        let names: Vec<String> = others.map(|host| host.name).collect();
        changed.switches.extend(names);
        changed
    }

    /// Returns the switch or node of that name, which forwards frames between its links.
    fn forwarder(&self, name: &str) -> Option<&str> {
        let switches = self.switches.iter().map(String::as_str);
        let nodes = self.nodes().map(|node| node.name.as_str());
        switches.chain(nodes).find(|other| *other == name)
    }

    /// Whether a switch has that name.
    pub fn has_switch(&self, name: &str) -> bool {
        self.switches.iter().any(|switch| switch == name)
    }

    /// Returns the link that has that name, or that joins the two nodes of `A-B` or `B-A`.
    pub fn link(&self, name: &str) -> Option<&LinkSpec> {
        let named = self.links.iter().find(|link| link.name == name);
        let joins = |link: &&LinkSpec| {
            let [one, other] = &link.ends;
            name.strip_prefix(other.as_str())
                .and_then(|rest| rest.strip_prefix('-'))
                == Some(one)
        };
        named.or_else(|| self.links.iter().find(joins))
    }

    /// Returns the name of the host's interface at the link: `eth0` for the host's first link.
    pub fn interface(&self, host: &str, link: &LinkSpec) -> String {
        let earlier = self
            .links
            .iter()
            .take_while(|other| other.name != link.name);
        let number = earlier.filter(|other| other.ends.iter().any(|end| end == host));
        format!("eth{}", number.count())
    }

    /// Whether two nodes have one clock, so that times of both can be compared.
    pub fn have_one_clock(&self, one: &str, other: &str) -> bool {
        let is_shared = |name: &str| {
            let node = self.node(name);
            node.is_some_and(|node| node.clock == NodeClock::Shared)
        };
        one == other || (is_shared(one) && is_shared(other))
    }

    /// Returns the host's first link, whose end at a switch can be the port of a chain.
    ///
    /// # Errors
    /// No such host, or its first link leads to no switch.
    pub fn port_link(&self, host: &str) -> Result<&LinkSpec, String> {
        if self.host(host).is_none() {
            return Err(format!("the topology `{}` has no host `{host}`", self.name));
        }
        let mut links = self.links.iter();
        let first = links.find(|link| link.ends.iter().any(|end| end == host));
        first
            .filter(|link| link.ends.iter().any(|end| self.has_switch(end)))
            .ok_or_else(|| {
                format!(
                    "the first link of the host `{host}` of the topology `{}` leads to no switch",
                    self.name
                )
            })
    }

    /// Returns the switches and nodes of the loop that a link between two of them would close over
    /// the links before `before`, first and last equal; `None` if there is no loop.
    pub fn find_loop(&self, ends: [&str; 2], before: usize) -> Option<Vec<&str>> {
        let links = self.links.get(..before).unwrap_or(&self.links);
        let goal = self.forwarder(ends[0])?;
        let start = self.forwarder(ends[1])?;
        // Breadth first: each switch with the position of the switch before it.
        let mut found: Vec<(&str, usize)> = vec![(start, 0)];
        let mut next = 0;
        while let Some(&(at, _)) = found.get(next) {
            if at == goal {
                let mut path = vec![at];
                while next != 0 {
                    next = found[next].1;
                    path.push(found[next].0);
                }
                path.push(goal);
                return Some(path);
            }
            for link in links {
                let [one, other] = &link.ends;
                let far = match at {
                    _ if one == at => other,
                    _ if other == at => one,
                    _ => continue,
                };
                let is_new = found.iter().all(|(name, _)| name != far);
                if is_new && self.forwarder(far).is_some() {
                    found.push((far, next));
                }
            }
            next += 1;
        }
        None
    }

    /// Returns the topology with one end of a link at another switch. A link between a switch and a
    /// host keeps the host's end; a link between switches keeps the end that `name` writes first.
    ///
    /// # Errors
    /// No such link or switch, a link without a switch, or a loop.
    pub fn with_moved_link(&self, name: &str, to: &str) -> Result<Self, String> {
        let link = self.link(name).ok_or_else(|| self.no_link(name))?;
        if !self.has_switch(to) {
            return Err(format!(
                "the topology `{}` has no switch `{to}`: a link moves to one of its switches{}",
                self.name,
                list(self.switches.iter().map(String::as_str)),
            ));
        }
        let kept = match link.ends.each_ref().map(|end| self.has_switch(end)) {
            [false, false] => {
                return Err(format!(
                    "the link `{}` joins two hosts: only an end at a switch can move",
                    link.name
                ));
            }
            [true, true] if name.starts_with(&format!("{}-", link.ends[1])) => 1,
            [true, false] => 1,
            [_, true] => 0,
        };
        let mut moved = self.clone();
        let position = self.links.iter().position(|other| other.name == link.name);
        let mut changed = moved.links.remove(position.unwrap_or_default());
        let has_default_name = changed.name == default_name(&changed.ends);
        to.clone_into(&mut changed.ends[1 - kept]);
        if has_default_name {
            changed.name = default_name(&changed.ends);
        }
        if changed.ends[0] == changed.ends[1] {
            return Err(format!("the link would join `{to}` with itself"));
        }
        let names = changed.ends.each_ref().map(String::as_str);
        if let Some(path) = moved.find_loop(names, moved.links.len()) {
            return Err(format!("the link would close a loop: {}", path.join(" - ")));
        }
        if moved.links.iter().any(|other| other.name == changed.name) {
            return Err(format!("a link `{}` exists already", changed.name));
        }
        moved.links.insert(position.unwrap_or_default(), changed);
        Ok(moved)
    }

    /// Describes that no link has this name.
    pub fn no_link(&self, name: &str) -> String {
        let names = self.links.iter().map(|link| link.name.as_str());
        format!(
            "the topology `{}` has no link `{name}`{}",
            self.name,
            list(names)
        )
    }
}

/// The name of a link without a name in the file.
pub(crate) fn default_name(ends: &[String; 2]) -> String {
    ends.join("-")
}

/// Lists the first names for an error.
fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = names.collect();
    match names.len() {
        0 => String::new(),
        1..=SHOWN => format!(" ({})", names.join(", ")),
        _ => format!(" ({}, ...)", names[..SHOWN].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn lab() -> Topology {
        let link = |a: &str, b: &str| LinkSpec {
            name: format!("{a}-{b}"),
            ends: [a.to_owned(), b.to_owned()],
            impairments: Impairments::default(),
            back: None,
            by: LinkEmulation::default(),
        };
        let host = |name: &str| HostSpec {
            name: name.to_owned(),
            ..HostSpec::default()
        };
        Topology {
            name: "lab".to_owned(),
            hosts: vec![host("h1"), host("h2")],
            switches: ["s1", "s2", "s3"].map(str::to_owned).to_vec(),
            controllers: BTreeMap::new(),
            links: vec![
                link("h1", "s1"),
                link("s1", "s2"),
                link("s2", "s3"),
                link("h1", "h2"),
            ],
            place: FileLocation {
                file: String::new(),
                line: 1,
                column: 1,
            },
        }
    }

    #[test]
    fn links_are_found_by_their_ends_in_both_orders() {
        let lab = lab();
        assert_eq!(lab.link("s2-s1").unwrap().name, "s1-s2");
        assert_eq!(lab.interface("h1", lab.link("h2-h1").unwrap()), "eth1");
        assert!(lab.link("s1-s3").is_none());
    }

    #[test]
    fn a_link_moves_with_its_name_but_closes_no_loop() {
        let lab = lab();
        let moved = lab.with_moved_link("s1-h1", "s3").unwrap();
        assert_eq!(moved.links[0].name, "h1-s3");
        let moved = lab.with_moved_link("s2-s1", "s3").unwrap_err();
        assert_eq!(moved, "the link would close a loop: s3 - s2 - s3");
        assert_eq!(
            lab.with_moved_link("s3-s2", "s1").unwrap().links[2].name,
            "s1-s3"
        );
        for (name, to, words) in [
            ("h1-s1", "h2", "no switch `h2`"),
            ("h1-h2", "s1", "joins two hosts"),
            ("h9-s1", "s2", "no link `h9-s1` (h1-s1,"),
            ("s1-s2", "s1", "with itself"),
        ] {
            let error = lab.with_moved_link(name, to).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
