//! Chains over nodes: a list, and the parts of one.

use myelin_api::{ChainState, SlaStatus, SpanPart, SpanStatus};

use crate::sla;
use crate::terminal::{Column, add_field, format_ns, format_us, listing, or_dash};

/// Formats all chains over nodes, one a line.
pub fn overview(spans: &[SpanStatus], width: u16) -> String {
    let columns: [Column<SpanStatus>; 6] = [
        ("chain over nodes", |span| span.chain.clone()),
        ("nodes", |span| {
            let nodes: Vec<_> = span.parts.iter().map(|part| part.node.as_str()).collect();
            nodes.join(" > ")
        }),
        ("state", |span| name_of(Some(span.state)).to_owned()),
        (">in", |span| span.packets_in.to_string()),
        (">out", |span| span.packets_out.to_string()),
        (">bound", |span| format_bound(span.bound_ns)),
    ];
    listing(&columns, spans, width)
}

/// Formats the whole and its parts.
pub fn details(span: &SpanStatus, width: u16) -> String {
    let columns: [Column<SpanPart>; 9] = [
        ("node", |part| part.node.clone()),
        ("functions", |part| part.functions.join(", ")),
        ("state", |part| name_of(part.state).to_owned()),
        (">in", |part| part.packets_in.to_string()),
        (">out", |part| part.packets_out.to_string()),
        (">dropped", |part| part.drops.to_string()),
        (">sojourn p50", |part| {
            format_sojourn(part, |sojourn| sojourn.p50_us)
        }),
        (">p99 us", |part| {
            format_sojourn(part, |sojourn| sojourn.p99_us)
        }),
        (">bound", |part| format_bound(part.bound_ns)),
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
    out.push_str(&listing(&columns, &span.parts, width));
    out.push('\n');
    add_field(&mut out, "a part", "myelin --node NODE ps PART", width);
    out
}

/// Formats the last second of each part. The sojourn is that since packets entered the whole chain,
/// where they carry their time.
pub fn last_second(spans: &[SpanStatus], width: u16) -> String {
    type Row<'a> = (&'a SpanStatus, &'a SpanPart);
    let rows = spans
        .iter()
        .flat_map(|span| span.parts.iter().map(move |part| (span, part)));
    let rows: Vec<Row<'_>> = rows.collect();
    let columns: [Column<Row<'_>>; 7] = [
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
