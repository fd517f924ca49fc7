//! Step 2: plans each chain of a file for this node. Inspects the node and makes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use myelin_linux::affinity;
use myelin_linux::ethtool::Ethtool;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_planner::admission::Site;
use myelin_planner::{Costs, Machine, Plan, PortKind};
use myelin_spec::{Hook, Mapping, ServiceChain};

use crate::api::ApiError;
use crate::deploy::revision;
use crate::node::black_box;
use crate::node::chains::{ChainPorts, Chains, Generation, RunningChain};
use crate::node::circuit::{Circuit, find_links_of_ports, find_named_links, key_of_circuit};
use crate::node::mtu::{LARGEST_MTU, MTU};
use crate::node::port_faults;
use crate::node::ports::{Port, PortKey, Ports, read_receive_queues};
use crate::node::workers::Key;
use crate::pool::Pool;

/// The plans of a file's chains.
#[derive(Default)]
pub(crate) struct FilePlans {
    /// New chains and chains that change.
    pub(crate) planned: Vec<PlannedChain>,
    /// Chains that run unchanged.
    pub(crate) unchanged: Vec<Arc<RunningChain>>,
}

/// A chain that comes up or changes.
pub(crate) struct PlannedChain {
    pub(crate) chain: ServiceChain,
    pub(crate) plan: Plan,
    pub(crate) machine: Machine,
    pub(crate) site: Site,
    pub(crate) circuit: CircuitUse,
    /// The running chain, if this is a change.
    pub(crate) running: Option<Arc<RunningChain>>,
    /// Running parts of the same whole on another path, whose packets this part will take.
    pub(crate) takes_over: Vec<String>,
}

/// The circuit of a chain.
#[derive(Debug, Clone)]
pub(crate) struct CircuitUse {
    /// The chain that makes or made the circuit.
    pub(crate) made_by: String,
    /// Whether the chain enters at the circuit's egress.
    pub(crate) is_reversed: bool,
}

/// One of the two interfaces of a chain.
#[derive(Clone)]
struct PlannedPort {
    /// Name in the ledger.
    name: String,
    kind: PortKind,
    /// Speed, bits a second.
    bps: Option<u64>,
    /// Longest IP packet, bytes.
    mtu: Option<u32>,
    queues: u32,
    /// The owner whose worker binds the queues.
    queue_owner: Option<String>,
    /// Whether packets can arrive with wire size and whole checksums without an entry link, because
    /// Myelin made the link or the program that runs the agent says so.
    is_whole: bool,
    /// Whether the interface leads to another node.
    is_wire: bool,
}

impl PlannedPort {
    /// The kind of the port for packets that arrive there.
    fn arrival_kind(&self) -> PortKind {
        match self.kind {
            PortKind::Virtual if self.is_whole => PortKind::EndHost,
            kind => kind,
        }
    }
}

/// The parts of the node that planning inspects.
#[derive(Clone, Copy)]
pub(crate) struct NodeView<'a> {
    pub(crate) chains: &'a Chains,
    pub(crate) circuits: &'a Pool<String, Circuit>,
    pub(crate) ports: &'a Ports,
    /// Whether named interfaces deliver packets of wire size with whole checksums.
    pub(crate) links_are_whole: bool,
}

/// Plans the chains in file order. The caller has reserved their names.
///
/// # Errors
/// A chain that cannot be planned, a change that cannot be made live, or a missing feature of the
/// machine.
pub(crate) fn plan(
    node: NodeView<'_>,
    chains: Vec<ServiceChain>,
    costs: &Costs,
) -> Result<FilePlans, ApiError> {
    let mut plans = FilePlans::default();
    let mut file = FilePlanner::default();
    for chain in chains {
        if let Some(waiting) = node.chains.get_waiting(&chain.name) {
            revision::check_owner(&waiting.chain, &chain)?;
        }
        let running = node.chains.get(&chain.name);
        if let Some(running) = &running {
            let previous = running.generation();
            revision::check_owner(&previous.chain, &chain)?;
            if revision::is_same(&previous.chain, &chain) {
                file.circuits
                    .insert(chain.name, circuit_use(&running.generation().ports));
                plans.unchanged.push(Arc::clone(running));
                continue;
            }
            revision::check_change(running, &chain)?;
        }
        black_box::check(&chain)?;
        plans.planned.push(file.plan(node, chain, running, costs)?);
    }
    revision::check_shared_worker(&node.chains.all(), &plans.planned)?;
    Ok(plans)
}

/// The circuits and queue owners that earlier chains of the same file use.
#[derive(Default)]
struct FilePlanner {
    circuits: BTreeMap<String, CircuitUse>,
    /// For each interface: the owner whose worker will bind its queues.
    queue_owners: BTreeMap<String, String>,
}

