//! Step 2 of the road: what each chain of a file needs on this node, and its plan. Looks at the node and makes nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use myelin_linux::affinity;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_planner::admission::Site;
use myelin_planner::{Costs, Machine, Plan, PortKind};
use myelin_spec::{Mapping, ServiceChain, Space};

use crate::api::ApiError;
use crate::deploy::revision;
use crate::node::black_box;
use crate::node::chains::{Chains, Running};
use crate::node::circuit::{Circuit, MTU, named_links};
use crate::node::ports::{Port, receive_queues};
use crate::node::workers::Key;
use crate::pool::Pool;

/// What is to become of the chains of a file.
#[derive(Default)]
pub(crate) struct Drafts {
    /// They come up, or change.
    pub(crate) planned: Vec<Planned>,
    /// They run in this form already.
    pub(crate) unchanged: Vec<Arc<Running>>,
}

/// A chain that is to come up or to change.
pub(crate) struct Planned {
    pub(crate) chain: ServiceChain,
    pub(crate) plan: Plan,
    pub(crate) machine: Machine,
    pub(crate) site: Site,
    pub(crate) location: Location,
    /// The chain as it runs now, where it does.
    pub(crate) running: Option<Arc<Running>>,
}

/// Which ports a chain lies between.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    /// The chain that makes the circuit, or has made it.
    pub(crate) made_by: String,
    /// Whether it enters where that one leaves.
    pub(crate) is_turned: bool,
}

/// One of the two interfaces of a chain.
#[derive(Clone)]
struct End {
    /// As the ledger names it.
    name: String,
    kind: PortKind,
    /// Speed, bits a second.
    bps: Option<u64>,
    /// Longest IP packet, bytes.
    mtu: Option<u32>,
    queues: u32,
    /// Whose worker has its queues.
    bound_to: Option<String>,
}

/// The parts of the node that planning looks at.
#[derive(Clone, Copy)]
pub(crate) struct Surveyed<'a> {
    pub(crate) chains: &'a Chains,
    pub(crate) circuits: &'a Pool<String, Circuit>,
    pub(crate) ports: &'a Pool<u32, Port>,
}

/// Plans the chains of a file, whose names are reserved, in their order.
///
/// # Errors
/// A chain that cannot be planned, a change that cannot be made live, or something that it needs and the machine lacks.
pub(crate) fn plan(
    node: Surveyed<'_>,
    chains: Vec<ServiceChain>,
    costs: &Costs,
) -> Result<Drafts, ApiError> {
    let mut drafts = Drafts::default();
    let mut file = File::default();
    for chain in chains {
        let running = node.chains.get(&chain.name);
        if let Some(running) = &running {
            let was = running.form();
            revision::same_owner(&was.chain, &chain)?;
            if revision::is_same(&was.chain, &chain) {
                file.locations
                    .insert(chain.name, location_of(&running.place));
                drafts.unchanged.push(Arc::clone(running));
                continue;
            }
            revision::check(running, &chain)?;
        }
        black_box::check(&chain)?;
        drafts.planned.push(file.plan(node, chain, running, costs)?);
    }
    Ok(drafts)
}

/// What the chains of a file have in common.
#[derive(Default)]
struct File {
    locations: BTreeMap<String, Location>,
    /// Owners whose workers are going to have the queues of an interface.
    bound: BTreeMap<String, String>,
}

impl File {
    fn plan(
        &mut self,
        node: Surveyed<'_>,
        chain: ServiceChain,
        running: Option<Arc<Running>>,
        costs: &Costs,
    ) -> Result<Planned, ApiError> {
        let location = match &running {
            Some(running) => location_of(&running.place),
            None => self.locate(node, &chain)?,
        };
        let (machine, site, plan) = if chain.is_over_dpdk() {
            let machine = machine(PortKind::Native, PortKind::Native);
            let plan = myelin_planner::plan(&chain, costs, &machine).map_err(ApiError::usage)?;
            (machine.clone(), Site::planned(&chain, &machine), plan)
        } else {
            self.plan_between_ports(node, &chain, &location, costs)?
        };
        match &running {
            Some(running) => revision::check_worker(running, &chain, &plan)?,
            None => check_worker(node.chains, &chain, &location, &plan)?,
        }
        self.locations.insert(chain.name.clone(), location.clone());
        Ok(Planned {
            chain,
            plan,
            machine,
            site,
            location,
            running,
        })
    }

