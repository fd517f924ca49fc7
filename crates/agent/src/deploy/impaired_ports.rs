//! Refuses chains whose packets would pass beside the emulated delay of a link.
//!
//! The delay line and netem take packets at tcx and at the queueing discipline of a switch's port.
//! XDP takes packets before, and XDP and AF_XDP transmit behind.

use myelin_emulator::Network;
use myelin_planner::Plan;
use myelin_spec::{Hook, LinkEmulation, LinkSpec, Mapping, ServiceChain, Space};

use super::plan::PlannedChain;
use crate::api::ApiError;
use crate::node::Node;
use crate::pool::lock;

/// Refuses planned chains at ports whose links have delay, rate or loss. Their ports are resolved.
///
/// # Errors
/// A chain whose packets the link would not delay. The error has the position in the file.
pub(crate) fn check_chains(node: &Node, planned: &[PlannedChain]) -> Result<(), ApiError> {
    let topologies = node.topologies.all();
    for PlannedChain { chain, plan, .. } in planned {
        for topology in &topologies {
            let network = lock(&topology.network);
            for link in links_of(&network, chain).filter(|(link, _)| link.is_impaired()) {
                if let Some((why, remedy)) = find_bypass(link, plan) {
                    let (place, name) = (&chain.places.ports, &chain.name);
                    let (topology, link) = (&topology.name, &link.0.name);
                    return Err(ApiError::failed(format!(
                        "{place}: chain `{name}`: the link `{link}` of the topology `{topology}` has delay, rate or \
                         loss, and {why}: {remedy}, or give them to another link"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Refuses delay, rate and loss of the link at this position, if packets of a running chain would
/// pass beside them.
///
/// # Errors
/// Such a chain runs.
pub(crate) fn check_link(node: &Node, network: &Network, position: usize) -> Result<(), ApiError> {
    for running in node.chains.all() {
        let generation = running.generation();
        let chain = &generation.chain;
        let name = &network.topology().links[position].name;
        let mut links = links_of(network, chain).filter(|(link, _)| link.name == *name);
        if let Some((why, remedy)) = links.find_map(|link| find_bypass(link, &generation.plan)) {
            return Err(ApiError::failed(format!(
                "link `{name}`: the chain `{}` uses its port, and {why}: {remedy}, or change another link",
                chain.name
            )));
        }
    }
    Ok(())
}

/// The links at whose switch a chain has a port, each with whether the port is its ingress.
fn links_of<'n>(
    network: &'n Network,
    chain: &ServiceChain,
) -> impl Iterator<Item = (&'n LinkSpec, bool)> {
    let ports = chain.ports.clone();
    let ports = ports
        .into_iter()
        .flat_map(|ports| [(ports.ingress, true), (ports.egress, false)]);
    ports.filter_map(|(port, is_ingress)| {
        let mut links = network.links();
        let found = links.find(|(_, ends, _)| {
            let mut ends = ends.iter();
            ends.any(|end| end.netns.is_none() && end.interface == port)
        });
        found.map(|(link, ..)| (link, is_ingress))
    })
}

/// Why the packets of a chain pass beside the delay at its port, and the remedy.
fn find_bypass(
    (link, is_ingress): (&LinkSpec, bool),
    plan: &Plan,
) -> Option<(&'static str, &'static str)> {
    let is_at_xdp = plan.hook == Hook::Xdp;
    if is_ingress {
        // netem delays these packets at the host, before they arrive.
        let is_passed = is_at_xdp && !plan.entry_link && link.by == LinkEmulation::DelayLine;
        return is_passed.then_some((
            "XDP takes the chain's packets at the port before the delay",
            "write `hook: tcx`",
        ));
    }
    let last = plan.segments.last().map(|segment| segment.space);
    match (plan.mapping, last) {
        _ if plan.super_packets => None,
        (Mapping::Compact | Mapping::Pipeline, Some(Space::User)) => Some((
            "the chain's worker transmits over AF_XDP behind the delay",
            "let a function with `space: kernel` be the last one",
        )),
        _ if is_at_xdp => Some((
            "XDP transmits the chain's packets behind the delay",
            "write `hook: tcx`",
        )),
        _ => None,
    }
}