impl FilePlanner {
    fn plan(
        &mut self,
        node: NodeView<'_>,
        chain: ServiceChain,
        running: Option<Arc<RunningChain>>,
        costs: &Costs,
    ) -> Result<PlannedChain, ApiError> {
        let circuit = match &running {
            Some(running) if revision::keeps_ports(&running.generation().chain, &chain) => {
                circuit_use(&running.generation().ports)
            }
            _ => self.choose_circuit(node, &chain)?,
        };
        let (machine, site, plan) = if chain.is_driven_by_worker() {
            let machine = planner_machine(PortKind::Native, PortKind::Native);
            let plan = myelin_planner::plan(&chain, costs, &machine).map_err(ApiError::usage)?;
            (machine.clone(), Site::planned(&chain, &machine), plan)
        } else {
            let running = running.as_ref().map(|running| running.generation());
            let kept = running.filter(|running| running.ports.made_by == circuit.made_by);
            let ends = inspect_ports(node, &chain, &circuit, kept.as_deref())?;
            self.plan_between_ports(&chain, &circuit, ends, costs)?
        };
        match &running {
            Some(running) => revision::check_worker(running, &chain, &plan)?,
            None => check_worker(node.chains, &chain, &plan)?,
        }
        self.circuits.insert(chain.name.clone(), circuit.clone());
        let takes_over = find_previous_parts(node.chains, &chain);
        Ok(PlannedChain {
            chain,
            plan,
            machine,
            site,
            circuit,
            running,
            takes_over,
        })
    }

    fn plan_between_ports(
        &mut self,
        chain: &ServiceChain,
        circuit: &CircuitUse,
        [ingress, egress]: [PlannedPort; 2],
        costs: &Costs,
    ) -> Result<(Machine, Site, Plan), ApiError> {
        let machine = Machine {
            egress_bps: egress.bps,
            ingress_mtu: ingress.mtu,
            egress_mtu: egress.mtu,
            circuit: Some(circuit.made_by.clone()),
            ..planner_machine(ingress.arrival_kind(), egress.kind)
        };
        let mut plan = myelin_planner::plan(chain, costs, &machine).map_err(ApiError::usage)?;
        check_mtu(chain, &plan, &ingress)?;
        if plan.binds_ports() {
            let ends = [&ingress, &egress];
            let other_owner = ends
                .into_iter()
                .find_map(|end| self.find_other_queue_owner(end, chain));
            if let Some((interface, owner)) = other_owner {
                plan = plan_distributed(chain, costs, &machine, (&interface, &owner))?;
            }
        }
        if plan.binds_ports() {
            for end in [&ingress, &egress].into_iter().filter(|end| !end.is_wire) {
                let owner = chain.owner().to_owned();
                self.queue_owners.insert(end.name.clone(), owner);
            }
        }
        let site = Site {
            ingress: ingress.name,
            queues: if plan.entry_link { 1 } else { ingress.queues },
            egress: egress.name,
            egress_bps: machine.egress_bps,
            ingress_mtu: machine.ingress_mtu,
        };
        Ok((machine, site, plan))
    }

    /// Returns the reversed circuit of the reverse chain, if that chain runs or is in the same
    /// file. Otherwise returns a new circuit.
    fn choose_circuit(
        &self,
        node: NodeView<'_>,
        chain: &ServiceChain,
    ) -> Result<CircuitUse, ApiError> {
        let reverse = chain.reverse.as_ref().filter(|_| chain.ports.is_none());
        let reverse_circuit = reverse.and_then(|reverse| {
            let running = node.chains.get(reverse);
            let running = running.map(|running| circuit_use(&running.generation().ports));
            running.or_else(|| self.circuits.get(reverse).cloned())
        });
        if let Some(reverse) = reverse_circuit {
            return Ok(CircuitUse {
                is_reversed: !reverse.is_reversed,
                ..reverse
            });
        }
        // The reverse of an earlier chain with this name may still use that chain's circuit.
        let made_by = key_of_circuit(chain);
        if node.circuits.share(&made_by).is_some() {
            let running = node.chains.all();
            let users = running
                .iter()
                .filter(|user| user.generation().ports.made_by == made_by);
            let names: Vec<_> = users.map(|running| running.name.as_str()).collect();
            return Err(ApiError::failed(format!(
                "{}: chain `{}`: the interfaces of an earlier chain of this name still serve {}: run `myelin down {}`, or \
                set `reverse` of this chain to one of them",
                chain.places.chain,
                chain.name,
                names.join(", "),
                names.join(" "),
            )));
        }
        Ok(CircuitUse {
            made_by,
            is_reversed: false,
        })
    }

