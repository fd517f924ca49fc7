//! Makes, changes and removes topologies, and finds the interfaces of hosts that chains name as
//! their ports.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use myelin_emulator::{Network, Run};
use myelin_spec::{Ports, ServiceChain, Topology};

use super::impaired_ports;
use crate::api::{ApiError, LinkChange, LinkRequest, TopologyLink};
use crate::deploy::growth::Growing;
use crate::node::delay_line::LineSlot;
use crate::node::host_containers::HostContainers;
use crate::node::node_agents::NodeAgent;
use crate::node::openflow::{self, OpenFlow};
use crate::node::topologies::RunningTopology;
use crate::node::{Node, netem};
use crate::pool::{lock, wait_until_unique};

/// New topologies of a request, and additions to running ones. Dropping the value removes them,
/// unless they are kept.
pub(crate) struct NewTopologies<'a> {
    node: &'a Node,
    names: Vec<String>,
    growing: Vec<Growing>,
}

impl NewTopologies<'_> {
    /// Keeps the topologies, because the request has succeeded, and removes what the description of
    /// a running one lacks.
    ///
    /// # Errors
    /// A part could not be removed. All else is as the request wants it.
    pub(crate) fn keep(mut self) -> Result<(), ApiError> {
        self.names.clear();
        let node = self.node;
        let kept: Vec<_> = self.growing.drain(..).map(|one| one.keep(node)).collect();
        kept.into_iter().collect()
    }
}

impl Drop for NewTopologies<'_> {
    fn drop(&mut self) {
        for name in self.names.iter().rev() {
            if let Some(topology) = self.node.topologies.get(name) {
                take_down(self.node, topology);
            }
        }
    }
}

/// Refuses names that a running object of the other type has.
pub(crate) fn check_names(
    node: &Node,
    chains: &[ServiceChain],
    topologies: &[Topology],
) -> Result<(), ApiError> {
    let of_topology = chains.iter().find(|chain| {
        let name = &chain.name;
        node.topologies.get(name).is_some()
    });
    if let Some(ServiceChain { name, places, .. }) = of_topology {
        let place = &places.name;
        return Err(ApiError::failed(format!(
            "{place}: chain `{name}`: a topology of that name runs: rename the chain, or run `myelin down {name}`"
        )));
    }
    let runs =
        |name: &str| node.chains.get(name).is_some() || node.chains.get_waiting(name).is_some();
    let moved = chains.iter().find(|chain| {
        if chain.is_over_nodes() {
            runs(&chain.name)
        } else {
            node.spans.get(&chain.name).is_some()
        }
    });
    if let Some(ServiceChain { name, places, .. }) = moved {
        let place = &places.name;
        return Err(ApiError::failed(format!(
            "{place}: chain `{name}`: a chain of that name runs, and a chain does not change live between one node and \
             nodes of a topology: run `myelin down {name}` first"
        )));
    }
    let of_chain = topologies
        .iter()
        .find(|topology| runs(&topology.name) || node.spans.get(&topology.name).is_some());
    of_chain.map_or(Ok(()), |Topology { name, place, .. }| {
        Err(ApiError::failed(format!(
            "{place}: topology `{name}`: a chain of that name runs: rename the topology, or run `myelin down {name}`"
        )))
    })
}

/// Refuses topologies, because `run` removes at its end all chains of its file, and measures only
/// chains with end hosts of their own.
pub(crate) fn refuse_all(topologies: &[Topology]) -> Result<(), ApiError> {
    topologies.first().map_or(Ok(()), |topology| {
        Err(ApiError::usage(format!(
            "{}: topology `{}`: `run` makes no topologies: use `up`",
            topology.place, topology.name
        )))
    })
}

