//! Plans the parts of a chain over nodes: names, neighbours, ports and budgets. Pure.

use std::ops::Range;

use myelin_packet::MacAddr;
use myelin_spec::cut::PartObject;
use myelin_spec::{PartSpec, PeerSpec, Ports, ServiceChain, Space, Topology, VxlanSpec, Way};

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
    /// The service path identifier.
    pub path: u32,
    /// The number of the path among those of a chain with replicas; 0 without replicas.
    pub replica: usize,
    /// The generation of the whole.
    pub generation: u16,
    /// The place where packets enter the previous generation, if there is one.
    pub previous: Option<&'a Entrance>,
    /// The predicted cost of each function, ns.
    pub costs_ns: &'a [f64],
    /// The planned space of each function.
    pub spaces: &'a [Space],
    /// Returns the Ethernet address of an interface of a node or host.
    pub address: &'a dyn Fn(&str, &str) -> Result<MacAddr, String>,
}

/// The place where packets enter a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entrance {
    /// The node of the first part.
    pub node: String,
    /// The node's interface at the ingress host.
    pub interface: String,
    /// The name of the first part.
    pub part: String,
}

/// The parts of a chain, in order. With replicas, these are the parts up to the one that splits the
/// flows, then those of each branch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanPlan {
    /// The place where packets enter the first part.
    pub entrance: Entrance,
    /// Each part with its node.
    pub parts: Vec<(String, PartObject)>,
    /// The first part of each branch; empty without replicas.
    pub branches: Vec<usize>,
    /// The longest delay of the links before each part, ns; 0 before the first one.
    pub delays_ns: Vec<u64>,
}

impl SpanPlan {
    /// The longest delay of the links between the parts, ns; with replicas, of the slowest path.
    pub fn links_ns(&self) -> u64 {
        let add = |parts: Range<usize>| {
            let delays = self.delays_ns.get(parts).unwrap_or_default().iter();
            delays.copied().fold(0, u64::saturating_add)
        };
        let end = self.parts.len();
        let common = self.branches.first().copied().unwrap_or(end);
        let ends = self.branches.iter().skip(1).chain([&end]);
        let branches = self.branches.iter().zip(ends);
        let slowest = branches.map(|(first, end)| add(*first..*end)).max();
        add(0..common).saturating_add(slowest.unwrap_or_default())
    }
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
    let delays_ns: Vec<u64> = routes.iter().map(|route| route.delay_ns).collect();
    let links_ns = delays_ns.iter().copied().fold(0, u64::saturating_add);
    let budgets = share_budget(request, &sections, links_ns)?;
    let Access {
        ingress,
        egress,
        egress_host,
    } = find_access_ports(chain, topology, &sections)?;
    let entrance = find_entrance(request, &sections, &ingress);
    let last = sections.len() - 1;
    let mut parts = Vec::with_capacity(sections.len());
    for (number, section) in sections.iter().enumerate() {
        let [from, to] = find_peers(request, (&sections, &routes), number, &egress_host)?;
        let part = PartSpec {
            path: request.path,
            first: to_position(section.functions.start),
            length: to_position(chain.functions.len()),
            before_ns: budgets.as_ref().and_then(|budgets| {
                let from = find_origin(topology, &sections, number);
                let links = delays_ns[from..number].iter();
                let earlier = budgets[from..number].iter().chain(links).copied();
                (from < number).then(|| earlier.fold(0, u64::saturating_add))
            }),
            whole: Some(first_name(&chain.name)),
            reverse: chain.reverse.as_deref().map(first_name),
            from,
            to,
            split: Vec::new(),
        };
        let object = PartObject {
            name: match number {
                0 => entrance.part.clone(),
                _ => part_name(&chain.name, request.generation, (request.replica, number)),
            },
            functions: section.functions.clone(),
            ingress: (number == 0).then(|| ingress.clone()),
            egress: (number == last).then(|| egress.clone()),
            // A moved entrance has a new name, so the part must name the whole.
            part: (last > 0 || chain.reverse.is_some() || entrance.part != first_name(&chain.name))
                .then_some(part),
            latency_ns: budgets.as_ref().map(|budgets| budgets[number]),
            pairs: find_pairs(request, section),
            reverse: chain.reverse.clone(),
        };
        parts.push((section.node.clone(), object));
    }
    let before_first = std::iter::once(0);
    Ok(SpanPlan {
        entrance,
        parts,
        branches: Vec::new(),
        delays_ns: before_first.chain(delays_ns).collect(),
    })
}