    /// Returns the interface and the owner, if another owner's worker has bound the interface's
    /// queues.
    fn find_other_queue_owner(
        &self,
        end: &PlannedPort,
        chain: &ServiceChain,
    ) -> Option<(String, String)> {
        if end.is_wire {
            return None;
        }
        let owner = end
            .queue_owner
            .as_ref()
            .or_else(|| self.queue_owners.get(&end.name));
        let owner = owner.filter(|owner| *owner != chain.owner())?;
        Some((end.name.clone(), owner.clone()))
    }
}

/// Returns the running parts of the same whole on other paths. One path has packets at a time.
fn find_previous_parts(chains: &Chains, chain: &ServiceChain) -> Vec<String> {
    let Some(path) = chain.part.as_ref().map(|part| part.path) else {
        return Vec::new();
    };
    let is_previous = |running: &&Arc<RunningChain>| {
        let other = &running.generation().chain;
        let other_path = other.part.as_ref().map(|part| part.path);
        other.whole() == chain.whole() && other.name != chain.name && other_path != Some(path)
    };
    let all = chains.all();
    let previous = all.iter().filter(is_previous);
    previous.map(|running| running.name.clone()).collect()
}

/// Refuses a chain whose worker has failed and still serves other chains.
fn check_worker(chains: &Chains, chain: &ServiceChain, plan: &Plan) -> Result<(), ApiError> {
    let Some(key) = plan.worker.as_ref().map(Key::of) else {
        return Ok(());
    };
    let has_failed_worker = |running: &Arc<RunningChain>| {
        let generation = running.generation();
        let mut workers = generation.layout.workers().into_iter();
        workers.any(|worker| worker.key == key && worker.has_failed())
    };
    let served: Vec<_> = chains.all().into_iter().filter(has_failed_worker).collect();
    if served.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = served.iter().map(|running| running.name.as_str()).collect();
    Err(ApiError::failed(format!(
        "{}: chain `{}`: the chain's worker ended too often and is no longer restarted: run `myelin down {}` first",
        chain.places.name,
        chain.name,
        names.join(" ")
    )))
}

/// Refuses a chain whose functions cannot take the longest packets of its ingress interface.
fn check_mtu(chain: &ServiceChain, plan: &Plan, ingress: &PlannedPort) -> Result<(), ApiError> {
    let mtu = ingress.mtu.unwrap_or(MTU);
    if plan.hook != Hook::Xdp || mtu <= LARGEST_MTU || ingress.is_wire {
        return Ok(());
    }
    let PlannedPort { name, .. } = ingress;
    Err(ApiError::failed(format!(
        "{}: chain `{}`: spec.ports: interface {name} has an MTU of {mtu}, and XDP and user-space functions take IP packets \
         of at most {LARGEST_MTU} bytes: set the MTU of the link's both ends (`ip link set {name} mtu {LARGEST_MTU}`), or write \
         `space: kernel` and `hook: tcx`",
        chain.places.ports, chain.name
    )))
}

fn circuit_use(ports: &ChainPorts) -> CircuitUse {
    CircuitUse {
        made_by: ports.made_by.clone(),
        is_reversed: ports.is_reversed,
    }
}

fn planner_machine(ingress: PortKind, egress: PortKind) -> Machine {
    Machine {
        ingress,
        egress,
        ..Machine::with_end_hosts(affinity::highest_core() + 1)
    }
}

/// Plans the mapping `distributed` for a chain whose port queues have another owner. A queue has
/// one UMEM, and owners share no UMEM.
fn plan_distributed(
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
    (interface, owner): (&str, &str),
) -> Result<Plan, ApiError> {
    let conflict = format!(
        "the queues of {interface} are bound to the worker of owner `{owner}`, and owners share no UMEM"
    );
    let refusal = |reason: &str| {
        ApiError::failed(format!(
            "{}: chain `{}`: {conflict}: {reason}; or give the chain the same namespace, other interfaces, or kernel functions \
             only",
            chain.places.mapping, chain.name
        ))
    };
    if chain.mapping != Mapping::Auto {
        return Err(refusal(
            "write `mapping: auto` or `mapping: distributed`, which give each function its own link",
        ));
    }
    let distributed = ServiceChain {
        mapping: Mapping::Distributed,
        ..chain.clone()
    };
    let mut plan = myelin_planner::plan(&distributed, costs, machine)
        .map_err(|error| refusal(&format!("mapping `distributed` is not possible: {error}")))?;
    plan.mapping_why = conflict;
    Ok(plan)
}

