//! The report of a chain's run: [`summary`] and [`details`] for a terminal, [`page()`] as HTML.

mod delays;
mod page;
mod sections;

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use myelin_metrics::chain::{Flood, Hop, Traffic};
use myelin_metrics::envelope::Claim;
use myelin_metrics::{ChainReport, Environment, ProbeResult, Summary};
use serde_json::Value;

use crate::terminal::{self, Column, Histogram, Style, add_field, digits_or_dash, or_dash};

pub use page::page;

/// Formats the verdict, the contract, the account of packets, each hop and each probe.
pub fn summary(report: &ChainReport, style: Style) -> String {
    let width = style.columns();
    let verdict = format!("chain {}: {}", report.chain, verdict(report));
    let mut out = terminal::wrap(&verdict, 2, width) + "\n";
    add_field(
        &mut out,
        "traffic",
        &describe_account(&report.traffic),
        width,
    );
    if let Some(hop) = report.costliest_hop() {
        add_field(&mut out, "slowest hop", &describe_hop(hop), width);
    }
    // Writing into a String cannot fail.
    let mut add = |table: String| {
        let _ = writeln!(out, "{table}\n");
    };
    if !report.claims.is_empty() {
        let terms: Vec<_> = report.claims.iter().map(term_cells).collect();
        add(terminal::table(&TERMS, &terms, style));
    }
    if !report.floods.is_empty() {
        add(render_table(&FLOODS, &report.floods, style));
    }
    add(render_table(&HOPS, &report.hops, style));
    add(render_table(&PROBES, &report.probes, style));
    out
}

/// Formats the details: round trips, the probes' packets, sojourns, CPU use.
pub fn details(report: &ChainReport, style: Style) -> String {
    let mut out = String::new();
    let summaries = report.probes.iter();
    let columns: Vec<_> = summaries
        .filter_map(|(name, probe)| Some((name.as_str(), probe.rtt.as_ref()?)))
        .collect();
    if !columns.is_empty() {
        let table = terminal::latency_table(&columns, style);
        let _ = writeln!(out, "round trip, us\n{table}\n");
    }
    let _ = writeln!(out, "{}\n", render_table(&COUNTS, &report.probes, style));
    out.push_str(&render_sojourns(report, style));
    if let Some(shares) = report.cpu.as_ref().and_then(|cpu| cpu.overall) {
        let parts = shares
            .parts()
            .map(|(name, share)| format!("{name} {}", terminal::format_share(share)));
        let text = format!("CPU, all cores, first probe: {}", parts.join(", "));
        let _ = writeln!(out, "{}", terminal::wrap(&text, 2, style.columns()));
    }
    out
}

fn render_table<T>(columns: &[Column<T>], items: &[T], style: Style) -> String {
    let (head, rows) = terminal::head_and_rows(columns, items);
    terminal::table(&head, &rows, style)
}

/// The round trips of each probe.
const PROBES: [Column<(String, ProbeResult)>; 6] = [
    ("round trip", |(name, _)| name.clone()),
    ("sent", |(_, probe)| probe.counts.sent.to_string()),
    ("lost", |(_, probe)| probe.counts.lost.to_string()),
    ("p50 us", |(_, probe)| format_rtt(probe, |rtt| rtt.p50_us)),
    ("p99 us", |(_, probe)| format_rtt(probe, |rtt| rtt.p99_us)),
    ("longest us", |(_, probe)| {
        format_rtt(probe, |rtt| rtt.max_us)
    }),
];

/// Formats a figure of the round trips; `-` if no packet returned.
fn format_rtt(probe: &ProbeResult, figure: fn(&Summary) -> f64) -> String {
    or_dash(probe.rtt.as_ref().map(figure).map(terminal::format_us))
}

/// The table of the probes' packets.
const COUNTS: [Column<(String, ProbeResult)>; 6] = [
    ("probe", |(name, _)| name.clone()),
    ("sent", |(_, probe)| probe.counts.sent.to_string()),
    ("lost", |(_, probe)| probe.counts.lost.to_string()),
    ("reordered", |(_, probe)| probe.counts.reordered.to_string()),
    ("duplicates", |(_, probe)| {
        probe.counts.duplicates.to_string()
    }),
    ("corrupted", |(_, probe)| probe.counts.corrupted.to_string()),
];

fn render_sojourns(report: &ChainReport, style: Style) -> String {
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
        let _ = writeln!(out, "sojourn of all traffic, {part}\n{histogram}\n");
    }
    out
}

