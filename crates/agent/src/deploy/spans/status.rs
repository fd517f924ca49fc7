//! Describes chains over nodes, whole and by part.

use myelin_manager::deployment::NewPart;
use myelin_manager::{PartTakers, find_access};
use myelin_spec::{Ports, arguments};

use super::nodes_of;
use super::takers::Nodes;
use crate::api::{ChainState, ChainUp, Change, SlaContract, SpanEnd, SpanPart, SpanStatus};
use crate::node::Node;
use crate::node::spans::RunningSpan;
use crate::pool::lock;

pub(super) fn describe_up(span: &RunningSpan, change: Change) -> ChainUp {
    let (ingress, egress) = span
        .chain
        .ports
        .as_ref()
        .map_or_else(Default::default, |ports| {
            (ports.ingress.clone(), ports.egress.clone())
        });
    let first = span.deployment.ups.first();
    ChainUp {
        chain: span.chain.name.clone(),
        owner: span.chain.owner().to_owned(),
        change,
        spi: span.path,
        generation: span.generation,
        plan: span.plan.clone(),
        ingress,
        egress,
        hosts: Vec::new(),
        rendering_ms: 0.0,
        exchange_ms: first
            .and_then(|up| up.exchange_ms)
            .filter(|_| change == Change::Changed),
        previous_packets_out: None,
    }
}

/// Describes all chains over nodes, by name.
pub(crate) fn list(node: &Node) -> Vec<SpanStatus> {
    node.spans
        .all()
        .iter()
        .map(|span| describe(node, span))
        .collect()
}

/// Finds the hosts at both ends of a chain, and their interfaces.
fn find_ends(span: &RunningSpan, nodes: &Nodes<'_>) -> [Option<SpanEnd>; 2] {
    let network = lock(&nodes.topology.network);
    let topology = network.topology();
    let parts = &span.deployment.parts;
    let end = |port: Option<&String>, part: Option<&NewPart>| {
        let (port, part) = port.zip(part)?;
        let (_, host) = Ports::topology_host(port)?;
        let link = find_access(topology, host, &part.at.node).ok()?;
        Some(SpanEnd {
            host: port.clone(),
            interface: topology.interface(host, link),
        })
    };
    let ports = span.chain.ports.as_ref();
    let (ingress, egress) = (
        ports.map(|ports| &ports.ingress),
        ports.map(|ports| &ports.egress),
    );
    [end(ingress, parts.first()), end(egress, parts.last())]
}

fn describe(node: &Node, span: &RunningSpan) -> SpanStatus {
    let nodes = nodes_of(node, &span.chain, &span.topology).ok();
    let parts = span.deployment.parts.iter().zip(&span.functions);
    let parts = parts.map(|(NewPart { at: part, .. }, functions)| {
        let status = nodes
            .as_ref()
            .map(|nodes| nodes.status(&part.node, &part.name));
        let status = status.and_then(Result::ok).flatten();
        SpanPart::new((&part.node, &part.name), functions.clone(), status.as_ref())
    });
    let parts: Vec<SpanPart> = parts.collect();
    let states = parts
        .iter()
        .map(|part| part.state.unwrap_or(ChainState::Failed));
    let state = states.clone().find(|state| *state == ChainState::Failed);
    let state = state.or_else(|| states.clone().find(|state| *state != ChainState::Active));
    let links_ns = u64::try_from(span.deployment.links.as_nanos()).unwrap_or(u64::MAX);
    let bound_ns = parts.iter().try_fold(links_ns, |sum, part| {
        Some(sum.saturating_add(part.bound_ns?))
    });
    let before = *lock(&span.earlier_paths);
    let left = match &parts[..] {
        [only] => only.packets_out.saturating_sub(before.first),
        parts => parts.last().map_or(0, |part| part.packets_out),
    };
    let ends = nodes.as_ref().map(|nodes| find_ends(span, nodes));
    let [ingress, egress] = ends.unwrap_or_default();
    SpanStatus {
        chain: span.chain.name.clone(),
        owner: span.chain.owner().to_owned(),
        topology: span.topology.clone(),
        path: span.path,
        generation: span.generation,
        state: state.unwrap_or(ChainState::Active),
        bound_ns,
        latency_ns: span.chain.sla.latency_ns,
        contract: SlaContract::from(&span.chain.sla),
        traffic: arguments::format_match(&span.chain.matches),
        ingress,
        egress,
        links_ns,
        packets_in: before.entered + parts.first().map_or(0, |part| part.packets_in),
        packets_out: before.whole + left,
        parts,
        up_s: span.since.elapsed().as_secs_f64(),
        restored: lock(&span.restored).clone(),
    }
}