    fn plan_between_ports(
        &mut self,
        node: Surveyed<'_>,
        chain: &ServiceChain,
        location: &Location,
        costs: &Costs,
    ) -> Result<(Machine, Site, Plan), ApiError> {
        let [ingress, egress] = survey(node, chain, location)?;
        let machine = Machine {
            egress_bps: egress.bps,
            ingress_mtu: ingress.mtu,
            ..machine(ingress.kind, egress.kind)
        };
        let mut plan = myelin_planner::plan(chain, costs, &machine).map_err(ApiError::usage)?;
        if plan.binds_ports() {
            let ends = [&ingress, &egress];
            let taken = ends.into_iter().find_map(|end| self.taken(end, chain));
            if let Some((interface, owner)) = taken {
                plan = with_links_of_its_own(chain, costs, &machine, (&interface, &owner))?;
            }
        }
        if plan.binds_ports() {
            for end in [&ingress, &egress] {
                let owner = chain.owner().to_owned();
                self.bound.insert(end.name.clone(), owner);
            }
        }
        let Key { owner, circuit } = Key::of(chain, &location.made_by);
        let site = Site {
            ingress: ingress.name,
            queues: ingress.queues,
            egress: egress.name,
            worker: format!("{owner}@{circuit}"),
            core: chain.worker.core.unwrap_or_else(|| machine.default_core()),
            egress_bps: machine.egress_bps,
            ingress_mtu: machine.ingress_mtu,
        };
        Ok((machine, site, plan))
    }

    /// The circuit of the chain's reverse, the other way round, where that one runs or comes up with the same file; else a
    /// circuit of its own.
    fn locate(&self, node: Surveyed<'_>, chain: &ServiceChain) -> Result<Location, ApiError> {
        let reverse = chain.reverse.as_ref().filter(|_| chain.ports.is_none());
        let its_location = reverse.and_then(|reverse| {
            let running = node.chains.get(reverse);
            let running = running.map(|running| location_of(&running.place));
            running.or_else(|| self.locations.get(reverse).cloned())
        });
        if let Some(reverse) = its_location {
            return Ok(Location {
                is_turned: !reverse.is_turned,
                ..reverse
            });
        }
        // Its reverse may have outlived an earlier chain of this name, and still lie on that one's circuit.
        if node.circuits.share(&chain.name).is_some() {
            let running = node.chains.all();
            let there = running.iter().filter(|one| one.place.made_by == chain.name);
            let names: Vec<_> = there.map(|running| running.name.as_str()).collect();
            return Err(ApiError::failed(format!(
                "{}: chain `{}`: the interfaces of an earlier chain of this name still serve {}: `myelin down {}` first, or \
                 let `reverse` name it",
                chain.places.chain,
                chain.name,
                names.join(", "),
                names.join(" "),
            )));
        }
        Ok(Location {
            made_by: chain.name.clone(),
            is_turned: false,
        })
    }

    /// An interface whose queues another owner's worker has, or is going to have, with that owner.
    fn taken(&self, end: &End, chain: &ServiceChain) -> Option<(String, String)> {
        let owner = end.bound_to.as_ref().or_else(|| self.bound.get(&end.name));
        let owner = owner.filter(|owner| *owner != chain.owner())?;
        Some((end.name.clone(), owner.clone()))
    }
}

/// Refuses a chain whose worker was given up while it served others.
fn check_worker(
    chains: &Chains,
    chain: &ServiceChain,
    location: &Location,
    plan: &Plan,
) -> Result<(), ApiError> {
    if !plan.uses(Space::User) {
        return Ok(());
    }
    let key = Key::of(chain, &location.made_by);
    let has_lost_it = |running: &Arc<Running>| {
        let form = running.form();
        let mut workers = form.layout.workers().into_iter();
        workers.any(|worker| worker.key == key && worker.has_failed())
    };
    let served: Vec<_> = chains.all().into_iter().filter(has_lost_it).collect();
    if served.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = served.iter().map(|one| one.name.as_str()).collect();
    Err(ApiError::failed(format!(
        "{}: chain `{}`: the worker that would serve it kept dying and was given up: `myelin down {}` first",
        chain.places.name,
        chain.name,
        names.join(" ")
    )))
}