/// The table of hops.
const HOPS: [Column<Hop>; 8] = [
    ("hop", |hop| hop.name.clone()),
    ("kind", |hop| hop.kind.clone()),
    ("space", |hop| hop.space.clone()),
    ("in", |hop| format_packets(hop, hop.packets_in)),
    ("out", |hop| format_packets(hop, hop.packets_out)),
    ("drops", |hop| format_packets(hop, hop.drops)),
    ("predicted ns", |hop| digits_or_dash(0, hop.predicted_ns)),
    ("measured ns", |hop| digits_or_dash(0, hop.measured_ns)),
];

/// Formats the packets at a function; `-` for front door and egress, which the account counts.
fn format_packets(hop: &Hop, packets: u64) -> String {
    match hop.kind.as_str() {
        "" => "-".to_owned(),
        _ => packets.to_string(),
    }
}

/// Says whether the chain kept its contract, and names the term with the largest share of its
/// bound.
fn verdict(report: &ChainReport) -> String {
    let verdict = match report.met() {
        _ if report.claims.is_empty() => return "no SLA agreed".to_owned(),
        Some(true) => "SLA met",
        Some(false) => "SLA not met",
        None => "SLA not decided",
    };
    let share = |claim: &&Claim| used_share(claim).unwrap_or(f64::INFINITY);
    let claims = report.claims.iter();
    let tightest = claims.max_by(|left, right| share(left).total_cmp(&share(right)));
    let Some(claim) = tightest else {
        return verdict.to_owned();
    };
    let (_, term) = claim.id.split_once(": ").unwrap_or(("", &claim.id));
    let (term, unit) = term.rsplit_once(", ").unwrap_or((term, ""));
    let owed =
        parse_bound(claim).map_or_else(|| format_value(&claim.bound), |bound| bound.to_string());
    match claim.measured.as_f64() {
        Some(measured) => format!(
            "{verdict}: {term} is {} {unit}, owed {owed} {unit}{}",
            terminal::format_us(measured),
            used_share(claim)
                .map_or_else(String::new, |share| format!(" ({})", format_percent(share)))
        ),
        None => format!("{verdict}: {term} was not measured"),
    }
}

/// Describes the most expensive hop and its cost, measured or predicted.
fn describe_hop(hop: &Hop) -> String {
    let Hop { name, space, .. } = hop;
    let cost = terminal::format_ns(hop.cost_ns().unwrap_or_default());
    let source = match hop.measured_ns {
        Some(_) => "measured",
        None => "by the model",
    };
    format!("{name} ({space}): {cost} a packet, {source}")
}

/// Parses the figure of a bound such as `<= 350`.
fn parse_bound(claim: &Claim) -> Option<f64> {
    claim.bound.as_str()?.strip_prefix("<= ")?.parse().ok()
}

/// Returns the measured figure as a share of its bound.
fn used_share(claim: &Claim) -> Option<f64> {
    let (measured, bound) = (claim.measured.as_f64()?, parse_bound(claim)?);
    match measured {
        0.0 => Some(0.0),
        _ => (bound > 0.0).then_some(measured / bound),
    }
}

fn format_percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The table of the contract's terms.
const TERMS: [&str; 5] = ["SLA", "owed", "measured", "of owed", ""];

/// Returns the cells of a contract's term: name, owed figure, measured figure, share, verdict.
fn term_cells(claim: &Claim) -> Vec<String> {
    let met = match claim.holds {
        Some(true) => "met",
        Some(false) => "not met",
        None => "not decided",
    };
    vec![
        claim.id.clone(),
        format_value(&claim.bound),
        format_value(&claim.measured),
        or_dash(used_share(claim).map(format_percent)),
        met.to_owned(),
    ]
}

fn format_value(value: &Value) -> String {
    match value.as_f64() {
        Some(figure) => terminal::format_us(figure),
        None => value.as_str().unwrap_or("not measured").to_owned(),
    }
}

/// The table of flooded chains.
const FLOODS: [Column<Flood>; 8] = [
    ("flooded chain", |flood| {
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

/// Describes the account of all packets in a sentence.
fn describe_account(traffic: &Traffic) -> String {
    let lost = traffic.lost.iter();
    let lost: Vec<_> = lost
        .map(|(place, packets)| format!("{packets} {place}"))
        .collect();
    let lost = match &lost[..] {
        [] => "none lost".to_owned(),
        lost => format!("lost: {}", lost.join(", ")),
    };
    format!(
        "{} packets in, {} policed, {} out, {lost}",
        traffic.packets_in, traffic.policed, traffic.packets_out
    )
}

/// Formats the time of the measurement (RFC 3339), to the second.
pub(crate) fn date(environment: &Environment) -> String {
    let taken = UNIX_EPOCH + Duration::from_secs(environment.taken_at_unix_s);
    humantime::format_rfc3339_seconds(taken).to_string()
}
