//! The network of a topology.

use std::collections::{BTreeMap, HashMap};

use myelin_spec::{HostSpec, LinkSpec, NodeWay, NodeWays, Ports, ServiceChain, Sla, Topology};

use super::network::{CoreRoom, Hop, LinkRoom, Network, NodeRoom};
use super::problem::Problem;
use super::{Placement, Refusal, Request, place};
use crate::admission::{Ledger, NS, Platform, peer_of_node};
use crate::calculus::{ArrivalCurve, RateLatency, SECOND};
use crate::costs::Costs;
use crate::plan::Plan;

/// Period of a control group's quota of processor time, fs.
const QUOTA_PERIOD_FS: u128 = SECOND / 10;
/// A whole core, thousandths.
const WHOLE_CORE: u32 = 1000;

/// Seed of the draws of `lc`: a chain keeps its nodes when its file is applied again.
const SEED: u64 = 0;

/// What runs already when a chain is placed, without that chain.
#[derive(Clone, Copy)]
pub struct Running<'a> {
    /// The chains of all agents of the machine.
    pub ledger: &'a Ledger,
    /// The chains over nodes of the topology, whose functions have nodes.
    pub chains: &'a [(&'a ServiceChain, &'a Plan)],
}

/// The network of a topology, with the load of running chains, and the numbers of its vertices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyNetwork {
    /// The nodes and links.
    pub network: Network,
    /// The number of each node, host and switch.
    vertices: BTreeMap<String, usize>,
}

impl TopologyNetwork {
    /// Creates the network of a topology on a machine with this number of cores.
    ///
    /// Nodes without a limit of processor time share the cores of the machine. A node with a limit
    /// has a core of its own with that rate. `running` has the chains of all agents of the machine,
    /// which leave room for a chain with this contract.
    pub fn new(
        topology: &Topology,
        costs: &Costs,
        cores: u32,
        (running, sla): (&Ledger, &Sla),
    ) -> Self {
        let others = topology.hosts.iter().filter(|host| !host.is_node);
        let others = others.map(|host| &host.name).chain(&topology.switches);
        let nodes = topology.nodes().map(|node| &node.name);
        let platform = Platform::new(costs);
        let mut network = Network {
            cores: (0..cores)
                .map(|number| free_core(number, &platform, None).with_load(running, &platform, sla))
                .collect(),
            others: others.clone().count(),
            ..Network::default()
        };
        for node in topology.nodes() {
            let own = running_at(running, &peer_of_node(&topology.name, &node.name));
            let room = node_room(node, &mut network.cores, &platform, cores, (&own, sla));
            network.nodes.push(room);
        }
        let vertices: BTreeMap<String, usize> = nodes.chain(others).cloned().zip(0..).collect();
        let links = topology.links.iter();
        let links = links.filter_map(|link| link_room(link, &vertices));
        network.links = links.collect();
        let hosts = topology.hosts.iter().filter(|host| !host.is_node);
        let hosts = hosts.filter_map(|host| vertices.get(&host.name));
        network.ends = hosts.copied().collect();
        network.routed = routed_paths(topology);
        Self { network, vertices }
    }

    /// Takes the rates on links and the memory of a running chain. A chain on nodes that this
    /// network lacks takes nothing.
    fn add_chain(&mut self, chain: &ServiceChain, plan: &Plan, costs: &Costs) -> Option<()> {
        let request = Request::of(chain, plan, costs, self.ends_of(chain)?);
        let problem = Problem::new(&self.network, &request).ok()?;
        let nodes = problem.fixed.iter().copied();
        let nodes: Vec<usize> = nodes.collect::<Option<_>>()?;
        for (hop, curve) in problem.link_loads(&nodes)? {
            let load = &mut self.network.links[hop.link].load[hop.from];
            *load = load.plus(&curve)?;
        }
        for (node, function) in nodes.into_iter().zip(&request.functions) {
            let memory_bytes = &mut self.network.nodes[node].memory_bytes;
            *memory_bytes = memory_bytes.saturating_sub(function.memory_bytes);
        }
        Some(())
    }

    /// Returns the two hosts that are the ports of a chain.
    fn ends_of(&self, chain: &ServiceChain) -> Option<[usize; 2]> {
        let ports = chain.ports.as_ref()?;
        let vertex = |port| self.vertex(Ports::topology_host(port)?.1);
        Some([vertex(&ports.ingress)?, vertex(&ports.egress)?])
    }

    /// Leaves each node the core on which its agent starts the worker of a part: that of the chain
    /// file, else the last one.
    fn restrict_to_core_of(&mut self, chain: &ServiceChain) {
        let Network { nodes, cores, .. } = &mut self.network;
        for node in nodes {
            let is_asked = |core: &&usize| {
                let room = cores.get(**core);
                room.is_some_and(|room| Some(room.number) == chain.worker.core())
            };
            let only = node.cores.iter().find(is_asked).or(node.cores.last());
            node.cores = only.copied().into_iter().collect();
        }
    }

    /// Returns the nodes with a link to a host.
    pub fn neighbours(&self, host: usize) -> Vec<usize> {
        let is_node = |vertex: &usize| *vertex < self.network.nodes.len();
        let links = self.network.links.iter();
        let far = links.filter_map(|link| match link.ends {
            [one, other] if one == host => Some(other),
            [one, other] if other == host => Some(one),
            _ => None,
        });
        far.filter(is_node).collect()
    }

