//! Finds the way between two nodes of a topology. Links between nodes and switches form no loop, so
//! there is at most one way on Ethernet. Without one, the way follows the routes of nodes and
//! routers, as IP packets do.

use std::net::IpAddr;

use myelin_spec::{HostRoute, HostSpec, Impairments, LinkSpec, Topology};

/// Bits of the largest frame of a link without jumbo frames, which a queue counts.
const FRAME_BITS: u64 = 1514 * 8;
const NS_PER_S: u64 = 1_000_000_000;
/// The time of a queue without a length, as the delay line chooses it, ns.
const DEFAULT_QUEUE_NS: u64 = 100_000_000;

/// The way from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The interface of the first node where frames leave.
    pub out: String,
    /// The interface of the second node where frames arrive.
    pub into: String,
    /// The longest delay of a frame on the links, ns.
    pub delay_ns: u64,
    /// The IP addresses of the first and the second node, if routers are on the way.
    pub addresses: Option<[IpAddr; 2]>,
}

/// Returns the longest delay of a frame on a link, ns.
fn longest_delay_ns(link: &Impairments) -> u64 {
    let queue_ns = link.rate_bps.map_or(0, |rate| {
        let queued = link.queue_packets.map_or(DEFAULT_QUEUE_NS, |packets| {
            let bits = u128::from(packets) * u128::from(FRAME_BITS) * u128::from(NS_PER_S);
            u64::try_from(bits / u128::from(rate.max(1))).unwrap_or(u64::MAX)
        });
        let own = FRAME_BITS * NS_PER_S / rate.max(1);
        queued.saturating_add(own)
    });
    let sum = link.delay_ns.saturating_add(link.jitter_ns);
    sum.saturating_add(queue_ns)
}

fn far_end<'l>(link: &'l LinkSpec, near: &str) -> Option<&'l str> {
    let [one, other] = &link.ends;
    match near {
        _ if one == near => Some(other),
        _ if other == near => Some(one),
        _ => None,
    }
}

/// Returns the longest delay of a frame on each link of a way, in the frame's direction, ns.
fn delays_ns<'l>(
    from: &'l str,
    way: impl Iterator<Item = &'l LinkSpec>,
) -> impl Iterator<Item = u64> {
    way.scan(from, |at, link| {
        let [there, back] = link.directions();
        let direction = if link.ends[0] == *at { there } else { back };
        *at = far_end(link, at)?;
        Some(longest_delay_ns(&direction))
    })
}

/// Finds the way between two nodes: over switches and other nodes, else over routers.
///
/// # Errors
/// The links do not join the nodes, or no routes lead from one to the other.
pub fn find_route(topology: &Topology, from: &str, to: &str) -> Result<Route, String> {
    let (first, last) = (End::any(topology, from), End::any(topology, to));
    if let Some(way) = find_ethernet_way(topology, &first, &last)
        && let (Some(first), Some(last)) = (way.first(), way.last())
    {
        return Ok(Route {
            out: topology.interface(from, first),
            into: topology.interface(to, last),
            delay_ns: sum_delays(from, &way),
            addresses: None,
        });
    }
    let (way, addresses) = find_routed_way(topology, from, to).ok_or_else(|| {
        format!(
            "no links and no routes join the nodes `{from}` and `{to}` of the topology `{}`: add a link, a switch or a \
             router between them",
            topology.name
        )
    })?;
    Ok(Route {
        out: topology.address_interface(from).to_owned(),
        into: topology.address_interface(to).to_owned(),
        delay_ns: sum_delays(from, &way),
        addresses: Some(addresses),
    })
}

fn sum_delays(from: &str, way: &[&LinkSpec]) -> u64 {
    delays_ns(from, way.iter().copied()).fold(0, u64::saturating_add)
}

/// An end of a way on Ethernet: a host, and the links where the way may begin or end there.
struct End<'t> {
    name: &'t str,
    links: Vec<&'t LinkSpec>,
}

impl<'t> End<'t> {
    fn any(topology: &'t Topology, name: &'t str) -> Self {
        let links = topology.links_of(name).collect();
        Self { name, links }
    }

    /// The end at the address of a host near another address. The bridge of a node joins its links.
    fn near(topology: &'t Topology, host: &'t HostSpec, other: IpAddr) -> Option<Self> {
        let at = host.address_near(other)?;
        let end = Self::any(topology, &host.name);
        if host.is_node {
            return Some(end);
        }
        let link = end.links.get(at.link).copied();
        Some(Self {
            links: vec![link?],
            ..end
        })
    }