fn location_of(place: &crate::node::chains::Place) -> Location {
    Location {
        made_by: place.made_by.clone(),
        is_turned: place.is_turned,
    }
}

fn machine(ingress: PortKind, egress: PortKind) -> Machine {
    Machine {
        ingress,
        egress,
        ..Machine::with_end_hosts(affinity::cores())
    }
}

/// A chain whose worker cannot have the queues of its ports: a queue has one packet memory, and that has one owner.
fn with_links_of_its_own(
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
    (interface, owner): (&str, &str),
) -> Result<Plan, ApiError> {
    let why = format!(
        "the queues of {interface} are bound to the worker of owner `{owner}`, and owners share no frames"
    );
    let refusal = |reason: &str| {
        ApiError::failed(format!(
            "{}: chain `{}`: {why}: {reason}; or give the chain that one's namespace, other interfaces, or kernel functions \
             only",
            chain.places.mapping, chain.name
        ))
    };
    if chain.mapping != Mapping::Auto {
        return Err(refusal(
            "let its mapping be `auto` or `distributed`, which gives its functions links of their own",
        ));
    }
    let apart = ServiceChain {
        mapping: Mapping::Distributed,
        ..chain.clone()
    };
    let mut plan = myelin_planner::plan(&apart, costs, machine)
        .map_err(|error| refusal(&format!("links of its own are not possible: {error}")))?;
    plan.mapping_why = why;
    Ok(plan)
}

/// The ends of a chain: interfaces that it names, or those of end hosts, which need not be there yet.
fn survey(
    node: Surveyed<'_>,
    chain: &ServiceChain,
    location: &Location,
) -> Result<[End; 2], ApiError> {
    if chain.ports.is_some() {
        let mut netlink = Netlink::open().map_err(ApiError::failed)?;
        let links = named_links(chain, &mut netlink)?;
        return Ok(links.map(|link| {
            let port = node.ports.share(&link.index);
            End {
                kind: kind_of(&link),
                bps: bps_of(&link),
                mtu: Some(link.mtu),
                queues: receive_queues(&link).unwrap_or(1),
                bound_to: port.and_then(|port| port.bound_to()),
                name: link.name,
            }
        }));
    }
    let circuit = node.circuits.share(&location.made_by);
    let ports = circuit.as_ref();
    let end = |which: &str, port: Option<&Port>| End {
        name: format!("{} of {}", which, location.made_by),
        kind: PortKind::EndHost,
        bps: None,
        mtu: Some(MTU),
        queues: 1,
        bound_to: port.and_then(Port::bound_to),
    };
    let ingress = end("ingress", ports.map(|circuit| &*circuit.ingress));
    let egress = end("egress", ports.map(|circuit| &*circuit.egress));
    Ok(if location.is_turned {
        [egress, ingress]
    } else {
        [ingress, egress]
    })
}

/// A network card has no kind; what has one (veth, bridge, tun) is virtual.
fn kind_of(link: &Link) -> PortKind {
    if link.kind.is_empty() {
        PortKind::Native
    } else {
        PortKind::Virtual
    }
}

/// Speed of a network card's link, bits a second.
fn bps_of(link: &Link) -> Option<u64> {
    if kind_of(link) != PortKind::Native {
        return None;
    }
    let path = Path::new("/sys/class/net").join(&link.name).join("speed");
    let mbit: i64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let mbit = u64::try_from(mbit).ok().filter(|mbit| *mbit > 0)?;
    mbit.checked_mul(1_000_000)
}

fn link(interface: &str) -> Option<Link> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(interface));
    link.ok()
}

/// What kind of port a named interface is; one that is not here is taken for a network card.
pub fn port_kind(interface: &str) -> PortKind {
    link(interface).map_or(PortKind::Native, |link| kind_of(&link))
}

/// Speed of a network card's link, bits a second; `None` where the interface has none, or it is not up.
pub fn link_bps(interface: &str) -> Option<u64> {
    bps_of(&link(interface)?)
}

/// The longest IP packet that an interface takes in, bytes; `None` where there is no such interface.
pub fn link_mtu(interface: &str) -> Option<u32> {
    Some(link(interface)?.mtu)
}
