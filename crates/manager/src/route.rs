//! The route between two nodes of a topology: its interfaces, addresses and delay.

use std::net::IpAddr;

use myelin_spec::{Impairments, LinkSpec, NodeWays, Topology};

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

/// Returns the longest delay of a frame on each link of a way, in the frame's direction, ns.
fn delays_ns<'l>(
    from: &'l str,
    way: impl Iterator<Item = &'l LinkSpec>,
) -> impl Iterator<Item = u64> {
    way.scan(from, |at, link| {
        let [there, back] = link.directions();
        let direction = if link.ends[0] == *at { there } else { back };
        *at = link.far_end(at)?;
        Some(longest_delay_ns(&direction))
    })
}

/// Finds the way between two nodes: over switches and other nodes, else over routers.
///
/// # Errors
/// The links do not join the nodes, or no routes lead from one to the other.
pub fn find_route(topology: &Topology, from: &str, to: &str) -> Result<Route, String> {
    let way = NodeWays::new(topology).find(from, to).ok_or_else(|| {
        format!(
            "no links and no routes join the nodes `{from}` and `{to}` of the topology `{}`: add a link, a switch or a \
             router between them",
            topology.name
        )
    })?;
    let ends = way.links.first().zip(way.links.last());
    let (out, into) = if let (None, Some((first, last))) = (way.addresses, ends) {
        (
            topology.interface(from, first),
            topology.interface(to, last),
        )
    } else {
        let at_addresses = |node| topology.address_interface(node).to_owned();
        (at_addresses(from), at_addresses(to))
    };
    let delays = delays_ns(from, way.links.iter().copied());
    Ok(Route {
        out,
        into,
        delay_ns: delays.fold(0, u64::saturating_add),
        addresses: way.addresses,
    })
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
    let joins = |link: &&LinkSpec| link.far_end(host) == Some(node);
    let link = topology.links.iter().find(joins);
    link.ok_or_else(|| {
        format!(
            "no link joins the host `{host}` and the node `{node}` of the topology `{}`: the first function runs on a \
             node with a link to the ingress host, and the last on a node with a link to the egress host",
            topology.name
        )
    })
}