    /// Returns the number of a node, host or switch.
    pub fn vertex(&self, name: &str) -> Option<usize> {
        self.vertices.get(name).copied()
    }
}

/// Places a planned chain between two hosts of a topology, on a machine with this number of cores.
/// The first function runs on a node with a link to the ingress host, the last on a node with a
/// link to the egress host.
///
/// # Errors
/// The constraint that no node or no found placement keeps.
pub fn place_on(
    topology: &Topology,
    (chain, plan): (&ServiceChain, &Plan),
    costs: &Costs,
    cores: u32,
    running: Running<'_>,
) -> Result<Placement, Refusal> {
    let mut of_topology =
        TopologyNetwork::new(topology, costs, cores, (running.ledger, &chain.sla));
    if plan.worker.is_some() {
        of_topology.restrict_to_core_of(chain);
    }
    for (chain, plan) in running.chains {
        of_topology.add_chain(chain, plan, costs);
    }
    let Some([ingress, egress]) = of_topology.ends_of(chain) else {
        let fault = format!(
            "the ports are not two hosts of the topology `{}`",
            topology.name
        );
        return Err(Refusal::Input(fault));
    };
    let request = Request {
        end_nodes: [ingress, egress].map(|host| Some(of_topology.neighbours(host))),
        ..Request::of(chain, plan, costs, [ingress, egress])
    };
    let algorithm = chain.placement.unwrap_or_default();
    place(&of_topology.network, &request, algorithm, SEED)
}

/// Returns the free capacity of a node. Adds the cores of a node with a limit.
fn node_room(
    node: &HostSpec,
    rooms: &mut Vec<CoreRoom>,
    platform: &Platform,
    cores: u32,
    (running, sla): (&Ledger, &Sla),
) -> NodeRoom {
    let numbers = node.cpus.iter().copied().filter(|core| *core < cores);
    let numbers: Vec<u32> = match node.cpus[..] {
        [] => (0..cores).collect(),
        _ => numbers.collect(),
    };
    let limit = node.limits.cpu_millicores;
    let own = if limit.is_none() {
        numbers.iter().map(|number| *number as usize).collect()
    } else {
        // All workers of the node share the limit, so one core stands for all.
        let number = numbers.last().copied().unwrap_or_default();
        rooms.push(free_core(number, platform, limit).with_load(running, platform, sla));
        vec![rooms.len() - 1]
    };
    NodeRoom {
        name: node.name.clone(),
        cores: own,
        memory_bytes: node.limits.memory_bytes.unwrap_or(u64::MAX),
    }
}

/// Returns the chains that another agent runs on cores.
fn running_at(running: &Ledger, peer: &str) -> Ledger {
    let mut own = Ledger::default();
    let bookings = running.bookings();
    for booking in bookings.filter(|booking| booking.is_of_peer(peer)) {
        own.insert(booking.clone());
    }
    own
}

/// Returns a core without load. With a limit, the group of the node may stand still for the rest of
/// each period.
fn free_core(number: u32, platform: &Platform, millicores: Option<u32>) -> CoreRoom {
    let stall_fs = platform.stall_fs(number);
    let share = u128::from(millicores.unwrap_or(WHOLE_CORE).min(WHOLE_CORE));
    let whole = u128::from(WHOLE_CORE);
    let still_fs = QUOTA_PERIOD_FS / whole * (whole - share);
    CoreRoom {
        number,
        service: RateLatency::new(SECOND / whole * share, stall_fs + still_fs),
        load: ArrivalCurve::default(),
        longest_fs: None,
    }
}

/// Returns the paths between all nodes that only routers join.
fn routed_paths(topology: &Topology) -> BTreeMap<(usize, usize), Vec<Hop>> {
    let mut paths = BTreeMap::new();
    if topology.routers().next().is_none() {
        return paths;
    }
    let links = topology.links.iter().map(|link| link.name.as_str());
    let numbers: HashMap<&str, usize> = links.zip(0..).collect();
    let ways = NodeWays::new(topology);
    for (from, one) in topology.nodes().enumerate() {
        for (to, other) in topology.nodes().enumerate().filter(|(to, _)| *to != from) {
            let way = ways.find(&one.name, &other.name);
            if let Some(way) = way.filter(|way| way.addresses.is_some()) {
                paths.insert((from, to), to_hops(&way, &one.name, &numbers));
            }
        }
    }
    paths
}

fn to_hops(way: &NodeWay<'_>, from: &str, numbers: &HashMap<&str, usize>) -> Vec<Hop> {
    let hops = way.links.iter().scan(from, |at, link| {
        let begin = usize::from(link.ends[0] != *at);
        *at = link.far_end(at)?;
        let link = *numbers.get(link.name.as_str())?;
        Some(Hop { link, from: begin })
    });
    hops.collect()
}

fn link_room(link: &LinkSpec, vertices: &BTreeMap<String, usize>) -> Option<LinkRoom> {
    let [one, other] = link.ends.each_ref().map(|end| vertices.get(end).copied());
    // The worse of both directions.
    let both = link.directions();
    let delays = both.map(|one| one.delay_ns.saturating_add(one.jitter_ns));
    let delay_ns = delays.into_iter().fold(0, u64::max);
    Some(LinkRoom {
        name: link.name.clone(),
        ends: [one?, other?],
        delay_fs: u128::from(delay_ns) * NS,
        rate_bps: both.iter().filter_map(|one| one.rate_bps).min(),
        load: Default::default(),
    })
}
