//! Describes chains over nodes, whole and by part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use myelin_manager::deployment::NewPart;
use myelin_manager::find_access;
use myelin_policy::sla::{PartCounts, SlaTerm, WholeReading};
use myelin_spec::{Ports, arguments};

use super::answers::Answers;
use super::nodes_of;
use super::takers::Nodes;
use crate::api::{
    ChainState, ChainStatus, ChainUp, Change, SlaContract, SojournSource, SpanEnd, SpanPart,
    SpanSojourn, SpanStatus, last_parts, sojourn_parts,
};
use crate::control::sampler::SharedMonitor;
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
    let spans = node.spans.all();
    let answers = Answers::ask(node, spans.iter().map(Arc::as_ref));
    let described = spans.iter().map(|span| describe(node, span, &answers));
    described.collect()
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

/// Adds the bounds of the parts on the slowest path; `None` if a part has no bound.
fn add_bounds(parts: &[SpanPart]) -> Option<u64> {
    let mut sums: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for part in parts {
        let sum = sums.entry(part.replica.as_deref()).or_default();
        *sum = sum.saturating_add(part.bound_ns?);
    }
    let common = sums.remove(&None).unwrap_or_default();
    let slowest = sums.into_values().max().unwrap_or_default();
    Some(common.saturating_add(slowest))
}

/// Describes the parts, each with the part where its sojourn begins: that of the part before it, if
/// packets carry their time from there and both nodes have one clock.
fn describe_parts(
    span: &RunningSpan,
    nodes: Option<&Nodes<'_>>,
    answers: &Answers,
) -> Vec<SpanPart> {
    let mut parts: Vec<SpanPart> = Vec::new();
    let mut replica = None;
    let placed = span.deployment.parts.iter().zip(&span.functions);
    for ((NewPart { at: part, .. }, functions), before) in placed.zip(span.parts_before()) {
        if part.begins_branch {
            replica = Some(part.node.clone());
        }
        let status = answers.status(&span.topology, part);
        let has_one_clock = |before: &&SpanPart| {
            nodes.is_some_and(|nodes| nodes.have_one_clock(&before.node, &part.node))
        };
        let before = before.and_then(|before| parts.get(before));
        let before = before.filter(has_one_clock);
        let before = before.filter(|_| status.is_some_and(carry_time));
        let from = before.map_or(parts.len(), |before| before.sojourn_from);
        let names = (&*part.node, &*part.name);
        let status = (status, from);
        let functions = functions.clone();
        parts.push(SpanPart::new(names, functions, replica.clone(), status));
    }
    parts
}

fn describe(node: &Node, span: &RunningSpan, answers: &Answers) -> SpanStatus {
    let nodes = nodes_of(node, &span.chain, &span.topology).ok();
    let parts = describe_parts(span, nodes.as_ref(), answers);
    let states = parts
        .iter()
        .map(|part| part.state.unwrap_or(ChainState::Failed));
    let state = states.clone().find(|state| *state == ChainState::Failed);
    let state = state.or_else(|| states.clone().find(|state| *state != ChainState::Active));
    let links_ns = u64::try_from(span.deployment.links.as_nanos()).unwrap_or(u64::MAX);
    let bound_ns = add_bounds(&parts).map(|sum| sum.saturating_add(links_ns));
    let before = *lock(&span.earlier_paths);
    let left = match &parts[..] {
        [only] => only.packets_out.saturating_sub(before.first),
        parts => last_parts(parts).map(|part| part.packets_out).sum(),
    };
    let ends = nodes.as_ref().map(|nodes| find_ends(span, nodes));
    let [ingress, egress] = ends.unwrap_or_default();
    let mut described = SpanStatus {
        chain: span.chain.name.clone(),
        owner: span.chain.owner().to_owned(),
        topology: span.topology.clone(),
        reverse: span.chain.reverse.clone(),
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
        policed: before.policed + parts.first().map_or(0, |part| part.policed),
        packets_out: before.whole + left,
        parts,
        up_s: span.since.elapsed().as_secs_f64(),
        restored: lock(&span.restored).clone(),
        sojourn: None,
        loss: span
            .chain
            .sla
            .loss_percent
            .map(|agreed| lock(&span.loss).status(agreed)),
    };
    described.sojourn = add_sojourns(&described, &span.delays_ns);
    described
}

