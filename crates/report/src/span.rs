//! Chains over nodes: a list, and the parts of one.

use std::collections::BTreeSet;

use myelin_api::{
    ChainState, NodeEvent, SlaState, SlaStatus, SojournSource, SpanLoss, SpanPart, SpanStatus,
    sojourn_parts,
};

use crate::sla;
use crate::terminal::{Column, add_field, format_ns, format_us, listing, or_dash, wrap};

/// Formats all chains over nodes, one a line.
pub fn overview(spans: &[SpanStatus], width: u16) -> String {
    let columns: [Column<SpanStatus>; 6] = [
        ("chain over nodes", |span| span.chain.clone()),
        ("nodes", |span| format_nodes(&span.parts)),
        ("state", |span| name_of(Some(span.state)).to_owned()),
        (">in", |span| span.packets_in.to_string()),
        (">out", |span| span.packets_out.to_string()),
        (">bound", |span| format_bound(span.bound_ns)),
    ];
    listing(&columns, spans, width)
}

/// Formats the nodes of the parts. The ways through replicas are in brackets.
fn format_nodes(parts: &[SpanPart]) -> String {
    let ways = parts.chunk_by(|one, other| one.replica == other.replica);
    let ways = ways.map(|way| {
        let nodes: Vec<&str> = way.iter().map(|part| part.node.as_str()).collect();
        (
            way.first().is_some_and(|part| part.replica.is_some()),
            nodes.join(" > "),
        )
    });
    let (branches, common): (Vec<_>, Vec<_>) = ways.partition(|(is_branch, _)| *is_branch);
    let mut texts: Vec<String> = common.into_iter().map(|(_, text)| text).collect();
    if !branches.is_empty() {
        let branches: Vec<String> = branches.into_iter().map(|(_, text)| text).collect();
        texts.push(format!("({})", branches.join(" | ")));
    }
    texts.join(" > ")
}

/// Formats the whole and its parts.
pub fn details(span: &SpanStatus, width: u16) -> String {
    type Row<'a> = (&'a SpanStatus, &'a SpanPart);
    let columns: [Column<Row<'_>>; 10] = [
        ("node", |(_, part)| match &part.replica {
            Some(replica) if *replica != part.node => format!("{} after {replica}", part.node),
            _ => part.node.clone(),
        }),
        ("functions", |(_, part)| part.functions.join(", ")),
        ("state", |(_, part)| name_of(part.state).to_owned()),
        (">in", |(_, part)| part.packets_in.to_string()),
        (">out", |(_, part)| part.packets_out.to_string()),
        (">dropped", |(_, part)| part.drops.to_string()),
        (">sojourn p50", |(_, part)| {
            format_sojourn(part, |sojourn| sojourn.p50_us)
        }),
        (">p99 us", |(_, part)| {
            format_sojourn(part, |sojourn| sojourn.p99_us)
        }),
        ("since", |(span, part)| format_since(span, part)),
        (">bound", |(_, part)| format_bound(part.bound_ns)),
    ];
    let mut out = format!(
        "chain {} on the nodes of {}: {}, generation {}, path {}\n",
        span.chain,
        span.topology,
        name_of(Some(span.state)),
        span.generation,
        span.path
    );
    let latency = or_dash(span.latency_ns.map(|ns| format_ns(ns as f64)));
    let bound = format_bound(span.bound_ns);
    let links = format_ns(span.links_ns as f64);
    let text = format!("{bound} of {latency}; of it {links} on the links between the nodes");
    add_field(&mut out, "bound", &text, width);
    add_field(&mut out, "sojourn", &describe_sojourn(span), width);
    if let Some(loss) = &span.loss {
        add_field(&mut out, "loss", &describe_loss(loss), width);
    }
    add_field(
        &mut out,
        "packets",
        &format!("{} in, {} out", span.packets_in, span.packets_out),
        width,
    );
    if let Some(reverse) = &span.reverse {
        add_field(&mut out, "replies", &format!("chain {reverse}"), width);
    }
    if let Some(restored) = &span.restored {
        let text = format!("brought up again: {restored}");
        add_field(&mut out, "event", &text, width);
    }
    let rows: Vec<Row<'_>> = span.parts.iter().map(|part| (span, part)).collect();
    out.push_str(&listing(&columns, &rows, width));
    out.push('\n');
    add_field(&mut out, "a part", "myelin --node NODE ps PART", width);
    out
}