/// Makes all topologies of a file, or none. A running topology gets the hosts, switches and links
/// that its description has more; those that it lacks go when the request is kept. The caller has
/// reserved their names.
///
/// # Errors
/// The description of a running topology changes a part, or lacks one that a chain uses, or a
/// topology cannot be made.
pub(crate) fn make<'a>(
    node: &'a Node,
    topologies: &[Topology],
) -> Result<NewTopologies<'a>, ApiError> {
    let mut made = NewTopologies {
        node,
        names: Vec::new(),
        growing: Vec::new(),
    };
    for topology in topologies {
        let (name, place) = (&topology.name, &topology.place);
        let failed =
            |cause: String| ApiError::failed(format!("{place}: topology `{name}`: {cause}"));
        netem::check(topology).map_err(failed)?;
        if let Some(running) = node.topologies.get(name) {
            if let Some(growing) = Growing::start(node, &running, topology)? {
                made.growing.push(growing);
            }
            continue;
        }
        let start = Instant::now();
        openflow::check(topology)?;
        let run = Run {
            id: &node.parts.run_id,
            cgroup: &node.parts.cgroup,
        };
        let network = Network::create(run, topology, &node.parts.journal)
            .map_err(|error| ApiError::failed(format!("{place}: {error}")))?;
        let line = LineSlot::default();
        line.impair_from(0, &node.parts, &network)
            .map_err(|error| ApiError::failed(format!("{place}: topology `{name}`: {error}")))?;
        netem::impair_from(0, &network).map_err(failed)?;
        node.ledger.share()?;
        let nodes = NodeAgent::start_all(&node.parts, &network)
            .map_err(|error| ApiError::failed(format!("{place}: topology `{name}`: {error}")))?;
        let openflow = OpenFlow::start(&node.parts, &network)
            .map_err(|error| ApiError::failed(format!("{place}: topology `{name}`: {error}")))?;
        let made_ms = start.elapsed().as_secs_f64() * 1e3;
        tracing::info!(topology = name, made_ms, "up");
        node.topologies.insert(RunningTopology {
            name: name.clone(),
            declared: Mutex::new(topology.clone()),
            containers: HostContainers::default(),
            nodes,
            openflow,
            network: Mutex::new(network),
            line,
            made_ms,
        });
        made.names.push(name.clone());
    }
    Ok(made)
}

/// Removes a topology. Returns false when no topology has that name.
///
/// # Errors
/// Chains use an interface of the topology, or the agent is stopping.
pub(crate) fn down(node: &Node, name: &str) -> Result<bool, ApiError> {
    let names = BTreeSet::from([name.to_owned()]);
    let _reserved = node.chains.reserved.reserve(names, &|| false)?;
    let Some(topology) = node.topologies.get(name) else {
        return Ok(false);
    };
    let users = users_of(node, &topology, &Network::owns_interface);
    if !users.is_empty() {
        return Err(ApiError::failed(format!(
            "topology `{name}`: its hosts are the ports of chains: run `myelin down {}` first",
            users.join(" ")
        )));
    }
    take_down(node, topology);
    Ok(true)
}

/// The chains that use such interfaces of the topology, and all chains over its nodes.
pub(crate) fn users_of(
    node: &Node,
    topology: &RunningTopology,
    is_used: &dyn Fn(&Network, &str) -> bool,
) -> Vec<String> {
    let running = node.chains.all();
    let waiting = node.chains.all_waiting();
    let running = running.iter().map(|running| {
        let generation = running.generation();
        (running.name.clone(), generation.chain.ports.clone())
    });
    let waiting = waiting.iter().map(|waiting| {
        let chain = &waiting.chain;
        (chain.name.clone(), chain.ports.clone())
    });
    let network = lock(&topology.network);
    let uses = |(_, ports): &(String, Option<Ports>)| {
        let ports = ports
            .iter()
            .flat_map(|ports| [&ports.ingress, &ports.egress]);
        ports.into_iter().any(|port| is_used(&network, port))
    };
    let spans = node.spans.all();
    let spans = spans.iter().filter(|span| span.topology == topology.name);
    let users: BTreeSet<String> = running
        .chain(waiting)
        .filter(uses)
        .map(|(name, _)| name)
        .chain(spans.map(|span| span.chain.name.clone()))
        .collect();
    users.into_iter().collect()
}

/// Removes a topology that no chain uses. The caller has reserved its name.
pub(crate) fn take_down(node: &Node, topology: Arc<RunningTopology>) {
    let name = topology.name.clone();
    drop(node.topologies.remove(&name));
    topology.containers.interrupt_starts();
    // Readers hold a topology briefly.
    drop(wait_until_unique(topology));
    tracing::info!(topology = name, "down");
}

