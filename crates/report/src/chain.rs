//! The report of a chain's run: [`text`] for a terminal, [`page()`] as HTML.

mod delays;
mod page;
mod sections;

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use myelin_metrics::chain::{Flood, Hop, Traffic};
use myelin_metrics::envelope::Claim;
use myelin_metrics::{ChainReport, Environment, ProbeResult};
use serde_json::Value;

use crate::terminal::{self, Column, Histogram, Style, digits_or_dash};

pub use page::page;

/// What a person sees in the terminal.
pub fn text(report: &ChainReport, style: Style) -> String {
    let mut out = format!("chain {}\n", report.chain);
    // Writing into a String cannot fail.
    let summaries = report.probes.iter();
    let columns: Vec<_> = summaries
        .filter_map(|(name, probe)| Some((name.as_str(), probe.rtt.as_ref()?)))
        .collect();
    if !columns.is_empty() {
        let table = terminal::latency_table(&columns, style);
        let _ = writeln!(out, "\nround trip, us\n{table}");
    }
    let _ = writeln!(out, "{}", listed(&PROBES, &report.probes, style));
    out.push_str(&sojourns(report, style));
    let _ = writeln!(out, "\n{}", listed(&HOPS, &report.hops, style));
    let _ = writeln!(out, "\n{}", account(&report.traffic));
    if !report.floods.is_empty() {
        let _ = writeln!(out, "\n{}", listed(&FLOODS, &report.floods, style));
    }
    if let Some(shares) = report.cpu.as_ref().and_then(|cpu| cpu.overall) {
        let parts = shares
            .parts()
            .map(|(name, share)| format!("{name} {}", terminal::format_share(share)));
        let _ = writeln!(out, "\nCPU, all cores, first row: {}", parts.join(", "));
    }
    verdict(&mut out, report, style);
    out
}

fn listed<T>(columns: &[Column<T>], items: &[T], style: Style) -> String {
    let (head, rows) = terminal::head_and_rows(columns, items);
    terminal::table(&head, &rows, style)
}

/// The table of the probes' packets.
const PROBES: [Column<(String, ProbeResult)>; 6] = [
    ("probe", |(name, _)| name.clone()),
    ("sent", |(_, probe)| probe.counts.sent.to_string()),
    ("lost", |(_, probe)| probe.counts.lost.to_string()),
    ("reordered", |(_, probe)| probe.counts.reordered.to_string()),
    ("duplicates", |(_, probe)| {
        probe.counts.duplicates.to_string()
    }),
    ("corrupted", |(_, probe)| probe.counts.corrupted.to_string()),
];

fn sojourns(report: &ChainReport, style: Style) -> String {
    let mut out = String::new();
    let full = report.sojourns.iter();
    for (name, sojourn) in full.filter(|(_, sojourn)| !sojourn.is_empty()) {
        let part = match name.as_str() {
            "chain" => "front door to egress",
            section => section,
        };
        let histogram = Histogram {
            delays: sojourn,
            bound_us: report.latency_bound_us,
        };
        let histogram = histogram.render(style);
        let _ = writeln!(out, "\nsojourn of all traffic, {part}\n{histogram}");
    }
    out
}

/// The table of hops.
const HOPS: [Column<Hop>; 8] = [
    ("hop", |hop| hop.name.clone()),
    ("kind", |hop| hop.kind.clone()),
    ("space", |hop| hop.space.clone()),
    ("in", |hop| packets(hop, hop.packets_in)),
    ("out", |hop| packets(hop, hop.packets_out)),
    ("drops", |hop| packets(hop, hop.drops)),
    ("predicted ns", |hop| digits_or_dash(0, hop.predicted_ns)),
    ("measured ns", |hop| digits_or_dash(0, hop.measured_ns)),
];

/// Packets at a function. Front door and egress have no count of their own: the line below the table has them.
fn packets(hop: &Hop, packets: u64) -> String {
    match hop.kind.as_str() {
        "" => "-".to_owned(),
        _ => packets.to_string(),
    }
}

fn verdict(out: &mut String, report: &ChainReport, style: Style) {
    if report.claims.is_empty() {
        out.push_str("\nSLA: none agreed\n");
        return;
    }
    let terms: Vec<_> = report.claims.iter().map(term_cells).collect();
    let table = terminal::table(&["SLA", "owed", "measured", ""], &terms, style);
    let _ = writeln!(out, "\n{table}");
    if report.met() == Some(true) {
        out.push_str("\nSLA met\n");
        return;
    }
    out.push_str("\nSLA not met");
    if let Some(hop) = report.costliest_hop() {
        let Hop { name, space, .. } = hop;
        let _ = write!(out, "; the hop that cost most: {name} ({space})");
    }
    out.push('\n');
}

/// A line of the contract: its name, what is owed, what was measured, whether that holds.
fn term_cells(claim: &Claim) -> Vec<String> {
    let shown = |value: &Value| match value.as_f64() {
        Some(figure) => terminal::format_us(figure),
        None => value.as_str().unwrap_or("not measured").to_owned(),
    };
    let met = match claim.holds {
        Some(true) => "met",
        Some(false) => "not met",
        None => "not decided",
    };
    let cells = [shown(&claim.bound), shown(&claim.measured), met.to_owned()];
    [claim.id.clone()].into_iter().chain(cells).collect()
}

/// The table of chains that were flooded.
const FLOODS: [Column<Flood>; 8] = [
    ("flooded meanwhile", |flood| {
        format!("{} x {}", flood.chain, flood.times)
    }),
    ("agreed pps", |flood| format!("{:.0}", flood.agreed_pps)),
    ("sent pps", |flood| format!("{:.0}", flood.sent_pps)),
    ("sent", |flood| flood.sent.to_string()),
    ("policed", |flood| flood.policed.to_string()),
    ("dropped", |flood| flood.drops.to_string()),
    ("passed", |flood| flood.passed.to_string()),
    ("of its rate", |flood| {
        format!("{:.0} %", flood.profile_share * 100.0)
    }),
];

/// Where all packets went, in a sentence.
fn account(traffic: &Traffic) -> String {
    let lost = traffic.lost.iter();
    let lost: Vec<_> = lost
        .map(|(place, packets)| format!("{packets} {place}"))
        .collect();
    let lost = match &lost[..] {
        [] => "none lost".to_owned(),
        lost => format!("lost: {}", lost.join(", ")),
    };
    format!(
        "all traffic: {} packets in, {} policed, {} out, {lost}",
        traffic.packets_in, traffic.policed, traffic.packets_out
    )
}

/// When it was measured: RFC 3339, to the second.
pub(crate) fn date(environment: &Environment) -> String {
    let taken = UNIX_EPOCH + Duration::from_secs(environment.taken_at_unix_s);
    humantime::format_rfc3339_seconds(taken).to_string()
}