/// Returns the neighbours of a part from which frames come and to which they go.
fn find_peers(
    request: &SpanRequest<'_>,
    (sections, routes): (&[Section], &[Route]),
    number: usize,
    egress_host: &(String, String),
) -> Result<[Option<PeerSpec>; 2], String> {
    let from = number.checked_sub(1).map(|before| {
        let way = find_way(request, &routes[before], &sections[before].node, None);
        way.map(|way| PeerSpec {
            interface: routes[before].into.clone(),
            way,
        })
    });
    let to = routes.get(number).map(|route| {
        let next = &sections[number + 1].node;
        let way = find_way(request, route, next, Some(egress_host));
        way.map(|way| PeerSpec {
            interface: route.out.clone(),
            way,
        })
    });
    Ok([from.transpose()?, to.transpose()?])
}

/// Returns the functions of a section that share their state with one of the other direction, each
/// with its space. The parts of both directions are planned alone, so the space is pinned.
fn find_pairs(request: &SpanRequest<'_>, section: &Section) -> Vec<(usize, Space)> {
    let functions = section.functions.clone();
    let paired = functions.filter(|at| request.chain.functions[*at].paired);
    paired
        .filter_map(|at| Some((at, *request.spaces.get(at)?)))
        .collect()
}

/// Returns the number of the section where the stamps of a section's packets are made: the first
/// one from which on all nodes have one clock.
fn find_origin(topology: &Topology, sections: &[Section], number: usize) -> usize {
    let mut origin = number;
    while origin > 0 {
        let [before, at] = [origin - 1, origin].map(|at| sections[at].node.as_str());
        if !topology.have_one_clock(before, at) {
            break;
        }
        origin -= 1;
    }
    origin
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
        Some(_) => part_name(chain, request.generation, (0, 0)),
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

/// Returns the way of frames on a route: to the node `far`, with the egress host at which they end,
/// or from that node.
fn find_way(
    request: &SpanRequest<'_>,
    route: &Route,
    far: &str,
    to_host: Option<&(String, String)>,
) -> Result<Way, String> {
    let Some([first, second]) = route.addresses else {
        let interface = to_host.map_or(&route.out, |_| &route.into);
        return (request.address)(far, interface).map(Way::Ethernet);
    };
    let (local, remote) = match to_host {
        Some(_) => (first, second),
        None => (second, first),
    };
    // The sender has written the Ethernet address of its router, which is not at the last link.
    let destination = to_host.map(|(host, interface)| (request.address)(host, interface));
    Ok(Way::Vxlan(VxlanSpec {
        local,
        remote,
        vni: request.path,
        destination: destination.transpose()?,
    }))
}

/// The interfaces where packets of a chain enter the first node and leave the last one, and the
/// host at which they leave: its name and interface.
struct Access {
    ingress: String,
    egress: String,
    egress_host: (String, String),
}

fn find_access_ports(
    chain: &ServiceChain,
    topology: &Topology,
    sections: &[Section],
) -> Result<Access, String> {
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
    let enters = find_access(topology, ingress, &first.node)?;
    let leaves = find_access(topology, egress, &last.node)?;
    Ok(Access {
        ingress: topology.interface(&first.node, enters),
        egress: topology.interface(&last.node, leaves),
        egress_host: (egress.to_owned(), topology.interface(egress, leaves)),
    })
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
fn part_name(chain: &str, generation: u16, (replica, number): (usize, usize)) -> String {
    let end = match replica {
        0 => format!("-g{generation}p{number}"),
        _ => format!("-g{generation}r{replica}p{number}"),
    };
    fit_name(chain, &end)
}

fn fit_name(chain: &str, end: &str) -> String {
    if chain.len() + end.len() <= MAX_NAME {
        return format!("{chain}{end}");
    }
    format!("{}{end}", myelin_api::short_hash(chain.as_bytes()))
}