/// Changes a link of a running topology.
///
/// # Errors
/// No such topology or link, a change that cannot be made, or a system error.
pub(crate) fn change_link(node: &Node, request: &LinkRequest) -> Result<TopologyLink, ApiError> {
    let name = find_topology(node, request)?;
    let names = BTreeSet::from([name.clone()]);
    let _reserved = node.chains.reserved.reserve(names, &|| false)?;
    let topology = node.topologies.get(&name);
    let topology = topology.ok_or_else(|| not_running(&name))?;
    let mut network = lock(&topology.network);
    let link = &request.link;
    let position = {
        let topology = network.topology();
        let found = topology.link(link).map(|found| &found.name);
        let mut links = topology.links.iter();
        found.and_then(|found| links.position(|other| other.name == *found))
    };
    let position = position.ok_or_else(|| {
        let topology = network.topology();
        ApiError::failed(format!("topology `{name}`: {}", topology.no_link(link)))
    })?;
    let changed = match &request.change {
        LinkChange::Up => network.set_link_up(link, true).map_err(ApiError::failed),
        LinkChange::Down => network.set_link_up(link, false).map_err(ApiError::failed),
        LinkChange::Move(to) => network.move_link(link, to).map_err(ApiError::failed),
        LinkChange::Impair(change) => {
            impaired_ports::check_link(node, &network, position)?;
            let slot = &topology.line;
            let change = (change, request.from.as_deref());
            slot.change(&node.parts, &mut network, position, change)
        }
    };
    changed?;
    drop(network);
    let changed = topology.status().links.into_iter();
    let mut changed = changed.skip(position);
    changed
        .next()
        .ok_or_else(|| ApiError::failed(format!("topology `{name}` has no link `{link}`")))
}

/// Finds the topology of the request: the named one, or the only one with such a link.
fn find_topology(node: &Node, request: &LinkRequest) -> Result<String, ApiError> {
    if let Some(name) = &request.topology {
        let running = node.topologies.get(name);
        return running.map_or_else(|| Err(not_running(name)), |_| Ok(name.clone()));
    }
    let link = &request.link;
    let all = node.topologies.all();
    let has_link = |topology: &&Arc<RunningTopology>| {
        let network = lock(&topology.network);
        network.topology().link(link).is_some()
    };
    let found: Vec<_> = all.iter().filter(has_link).collect();
    let names: Vec<&str> = found
        .iter()
        .map(|topology| topology.name.as_str())
        .collect();
    match names[..] {
        [name] => Ok(name.to_owned()),
        [] => Err(ApiError::failed(format!(
            "no running topology has a link `{link}`: `myelin ps TOPOLOGY` lists the links"
        ))),
        _ => Err(ApiError::usage(format!(
            "several topologies have a link `{link}`: write TOPOLOGY/{link} ({})",
            names.join(", ")
        ))),
    }
}

fn not_running(name: &str) -> ApiError {
    ApiError::failed(format!(
        "no topology `{name}` runs; `myelin ps` lists the running topologies"
    ))
}

/// The hosts that chains name as their ports: topology and host.
pub(crate) fn named_hosts(chains: &[ServiceChain]) -> impl Iterator<Item = (&str, &str)> {
    let ports = chains.iter().filter_map(|chain| chain.ports.as_ref());
    let ports = ports.flat_map(|ports| [&ports.ingress, &ports.egress]);
    ports.filter_map(|port| Ports::topology_host(port))
}

/// Replaces the hosts that chains name as their ports by the interfaces where the hosts' packets
/// arrive at their switches.
///
/// # Errors
/// No such topology runs, or the host has no such interface. The error has the position in the
/// file.
pub(crate) fn resolve_ports(node: &Node, chains: &mut [ServiceChain]) -> Result<(), ApiError> {
    for chain in chains {
        let Some(ports) = &mut chain.ports else {
            continue;
        };
        for port in [&mut ports.ingress, &mut ports.egress] {
            let Some((topology, host)) = Ports::topology_host(port) else {
                continue;
            };
            let failed = |reason: String| {
                let (place, name) = (&chain.places.ports, &chain.name);
                ApiError::failed(format!("{place}: chain `{name}`: spec.ports: {reason}"))
            };
            let running = node.topologies.get(topology).ok_or_else(|| {
                failed(format!(
                    "no topology `{topology}` runs: `myelin up` its file first, or write it into this file"
                ))
            })?;
            let network = lock(&running.network);
            let interface = network.port_of(host);
            let interface = interface.map_err(|error| failed(error.to_string()))?;
            *port = interface.to_owned();
        }
    }
    Ok(())
}