/// Reads the counters of a chain's parts, and judges the loss of the whole since the last reading.
/// Without an answer of each part, the next reading has the packets too.
pub(crate) fn judge_loss(node: &Node, span: &RunningSpan, monitor: &SharedMonitor) {
    let Some(agreed_percent) = span.chain.sla.loss_percent else {
        return;
    };
    let answers = Answers::ask(node, [span]);
    let parts = span.deployment.parts.iter();
    let links = span.parts_before().zip(&span.delays_ns);
    let counts = parts.zip(links).map(|(NewPart { at: part, .. }, link)| {
        let status = answers.status(&span.topology, part)?;
        Some(count_packets(&part.node, status, link))
    });
    let Some(parts) = counts.collect::<Option<Vec<PartCounts>>>() else {
        return;
    };
    let reading = WholeReading {
        chain: span.chain.name.clone(),
        path: span.path,
        // The generations of a chain have one beginning.
        at: span.since.elapsed(),
        end: SystemTime::now(),
        resumed: lock(&span.earlier_paths).resumed,
        parts,
    };
    // In the order in which a reader of all events locks them.
    let mut monitor = lock(monitor);
    let mut loss = lock(&span.loss);
    loss.add(&reading, agreed_percent, monitor.last_serial());
}

/// Returns the counters of a part; the part `before` it is behind links of `delay_ns`.
fn count_packets(
    node: &str,
    status: &ChainStatus,
    (before, delay_ns): (Option<usize>, &u64),
) -> PartCounts {
    let (account, part) = (&status.account, status.part.as_ref());
    let sla = status.sla.as_ref();
    let event = sla.and_then(|sla| sla.last_event.as_ref());
    let event = event.filter(|event| event.end.is_none() && event.terms.contains(&SlaTerm::Loss));
    PartCounts {
        name: status.chain.clone(),
        node: node.to_owned(),
        violation: event.map(|event| (event.cause, event.hop.clone())),
        conformed: account.packets_in.saturating_sub(account.policed),
        lost: sla.map_or(0, |sla| sla.life.lost.total()),
        received: part.and_then(|part| part.received).unwrap_or_default(),
        sent: part.and_then(|part| part.sent).unwrap_or_default(),
        before,
        delay: Duration::from_nanos(*delay_ns),
    }
}

/// Whether the packets that arrived from the previous node carry the time at which they entered.
fn carry_time(status: &ChainStatus) -> bool {
    let part = status.part.as_ref();
    let received = part.and_then(|part| Some((part.stamped, part.received?)));
    received.is_some_and(|(stamped, received)| stamped >= received)
}

/// Returns the sojourn of the whole; with replicas, of the slowest path that packets took.
/// `delays_ns` has the links before each part.
fn add_sojourns(span: &SpanStatus, delays_ns: &[u64]) -> Option<SpanSojourn> {
    let paths = span.paths().into_iter();
    let sojourns = paths.filter_map(|path| add_sojourns_of(&path, delays_ns));
    sojourns.max_by(|one, other| one.p99_us.total_cmp(&other.p99_us))
}

fn add_sojourns_of(path: &[&SpanPart], delays_ns: &[u64]) -> Option<SpanSojourn> {
    let parts = sojourn_parts(path);
    let sojourns = parts.iter().map(|part| part.sojourn.as_ref());
    let sojourns: Vec<_> = sojourns.collect::<Option<_>>()?;
    let between = parts.iter();
    let between = between.filter_map(|part| delays_ns.get(part.sojourn_from));
    Some(SpanSojourn {
        source: if parts.len() > 1 {
            SojournSource::Added
        } else {
            SojournSource::Measured
        },
        p50_us: sojourns.iter().map(|sojourn| sojourn.p50_us).sum(),
        p99_us: sojourns.iter().map(|sojourn| sojourn.p99_us).sum(),
        links_ns: between.copied().fold(0, u64::saturating_add),
    })
}