    fn has(&self, link: &LinkSpec) -> bool {
        self.links.iter().any(|own| own.name == link.name)
    }
}

/// Finds the way between two hosts over switches and nodes.
fn find_ethernet_way<'t>(
    topology: &'t Topology,
    from: &End<'t>,
    to: &End<'t>,
) -> Option<Vec<&'t LinkSpec>> {
    // Breadth first: each place with the links from the first one to it.
    let mut found: Vec<(&str, Vec<&LinkSpec>)> = vec![(from.name, Vec::new())];
    let mut next = 0;
    while let Some((at, way)) = found.get(next).cloned() {
        if at == to.name && way.last().is_some_and(|last| to.has(last)) {
            return Some(way);
        }
        for link in &topology.links {
            if next == 0 && !from.has(link) {
                continue;
            }
            let far = far_end(link, at).filter(|far| found.iter().all(|(name, _)| name != far));
            let forwards = |name: &str| topology.has_switch(name) || topology.node(name).is_some();
            let leads_on = |far: &&str| forwards(far) || (*far == to.name && to.has(link));
            if let Some(far) = far.filter(leads_on) {
                let mut way = way.clone();
                way.push(link);
                found.push((far, way));
            }
        }
        next += 1;
    }
    None
}

/// Finds the way of IP packets between two nodes, and their addresses: of IPv4, if both have one
/// and routes join them, else of IPv6.
fn find_routed_way<'t>(
    topology: &'t Topology,
    from: &'t str,
    to: &'t str,
) -> Option<(Vec<&'t LinkSpec>, [IpAddr; 2])> {
    let (first, last) = (topology.node(from)?, topology.node(to)?);
    let locals = first.addresses.iter().map(|own| own.address);
    let mut pairs: Vec<[IpAddr; 2]> = locals
        .flat_map(|local| last.addresses.iter().map(move |own| [local, own.address]))
        .filter(|[local, remote]| local.is_ipv4() == remote.is_ipv4())
        .collect();
    pairs.sort_by_key(|[local, _]| local.is_ipv6());
    pairs
        .into_iter()
        .find_map(|pair| Some((follow_routes(topology, first, (last, pair[1]))?, pair)))
}

/// Follows the routes from a host to an address of another one.
fn follow_routes<'t>(
    topology: &'t Topology,
    from: &'t HostSpec,
    (to, target): (&'t HostSpec, IpAddr),
) -> Option<Vec<&'t LinkSpec>> {
    let mut at = from;
    let mut way = Vec::new();
    // A way without a loop passes each router once.
    for _ in 0..=topology.routers().count() {
        let (next, address) = match at.address_near(target) {
            Some(_) => (to, target),
            None => find_gateway(topology, at, target)?,
        };
        let ends = (
            End::near(topology, at, address)?,
            End::near(topology, next, address)?,
        );
        way.extend(find_ethernet_way(topology, &ends.0, &ends.1)?);
        if next.name == to.name {
            return Some(way);
        }
        at = next;
    }
    None
}

/// Returns the next router on the way from a host to an address, with the router's address.
fn find_gateway<'t>(
    topology: &'t Topology,
    at: &HostSpec,
    target: IpAddr,
) -> Option<(&'t HostSpec, IpAddr)> {
    let routes = at.routes.iter();
    let routes = routes.filter(|route| route.prefix.contains(target));
    let HostRoute { gateway, .. } = routes.max_by_key(|route| route.prefix.len())?;
    let has_gateway =
        |host: &&HostSpec| host.addresses.iter().any(|own| own.address == *gateway);
    let router = topology.routers().find(has_gateway)?;
    Some((router, *gateway))
}

/// Returns the link that joins a host with a node.
///
/// # Errors
/// No link joins them directly.
pub fn find_access<'t>(
    topology: &'t Topology,
    host: &str,
    node: &str,
) -> Result<&'t LinkSpec, String> {
    let joins = |link: &&LinkSpec| far_end(link, host) == Some(node);
    let link = topology.links.iter().find(joins);
    link.ok_or_else(|| {
        format!(
            "no link joins the host `{host}` and the node `{node}` of the topology `{}`: the first function runs on a \
             node with a link to the ingress host, and the last on a node with a link to the egress host",
            topology.name
        )
    })
}
