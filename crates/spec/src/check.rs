//! Checks across the objects of one file.

use crate::Objects;
use crate::chain::{Ports, ServiceChain};
use crate::error::{Fault, FaultLog, FileLocation};
use crate::replies;

/// Checks the chains against each other, and completes pairs of reverse chains.
pub(crate) fn check_chains(chains: &mut [ServiceChain], faults: &FaultLog<'_>) {
    check_unique_names(chains, faults);
    complete_reverse_pairs(chains, faults);
    replies::resolve_reverse_of(chains, faults);
    check_chains_over_nodes(chains, faults);
    check_ties(chains, faults);
}

/// Checks that names of topologies are unique, also among chains, and the hosts that chains name
/// as their ports.
pub(crate) fn check_topologies(objects: &Objects, faults: &FaultLog<'_>) {
    for (index, topology) in objects.topologies.iter().enumerate() {
        let chains = objects.chains.iter();
        let others = chains.map(|chain| (&chain.name, &chain.places.name));
        let earlier = objects.topologies[..index].iter();
        let mut others = others.chain(earlier.map(|other| (&other.name, &other.place)));
        if let Some((name, place)) = others.find(|(name, _)| **name == topology.name) {
            let fault = Fault::new(
                format!("the name `{name}` was already given on line {}", place.line),
                "names that differ, also between chains and topologies",
                "rename one of the two",
            );
            *faults.object.borrow_mut() = format!("Topology `{name}`");
            faults.add("metadata.name", faults.span(&topology.place), fault);
        }
    }
    // The manager checks the hosts of a chain over nodes.
    for chain in objects.chains.iter().filter(|chain| !chain.is_over_nodes()) {
        let ports = chain.ports.iter();
        let ports = ports.flat_map(|ports| [&ports.ingress, &ports.egress]);
        for (topology, host) in ports.filter_map(|port| Ports::topology_host(port)) {
            let mut topologies = objects.topologies.iter();
            let found = topologies.find(|found| found.name == topology);
            let problem = found.and_then(|found| found.port_link(host).err());
            if let Some(problem) = problem {
                let expected = "a host whose first link leads to a switch";
                let fault = Fault::new(problem, expected, "name another host");
                log_fault(faults, chain, ("spec.ports", &chain.places.ports), fault);
            }
        }
    }
}

/// Logs a fault of `chain` at a key and its location.
fn log_fault(
    faults: &FaultLog<'_>,
    chain: &ServiceChain,
    (key, place): (&str, &FileLocation),
    fault: Fault,
) {
    *faults.object.borrow_mut() = format!("ServiceChain `{}`", chain.name);
    faults.add(key, faults.span(place), fault);
}

/// Checks that names are unique, also between owners, because the node's network namespaces and
/// links have the names of chains.
fn check_unique_names(chains: &[ServiceChain], faults: &FaultLog<'_>) {
    for (index, chain) in chains.iter().enumerate() {
        let other = chains[..index]
            .iter()
            .find(|other| other.name == chain.name);
        if let Some(other) = other {
            let fault = Fault::new(
                format!(
                    "the chain `{}` was already named on line {}",
                    chain.name, other.places.name.line
                ),
                "names that differ, also between owners",
                "rename one of the two",
            );
            log_fault(faults, chain, ("metadata.name", &chain.places.name), fault);
        }
    }
}

/// Sets `reverse` in both chains of each pair. A chain without ports gets those of the other chain,
/// reversed.
fn complete_reverse_pairs(chains: &mut [ServiceChain], faults: &FaultLog<'_>) {
    for index in 0..chains.len() {
        let chain = &chains[index];
        let Some(reverse) = chain.reverse.clone() else {
            continue;
        };
        let name = chain.name.clone();
        let other = chains.iter().position(|other| other.name == reverse);
        let refused = match other {
            None => Some((
                format!("no chain of this file is called `{reverse}`"),
                "write both chains of a pair into one file, or remove `reverse`".to_owned(),
            )),
            Some(other) if other == index => Some((
                "the chain names itself".to_owned(),
                "name the chain of the replies, or remove `reverse`".to_owned(),
            )),
            Some(other) => match &chains[other].reverse {
                Some(third) if *third != name => Some((
                    format!("`{reverse}` is already the reverse of `{third}`"),
                    format!("write `reverse: {name}` in `{reverse}`, or remove `reverse` here"),
                )),
                _ => None,
            },
        };
        match (other, refused) {
            (Some(other), None) => complete_pair(chains, index, other, faults),
            (_, Some((message, help))) => {
                let expected = "another chain of this file, in no other pair";
                let fault = Fault::new(message, expected, help);
                let chain = &chains[index];
                log_fault(
                    faults,
                    chain,
                    ("spec.reverse", &chain.places.reverse),
                    fault,
                );
            }
            (None, None) => {}
        }
    }
}

