//! Plans the parts of a chain over nodes: names, neighbours, ports and budgets. Pure.

use myelin_packet::MacAddr;
use myelin_spec::cut::PartObject;
use myelin_spec::{PartSpec, PeerSpec, Ports, ServiceChain, Topology, Way};

use crate::budget::share_latency;
use crate::cut::{Section, cut};
use crate::route::{Route, find_access, find_route};

/// Longest name of a part: that of a chain.
const MAX_NAME: usize = myelin_spec::chain::MAX_NAME;

/// A chain to plan, and what its parts need from outside.
pub struct SpanRequest<'a> {
    /// The chain.
    pub chain: &'a ServiceChain,
    /// The topology of its nodes.
    pub topology: &'a Topology,
    /// The service path identifier of the whole.
    pub path: u32,
    /// The generation of the whole.
    pub generation: u16,
    /// The place where packets enter the previous generation, if there is one.
    pub previous: Option<&'a Entrance>,
    /// The predicted cost of each function, ns.
    pub costs_ns: &'a [f64],
    /// Returns the Ethernet address of a node's interface.
    pub address: &'a dyn Fn(&str, &str) -> Result<MacAddr, String>,
}

/// The place where packets enter a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrance {
    /// The node of the first part.
    pub node: String,
    /// The node's interface at the ingress host.
    pub interface: String,
    /// The name of the first part.
    pub part: String,
}

/// The parts of a chain, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanPlan {
    /// The place where packets enter the first part.
    pub entrance: Entrance,
    /// Each part with its node.
    pub parts: Vec<(String, PartObject)>,
    /// The longest delay of the links between the parts, ns.
    pub links_ns: u64,
}

/// Plans the parts of a chain.
///
/// # Errors
/// A node that the topology lacks, nodes that no links join, a host without a link to its node, or
/// links that take the latency of the contract.
pub fn plan(request: &SpanRequest<'_>) -> Result<SpanPlan, String> {
    let (chain, topology) = (request.chain, request.topology);
    let sections = cut(chain);
    for section in &sections {
        if topology.node(&section.node).is_none() {
            let names: Vec<_> = topology.nodes().map(|node| node.name.as_str()).collect();
            return Err(format!(
                "the topology `{}` has no node `{}`: its nodes are {}",
                topology.name,
                section.node,
                names.join(", ")
            ));
        }
    }
    let pairs = sections.windows(2);
    let routes = pairs.map(|pair| find_route(topology, &pair[0].node, &pair[1].node));
    let routes: Vec<Route> = routes.collect::<Result<_, _>>()?;
    let links_ns = routes
        .iter()
        .map(|route| route.delay_ns)
        .fold(0, u64::saturating_add);
    let budgets = share_budget(request, &sections, links_ns)?;
    let (ingress, egress) = find_ports(chain, topology, &sections)?;
    let entrance = find_entrance(request, &sections, &ingress);
    let last = sections.len() - 1;
    let mut parts = Vec::with_capacity(sections.len());
    for (number, section) in sections.iter().enumerate() {
        let peer = |interface: &str, node: &str, far: &str| {
            (request.address)(node, far).map(|address| PeerSpec {
                interface: interface.to_owned(),
                way: Way::Ethernet(address),
            })
        };
        let from = number.checked_sub(1).map(|before| {
            let route = &routes[before];
            peer(&route.into, &sections[before].node, &route.out)
        });
        let to = routes
            .get(number)
            .map(|route| peer(&route.out, &sections[number + 1].node, &route.into));
        let part = PartSpec {
            path: request.path,
            first: to_position(section.functions.start),
            length: to_position(chain.functions.len()),
            before_ns: budgets.as_ref().filter(|_| number > 0).map(|budgets| {
                let links = routes[..number].iter().map(|route| route.delay_ns);
                let earlier = budgets[..number].iter().copied().chain(links);
                earlier.fold(0, u64::saturating_add)
            }),
            whole: Some(first_name(&chain.name)),
            from: from.transpose()?,
            to: to.transpose()?,
        };
        let object = PartObject {
            name: match number {
                0 => entrance.part.clone(),
                _ => part_name(&chain.name, request.generation, number),
            },
            functions: section.functions.clone(),
            ingress: (number == 0).then(|| ingress.clone()),
            egress: (number == last).then(|| egress.clone()),
            part: (last > 0).then_some(part),
            latency_ns: budgets.as_ref().map(|budgets| budgets[number]),
        };
        parts.push((section.node.clone(), object));
    }
    Ok(SpanPlan {
        entrance,
        parts,
        links_ns,
    })
}