/// Describes the sojourn of the whole, and how it is known.
fn describe_sojourn(span: &SpanStatus) -> String {
    let Some(sojourn) = span.sojourn else {
        return "-".to_owned();
    };
    let [p50, p99] = [sojourn.p50_us, sojourn.p99_us].map(format_us);
    match sojourn.source {
        SojournSource::Measured => {
            format!("p50 {p50} us, p99 {p99} us, measured from the first node to the last")
        }
        SojournSource::Added => {
            let paths = span.paths();
            let parts = paths.iter().flat_map(|path| sojourn_parts(path));
            let nodes: BTreeSet<_> = parts.map(|part| part.node.as_str()).collect();
            let nodes: Vec<_> = nodes.into_iter().collect();
            format!(
                "p50 {p50} us, p99 {p99} us, added of the figures at {}, because times do not reach from node to node; the \
                 links between them take up to {} more",
                nodes.join(", "),
                format_ns(sojourn.links_ns as f64)
            )
        }
    }
}

/// Describes the loss of the whole, the verdict on it, and where packets were lost.
fn describe_loss(loss: &SpanLoss) -> String {
    let measured = loss.loss_percent.map(|percent| format!("{percent:.3} %"));
    let verdict = match (loss.state, loss.violated_now) {
        (SlaState::Violated, true) => format!("violated {} s, now", loss.violated_s),
        (SlaState::Violated, false) => format!("violated {} s", loss.violated_s),
        _ => "kept".to_owned(),
    };
    format!(
        "{} of {} % agreed, {verdict}; {} packets lost in the parts, {} on the links between the nodes",
        or_dash(measured),
        loss.agreed_percent,
        loss.lost_in_parts,
        loss.lost_on_links
    )
}

/// Names the node where the sojourn of a part begins.
fn format_since(span: &SpanStatus, part: &SpanPart) -> String {
    or_dash(
        span.parts
            .get(part.sojourn_from)
            .map(|from| from.node.clone()),
    )
}

/// Formats the last second of each part. The sojourn is that since packets entered the node of the
/// last column.
pub fn last_second(spans: &[SpanStatus], width: u16) -> String {
    type Row<'a> = (&'a SpanStatus, &'a SpanPart);
    let rows = spans
        .iter()
        .flat_map(|span| span.parts.iter().map(move |part| (span, part)));
    let rows: Vec<Row<'_>> = rows.collect();
    let columns: [Column<Row<'_>>; 8] = [
        ("CHAIN OVER NODES", |(span, _)| span.chain.clone()),
        ("NODE", |(_, part)| part.node.clone()),
        ("FUNCTIONS", |(_, part)| part.functions.join(", ")),
        (">IN/s", |(_, part)| {
            figure(part, |sla| Some(sla::format_short(sla.second.in_pps)))
        }),
        (">OUT/s", |(_, part)| {
            figure(part, |sla| Some(sla::format_short(sla.second.out_pps)))
        }),
        (">LOST", |(_, part)| {
            figure(part, |sla| Some(sla.second.lost.total().to_string()))
        }),
        (">us (OWED)", |(_, part)| {
            let owed = figure(part, |sla| Some(format_us(sla.contract.latency_us?)));
            let us = figure(part, |sla| Some(format_us(sla.second.sojourn?.agreed_us)));
            format!("{us} ({owed})")
        }),
        ("SINCE", |(span, part)| format_since(span, part)),
    ];
    listing(&columns, &rows, width)
}

/// Formats a figure of a part's contract, or `-`.
fn figure(part: &SpanPart, of: fn(&SlaStatus) -> Option<String>) -> String {
    or_dash(part.sla.as_deref().and_then(of))
}

fn name_of(state: Option<ChainState>) -> &'static str {
    match state {
        Some(ChainState::Active) => "active",
        Some(ChainState::Waiting) => "waiting",
        Some(ChainState::Failed) => "failed",
        None => "lost",
    }
}

fn format_bound(bound_ns: Option<u64>) -> String {
    or_dash(bound_ns.map(|ns| format_ns(ns as f64)))
}

fn format_sojourn(part: &SpanPart, of: fn(&myelin_api::SojournStatus) -> f64) -> String {
    or_dash(part.sojourn.as_ref().map(|sojourn| format_us(of(sojourn))))
}

/// Formats an event of a node, wrapped under its first line.
pub fn node_event(event: &NodeEvent, width: u16) -> String {
    let NodeEvent {
        time,
        topology,
        node,
        kind,
        text,
        ..
    } = event;
    let line = format!("{time} node {topology}/{node}: {}: {text}", kind.as_str());
    wrap(&line, 2, width)
}