/// Inspects the two interfaces of a chain: those of the running chain, the named interfaces, or
/// those of its end hosts. End hosts may not exist yet.
fn inspect_ports(
    node: NodeView<'_>,
    chain: &ServiceChain,
    circuit: &CircuitUse,
    kept: Option<&Generation>,
) -> Result<[PlannedPort; 2], ApiError> {
    if chain.ports.is_some() {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let links = match kept {
            // The ports of a part are internal links.
            Some(kept) if chain.part.is_none() => {
                let (_, ingress, egress) = kept.ports.kernel_ports()?;
                find_links_of_ports(chain, [ingress, egress], &mut netlink)?
            }
            _ => find_named_links(chain, &mut netlink)?,
        };
        let mut ends = links.map(|link| {
            let port = node.ports.share(&PortKey::Interface(link.index));
            let owner = |key: PortKey| node.ports.share(&key).and_then(|port| port.queue_owner());
            PlannedPort {
                kind: kind_of_link(&link),
                bps: bps_of_link(&link),
                mtu: Some(link.mtu),
                queues: read_receive_queues(&link).unwrap_or(1),
                queue_owner: owner(PortKey::Interface(link.index))
                    .or_else(|| owner(PortKey::BehindLink(link.index))),
                is_wire: false,
                is_whole: node.links_are_whole
                    || port.as_ref().is_some_and(|port| port.sender.is_some()),
                // All chains of a port have one name for it in the ledger, also after a rename.
                name: port.map_or(link.name, |port| port.name.clone()),
            }
        });
        for (end, peer) in ends.iter_mut().zip([chain.from(), chain.to()]) {
            // An internal link leads to the neighbour, whose queues this part alone uses.
            if peer.is_some() {
                (end.is_wire, end.queues, end.queue_owner) = (true, 1, None);
            }
        }
        return Ok(ends);
    }
    let made = node.circuits.share(&circuit.made_by);
    let ports = made.as_ref();
    let end = |role: &str, port: Option<&Port>| PlannedPort {
        name: format!("{role} of {}", circuit.made_by),
        kind: PortKind::EndHost,
        bps: None,
        mtu: Some(MTU),
        queues: 1,
        queue_owner: port.and_then(Port::queue_owner),
        is_whole: true,
        is_wire: false,
    };
    let ingress = end("ingress", ports.map(|circuit| &*circuit.ingress));
    let egress = end("egress", ports.map(|circuit| &*circuit.egress));
    Ok(if circuit.is_reversed {
        [egress, ingress]
    } else {
        [ingress, egress]
    })
}

/// A network card has an empty link kind. A virtual link (veth, bridge, tun) has a name there.
fn kind_of_link(link: &Link) -> PortKind {
    if link.kind.is_empty() {
        PortKind::Native
    } else {
        PortKind::Virtual
    }
}

/// Speed of a network card's link, bits a second.
fn bps_of_link(link: &Link) -> Option<u64> {
    if kind_of_link(link) != PortKind::Native || !link.up {
        return None;
    }
    // `/sys` may show another network namespace than the agent's.
    let speed = Ethtool::open().and_then(|ethtool| ethtool.speed_mbit(&link.name));
    Some(u64::from(speed.ok()??) * 1_000_000)
}

fn find_link(interface: &str) -> Option<Link> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    link.ok()
}

/// The kind of a named port: virtual for the host of a topology. An interface that does not exist
/// counts as a network card.
pub fn port_kind(interface: &str) -> PortKind {
    if myelin_spec::Ports::topology_host(interface).is_some() {
        return PortKind::Virtual;
    }
    find_link(interface).map_or(PortKind::Native, |link| kind_of_link(&link))
}

/// Speed of a network card's link, bits a second. `None`: the interface reports none, or is down.
pub fn link_bps(interface: &str) -> Option<u64> {
    bps_of_link(&find_link(interface)?)
}

/// The longest IP packet that an interface receives, bytes. `None`: no such interface.
pub fn link_mtu(interface: &str) -> Option<u32> {
    Some(find_link(interface)?.mtu)
}

/// Describes why `up` refuses the interfaces of a chain on this machine. Ignores missing
/// interfaces, because the chain may be for another machine.
pub fn find_port_fault(ports: &myelin_spec::Ports) -> Option<String> {
    let (ingress, egress) = (find_link(&ports.ingress), find_link(&ports.egress));
    let mut links = [&ingress, &egress].into_iter().flatten();
    links.find_map(port_faults::find_header_fault).or_else(|| {
        let mut netlink = Netlink::open().ok()?;
        port_faults::find_loop([ingress.as_ref()?, egress.as_ref()?], &mut netlink)
    })
}