fn complete_pair(chains: &mut [ServiceChain], index: usize, other: usize, faults: &FaultLog<'_>) {
    chains[other].reverse = Some(chains[index].name.clone());
    if let Some(chain) = [index, other]
        .map(|i| &chains[i])
        .into_iter()
        .find(|c| c.replay().is_some())
    {
        let fault = Fault::new(
            "ports in memory have one direction, so the chain has no reverse chain",
            "no `reverse`",
            "remove `reverse`, or name interfaces in `spec.ports`",
        );
        // The loop visits each pair twice; one fault is enough.
        if index < other {
            log_fault(faults, chain, ("spec.ports", &chain.places.ports), fault);
        }
        return;
    }
    match (&chains[index].ports, &chains[other].ports) {
        (Some(ports), None) => chains[other].ports = Some(ports.reversed()),
        (None, Some(ports)) => chains[index].ports = Some(ports.reversed()),
        // Each part of a pair has neighbours of its own.
        _ if chains[index].part.is_some() || chains[other].part.is_some() => {}
        // The loop visits each pair twice; one fault is enough.
        (Some(ports), Some(theirs)) if *theirs != ports.reversed() && index < other => {
            let (chain, name) = (&chains[other], &chains[index].name);
            let expected = ports.reversed();
            let fault = Fault::new(
                format!("the ports do not match those of the reverse chain `{name}`"),
                format!("ingress {}, egress {}", expected.ingress, expected.egress),
                "correct the ports, or remove `ports`: Myelin then reverses those of the other chain",
            );
            log_fault(faults, chain, ("spec.ports", &chain.places.ports), fault);
        }
        _ => {}
    }
}

/// Checks that the ports of chains over nodes are two hosts, and completes their pairs: if one
/// chain of a pair is over nodes, both are.
fn check_chains_over_nodes(chains: &mut [ServiceChain], faults: &FaultLog<'_>) {
    for index in 0..chains.len() {
        let chain = &chains[index];
        if !chain.is_over_nodes() {
            continue;
        }
        let topologies = chain.ports.as_ref().and_then(|ports| {
            let topology = |port| Ports::topology_host(port).map(|(topology, _)| topology);
            topology(&ports.ingress).zip(topology(&ports.egress))
        });
        if topologies.is_none_or(|(one, other)| one != other) {
            let ports = match chain.reverse {
                Some(_) => "neither chain of the pair has two hosts of one topology as its ports",
                None => "the ports are not two hosts of one topology",
            };
            let fault = Fault::new(
                format!("the functions run on nodes, but {ports}"),
                "`ports` with two hosts of the topology of the nodes",
                "write for example `ports: { ingress: lab/h1, egress: lab/h2 }`",
            );
            log_fault(faults, chain, ("spec.ports", &chain.places.ports), fault);
        }
        if let Some((at, _)) = chain.replicated().filter(|_| chain.reverse.is_some()) {
            let fault = Fault::new(
                "the function has `replicas`, but the chain has a chain of replies",
                "one of the two, because a pair has one path in each direction",
                "remove `replicas`, or `reverse`; two chains with the same replicas and without \
                 `reverse` take the same nodes",
            );
            let place = &chain.functions[at].place;
            log_fault(faults, chain, ("spec.functions", place), fault);
        }
        let (placement, reverse) = (chain.placement.unwrap_or_default(), chain.reverse.clone());
        let mut others = chains.iter_mut();
        let other = others.find(|other| Some(&other.name) == reverse.as_ref());
        if let Some(other) = other.filter(|other| !other.is_over_nodes()) {
            other.placement = Some(placement);
        }
    }
}

/// Logs two chains of a port whose matches are equally specific and fit some packet.
fn check_ties(chains: &[ServiceChain], faults: &FaultLog<'_>) {
    for (index, chain) in chains.iter().enumerate() {
        let Some(ports) = &chain.ports else { continue };
        // Of a part with a neighbour, the path decides. Each chain has ports in memory of its own.
        if chain.from().is_some() || chain.replay().is_some() {
            continue;
        }
        let mut others = chains[..index].iter();
        let other = others.find(|other| {
            let ingress = other.ports.as_ref().map(|ports| &ports.ingress);
            let is_at_port = other.from().is_none() && ingress == Some(&ports.ingress);
            is_at_port && other.matches.ties_with(&chain.matches)
        });
        if let Some(other) = other {
            let fault = Fault::new(
                format!(
                    "the match is as specific as that of `{}` on line {}, and some packets fit both",
                    other.name, other.places.matches.line
                ),
                format!("matches that differ at the port `{}`", ports.ingress),
                "make one of the two more specific: by destination, source, protocol, destination port or source port",
            );
            log_fault(faults, chain, ("spec.match", &chain.places.matches), fault);
        }
    }
}