/// Returns the place where packets enter. The first part keeps its name while that place stays,
/// because it changes live; elsewhere it is new.
fn find_entrance(request: &SpanRequest<'_>, sections: &[Section], ingress: &str) -> Entrance {
    let node = sections.first().map(|first| first.node.clone());
    let node = node.unwrap_or_default();
    let is_same = |previous: &Entrance| previous.node == node && previous.interface == ingress;
    let chain = &request.chain.name;
    let part = match request.previous {
        None => first_name(chain),
        Some(previous) if is_same(previous) => previous.part.clone(),
        Some(_) => part_name(chain, request.generation, 0),
    };
    Entrance {
        interface: ingress.to_owned(),
        part,
        node,
    }
}

fn to_position(position: usize) -> u8 {
    u8::try_from(position).unwrap_or(u8::MAX)
}

/// Returns the interfaces of the first and last node at the chain's hosts.
fn find_ports(
    chain: &ServiceChain,
    topology: &Topology,
    sections: &[Section],
) -> Result<(String, String), String> {
    let ports = chain.ports.as_ref();
    let hosts = ports.and_then(|ports| {
        let host = |port| Ports::topology_host(port).map(|(_, host)| host);
        host(&ports.ingress).zip(host(&ports.egress))
    });
    let ends = sections.first().zip(sections.last());
    let ((ingress, egress), (first, last)) = hosts
        .zip(ends)
        .ok_or("the ports are not two hosts of a topology")?;
    for host in [ingress, egress] {
        if topology.host(host).is_none() {
            return Err(format!(
                "the topology `{}` has no host `{host}`",
                topology.name
            ));
        }
    }
    let access = |host: &str, node: &str| {
        find_access(topology, host, node).map(|link| topology.interface(node, link))
    };
    Ok((access(ingress, &first.node)?, access(egress, &last.node)?))
}

/// Shares the latency of the contract among the parts.
fn share_budget(
    request: &SpanRequest<'_>,
    sections: &[Section],
    links_ns: u64,
) -> Result<Option<Vec<u64>>, String> {
    let Some(latency_ns) = request.chain.sla.latency_ns else {
        return Ok(None);
    };
    let costs = sections.iter().map(|section| {
        let own = request.costs_ns.get(section.functions.clone());
        own.unwrap_or_default().iter().sum()
    });
    let costs: Vec<f64> = costs.collect();
    let shares = share_latency(latency_ns, links_ns, &costs);
    shares.map(Some).ok_or_else(|| {
        format!(
            "the links between the nodes take up to {links_ns} ns, which leaves nothing of the latency of {latency_ns} ns \
             to the functions: raise `sla.latency`, or place the functions nearer to each other"
        )
    })
}

/// Names the first part of a new chain. All parts of all generations have this name as that of the
/// whole.
fn first_name(chain: &str) -> String {
    fit_name(chain, "-p0")
}

/// Names a part that is new in this generation.
fn part_name(chain: &str, generation: u16, number: usize) -> String {
    fit_name(chain, &format!("-g{generation}p{number}"))
}

fn fit_name(chain: &str, end: &str) -> String {
    if chain.len() + end.len() <= MAX_NAME {
        return format!("{chain}{end}");
    }
    format!("{}{end}", myelin_api::short_hash(chain.as_bytes()))
}
