//! The ways of frames between two nodes: on Ethernet, else over routers.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::{HostRoute, HostSpec, LinkSpec, NODE_BRIDGE, Topology};

/// The way from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWay<'t> {
    /// The links, in the order of the way.
    pub links: Vec<&'t LinkSpec>,
    /// The IP addresses of the first and the last node, if routers are on the way.
    pub addresses: Option<[IpAddr; 2]>,
}

/// Finds the ways between the nodes of a topology. Links between nodes and switches form no loop,
/// so there is at most one way on Ethernet. Without one, the way follows the routes of nodes and
/// routers, as IP packets do.
pub struct NodeWays<'t> {
    topology: &'t Topology,
    /// The links of each host and switch, in the order of the file.
    links: HashMap<&'t str, Vec<&'t LinkSpec>>,
    /// The switches and nodes.
    forwarders: HashSet<&'t str>,
}

/// An end of a way on Ethernet: a host, and the links where the way may begin or end there.
struct End<'t> {
    name: &'t str,
    links: Vec<&'t LinkSpec>,
}

impl<'t> NodeWays<'t> {
    /// Prepares the search in a topology.
    pub fn new(topology: &'t Topology) -> Self {
        let mut links: HashMap<&str, Vec<&LinkSpec>> = HashMap::new();
        for link in &topology.links {
            for end in &link.ends {
                links.entry(end).or_default().push(link);
            }
        }
        let nodes = topology.nodes().map(|node| &node.name);
        let names = topology.switches.iter().chain(nodes);
        Self {
            forwarders: names.map(String::as_str).collect(),
            topology,
            links,
        }
    }

    /// Returns the way between two nodes; `None` if neither links nor routes join them.
    pub fn find(&self, from: &str, to: &str) -> Option<NodeWay<'t>> {
        let (first, last) = (self.topology.node(from)?, self.topology.node(to)?);
        let links = self.find_ethernet_way(&self.any_end(first), &self.any_end(last));
        if let Some(links) = links {
            return Some(NodeWay {
                links,
                addresses: None,
            });
        }
        let locals = first.addresses.iter().map(|own| own.address);
        let pairs = locals.flat_map(|local| last.addresses.iter().map(move |own| (local, own)));
        let pairs = pairs.map(|(local, own)| [local, own.address]);
        let pairs = pairs.filter(|[local, remote]| local.is_ipv4() == remote.is_ipv4());
        let mut pairs: Vec<[IpAddr; 2]> = pairs.collect();
        pairs.sort_by_key(|[local, _]| local.is_ipv6());
        pairs.into_iter().find_map(|pair| {
            Some(NodeWay {
                links: self.follow_routes(first, (last, pair[1]))?,
                addresses: Some(pair),
            })
        })
    }

    fn any_end(&self, host: &'t HostSpec) -> End<'t> {
        let links = self.links.get(host.name.as_str()).cloned();
        End {
            name: &host.name,
            links: links.unwrap_or_default(),
        }
    }

    /// The end at the address of a host near another address. The bridge of a node joins its links.
    fn end_near(&self, host: &'t HostSpec, other: IpAddr) -> Option<End<'t>> {
        let at = host.address_near(other)?;
        let mut end = self.any_end(host);
        if !host.is_node {
            end.links = vec![end.links.get(at.link).copied()?];
        }
        Some(end)
    }

    /// Finds the way between two hosts over switches and nodes.
    fn find_ethernet_way(&self, from: &End<'t>, to: &End<'t>) -> Option<Vec<&'t LinkSpec>> {
        // Breadth first: each place with the link to it and the number of the place before.
        let mut found: Vec<(&str, Option<(&LinkSpec, usize)>)> = vec![(from.name, None)];
        let mut seen = HashSet::from([from.name]);
        let mut next = 0;
        while let Some((at, _)) = found.get(next).copied() {
            let links = match next {
                0 => &from.links,
                _ => self.links.get(at)?,
            };
            for link in links {
                let Some(far) = link.far_end(at) else {
                    continue;
                };
                if far == to.name && to.links.iter().any(|own| own.name == link.name) {
                    let mut way = vec![*link];
                    let mut place = next;
                    while let Some((link, before)) = found[place].1 {
                        way.push(link);
                        place = before;
                    }
                    way.reverse();
                    return Some(way);
                }
                if self.forwarders.contains(far) && seen.insert(far) {
                    found.push((far, Some((*link, next))));
                }
            }
            next += 1;
        }
        None
    }

    /// Follows the routes from a host to an address of another one.
    fn follow_routes(
        &self,
        from: &'t HostSpec,
        (to, target): (&'t HostSpec, IpAddr),
    ) -> Option<Vec<&'t LinkSpec>> {
        let mut at = from;
        let mut way = Vec::new();
        // A way without a loop passes each router once.
        for _ in 0..=self.topology.routers().count() {
            let (next, address) = match at.address_near(target) {
                Some(_) => (to, target),
                None => self.find_gateway(at, target)?,
            };
            let ends = (self.end_near(at, address)?, self.end_near(next, address)?);
            way.extend(self.find_ethernet_way(&ends.0, &ends.1)?);
            if next.name == to.name {
                return Some(way);
            }
            at = next;
        }
        None
    }

    /// Returns the next router on the way from a host to an address, with the router's address.
    fn find_gateway(&self, at: &HostSpec, target: IpAddr) -> Option<(&'t HostSpec, IpAddr)> {
        let routes = at.routes.iter();
        let routes = routes.filter(|route| route.prefix.contains(target));
        let HostRoute { gateway, .. } = routes.max_by_key(|route| route.prefix.len())?;
        let has_gateway =
            |host: &&HostSpec| host.addresses.iter().any(|own| own.address == *gateway);
        let router = self.topology.routers().find(has_gateway)?;
        Some((router, *gateway))
    }
}

impl LinkSpec {
    /// Returns the other end of the link; `None` if `near` is no end.
    pub fn far_end(&self, near: &str) -> Option<&str> {
        let [one, other] = &self.ends;
        match near {
            _ if one == near => Some(other),
            _ if other == near => Some(one),
            _ => None,
        }
    }
}

impl Topology {
    /// Returns the interface with the addresses of a host or node: `eth0`, or the bridge of a node
    /// with several links.
    pub fn address_interface(&self, host: &str) -> &'static str {
        let is_bridged = self.node(host).is_some() && self.links_of(host).nth(1).is_some();
        if is_bridged { NODE_BRIDGE } else { "eth0" }
    }
}
