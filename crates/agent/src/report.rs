//! From a measurement to what a person and a program read.

use std::fmt::Write as _;

use myelin_measure::chain_report::{ChainReport, Flood, Hop, Term};
use myelin_measure::envelope::{Claim, Report};
use myelin_measure::environment::Environment;
use myelin_measure::terminal::{self, Histogram, Line, Style};
use myelin_measure::{Distribution, Mode, html};
use myelin_packet::sojourn::Histogram as Sojourn;
use myelin_spec::Space;
use serde_json::{Value, json};

use crate::api::{ApiError, HopStatus, ProbeOptions, ReportReply, SlaWindow};
use crate::measure::{Measured, Row};
use crate::{status, verdict};

/// Renders a measurement in every form that was asked for.
pub(crate) fn reply(measured: Measured, options: &ProbeOptions) -> Result<ReportReply, ApiError> {
    let claims = verdict::claims(
        &measured.chain.sla,
        &measured.sojourn,
        &measured.probed(),
        &measured.account,
    );
    let met = verdict::met(&claims);
    let environment = environment(&measured);
    let rows: Vec<Value> = measured.rows.iter().map(row).collect();
    let hops = hops(&measured);
    let report = Report {
        experiment: measured.chain.name.clone(),
        environment: environment.clone(),
        rows,
        claims: claims.clone(),
    };
    let mut envelope = serde_json::to_value(&report).unwrap_or_default();
    put_sojourn(&mut envelope, "sojourn", &measured.sojourn);
    envelope["hops"] = json!(measured.hops);
    envelope["account"] = json!(measured.account);
    envelope["floods"] = json!(measured.floods);
    envelope["plan"] = json!(measured.plan);
    envelope["sla_met"] = json!(met);
    let chain = measured.chain.name.clone();
    let account = account(&measured.account);
    let page = chain_report(measured, &claims, hops, environment);
    let html = options
        .rendering
        .html
        .then(|| html::render(&page))
        .transpose()
        .map_err(ApiError::failed)?;
    Ok(ReportReply {
        chain,
        envelope,
        text: text(
            &page,
            &account,
            met,
            Style {
                width: options.rendering.columns.into(),
                ascii: options.rendering.ascii,
            },
        ),
        html,
        met,
    })
}

fn environment(measured: &Measured) -> Environment {
    let chain = &measured.chain;
    let mut environment = Environment::detect()
        .with("hook", measured.plan.hook.as_str())
        .with("mapping", measured.plan.mapping.as_str());
    if measured.plan.uses(Space::User) {
        environment = environment
            .with("worker_idle", chain.worker.idle.as_str())
            .with("worker_batch", chain.worker.batch.to_string());
    }
    environment
}

/// One combination of mode and payload as a flat row; keys carry their unit.
fn row(row: &Row) -> Value {
    let mut value = json!(row.probe);
    value["cpu"] = json!(row.cpu);
    let [sojourn] = &row.sojourn[..] else {
        put_sojourn(&mut value, "sojourn", &row.sojourn);
        return value;
    };
    let sojourn = status::summary(sojourn);
    let mut put = |key: &str, figure: Value| value[key] = figure;
    put("sojourn_packets", json!(sojourn.packets));
    put("sojourn_mean_us", json!(sojourn.mean_us));
    put("sojourn_p50_us", json!(sojourn.p50_us));
    put("sojourn_p99_us", json!(sojourn.p99_us));
    put("sojourn_p99_9_us", json!(sojourn.p99_9_us));
    put("sojourn_max_us", json!(sojourn.max_us));
    value
}

/// A whole sojourn under `key`; nothing there and `key_sections` where black boxes cut it.
fn put_sojourn(to: &mut Value, key: &str, sojourn: &[Sojourn]) {
    if let [whole] = sojourn {
        to[key] = json!(status::summary(whole));
        return;
    }
    let sections: Vec<_> = sojourn.iter().map(status::summary).collect();
    to[key] = Value::Null;
    to[format!("{key}_sections")] = json!(sections);
}

/// What the sections of a chain's way lie between, each with its sojourn.
fn sections(measured: &Measured) -> Vec<(String, Distribution)> {
    if let [whole] = &measured.sojourn[..] {
        return vec![("chain".to_owned(), Distribution::from(whole))];
    }
    let boxes: Vec<&str> = measured
        .plan
        .black_boxes()
        .map(|hop| hop.name.as_str())
        .collect();
    let starts = std::iter::once(&"front door").chain(&boxes);
    let ends = boxes.iter().chain(std::iter::once(&"egress"));
    starts
        .zip(ends)
        .zip(&measured.sojourn)
        .map(|((start, end), section)| (format!("{start} to {end}"), Distribution::from(section)))
        .collect()
}

fn hops(measured: &Measured) -> Vec<Hop> {
    let plan = &measured.plan;
    let step = |name: &str, step: &myelin_planner::Step| Hop {
        name: format!("{name} ({})", step.name),
        space: "kernel".to_owned(),
        predicted_ns: Some(step.cost_ns),
        ..Hop::default()
    };
    let functions = plan.hops.iter().zip(&measured.hops).map(
        |(
            planned,
            HopStatus {
                counted, cost_ns, ..
            },
        )| Hop {
            name: planned.name.clone(),
            kind: planned.kind.clone(),
            space: planned.space.to_string(),
            predicted_ns: (!planned.is_black_box()).then(|| planned.total_ns()),
            measured_ns: *cost_ns,
            packets_in: counted.packets_in,
            packets_out: counted.packets_in - counted.drops.min(counted.packets_in),
            drops: counted.drops,
        },
    );
    std::iter::once(step("front door", &plan.door))
        .chain(functions)
        .chain(std::iter::once(step("egress", &plan.egress)))
        .collect()
}

fn chain_report(
    measured: Measured,
    claims: &[Claim],
    hops: Vec<Hop>,
    environment: Environment,
) -> ChainReport {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let sla = &measured.chain.sla;
    let mut notes = measured.plan.warnings.clone();
    notes.push(measured.plan.worst_case_note.clone());
    notes.push(account(&measured.account));
    let polls = |row: &Row| row.probe.mode == Mode::Spin;
    if measured.plan.uses(Space::User)
        && crate::engine::cores() < 3
        && measured.rows.iter().any(polls)
    {
        notes.push("spin mode polls on two cores and the worker polls too: on two cores they are in each other's way".to_owned());
    }
    if measured.plan.black_boxes().next().is_some() {
        notes.push(
            "the sojourn is told by section: how long packets were in black boxes is in none of them, but in the probe's delays"
                .to_owned(),
        );
    }
    let cpu = measured.rows.first().map(|row| row.cpu.clone());
    ChainReport {
        chain: measured.chain.name.clone(),
        measured_at: date(environment.taken_at_unix_s),
        terms: claims.iter().map(term).collect(),
        latency_bound_us: us(sla.latency_ns),
        round_trip_bound_us: us(sla.round_trip_ns),
        sojourns: sections(&measured),
        probes: measured
            .rows
            .into_iter()
            .map(|row| {
                (
                    format!("{}, {} B", row.probe.mode, row.probe.payload_bytes),
                    row.probe,
                )
            })
            .collect(),
        hops,
        floods: measured.floods,
        cpu,
        environment,
        notes,
        file_name: measured.source.name.clone(),
        file_text: measured.source.text.clone(),
    }
}

fn term(claim: &Claim) -> Term {
    let shown = |value: &Value| match value.as_f64() {
        Some(figure) => terminal::format_us(figure),
        None => value.as_str().unwrap_or("not measured").to_owned(),
    };
    Term {
        name: claim.id.clone(),
        owed: shown(&claim.bound),
        measured: shown(&claim.measured),
        met: claim.holds,
    }
}

/// What a person sees in the terminal.
fn text(page: &ChainReport, account: &str, met: bool, style: Style) -> String {
    let mut out = format!("chain {}\n", page.chain);
    // Writing into a String cannot fail.
    let columns: Vec<(&str, &myelin_measure::Summary)> = page
        .probes
        .iter()
        .filter_map(|(name, probe)| Some((name.as_str(), probe.rtt.as_ref()?)))
        .collect();
    if !columns.is_empty() {
        let _ = writeln!(
            out,
            "\nround trip, us\n{}",
            terminal::latency_table(&columns, style)
        );
    }
    let counts: Vec<Vec<String>> = page
        .probes
        .iter()
        .map(|(name, probe)| {
            let counts = &probe.counts;
            vec![
                name.clone(),
                counts.sent.to_string(),
                counts.lost.to_string(),
                counts.reordered.to_string(),
                counts.duplicates.to_string(),
                counts.corrupted.to_string(),
            ]
        })
        .collect();
    let head = [
        "probe",
        "sent",
        "lost",
        "reordered",
        "duplicates",
        "corrupted",
    ];
    let _ = writeln!(out, "{}", terminal::table(&head, &counts, style));
    for (name, sojourn) in page
        .sojourns
        .iter()
        .filter(|(_, sojourn)| !sojourn.is_empty())
    {
        let bound = page.latency_bound_us.map(|at_us| Line {
            name: "SLA latency".to_owned(),
            at_us,
        });
        let _ = writeln!(
            out,
            "\nsojourn of all traffic, {}",
            if name == "chain" {
                "front door to egress"
            } else {
                name.as_str()
            }
        );
        let _ = writeln!(out, "{}", Histogram::new(sojourn, bound).render(style));
    }
    let functions: Vec<Vec<String>> = page
        .hops
        .iter()
        .map(|hop| {
            let ns = |cost: Option<f64>| {
                cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.0}"))
            };
            vec![
                hop.name.clone(),
                hop.kind.clone(),
                hop.space.clone(),
                hop.packets_in.to_string(),
                hop.drops.to_string(),
                ns(hop.predicted_ns),
                ns(hop.measured_ns),
            ]
        })
        .collect();
    let head = [
        "hop",
        "kind",
        "space",
        "in",
        "drops",
        "predicted ns",
        "measured ns",
    ];
    let _ = writeln!(out, "\n{}", terminal::table(&head, &functions, style));
    let _ = writeln!(out, "\n{account}");
    if !page.floods.is_empty() {
        let floods: Vec<Vec<String>> = page.floods.iter().map(Flood::cells).collect();
        let _ = writeln!(out, "\n{}", terminal::table(&Flood::HEAD, &floods, style));
    }
    if let Some(shares) = page.cpu.as_ref().and_then(|cpu| cpu.overall) {
        let parts = shares
            .parts()
            .map(|(name, share)| format!("{name} {}", terminal::format_share(share)));
        let _ = writeln!(out, "\nCPU, all cores, first row: {}", parts.join(", "));
    }
    if page.terms.is_empty() {
        out.push_str("\nSLA: none agreed\n");
        return out;
    }
    let terms: Vec<Vec<String>> = page
        .terms
        .iter()
        .map(|term| {
            let met = if term.met == Some(true) {
                "met"
            } else {
                "not met"
            };
            vec![
                term.name.clone(),
                term.owed.clone(),
                term.measured.clone(),
                met.to_owned(),
            ]
        })
        .collect();
    let _ = writeln!(
        out,
        "\n{}",
        terminal::table(&["SLA", "owed", "measured", ""], &terms, style)
    );
    if met {
        out.push_str("\nSLA met\n");
    } else {
        out.push_str("\nSLA not met");
        if let Some(hop) = page.costliest_hop() {
            let _ = write!(
                out,
                "; the hop that cost most: {} ({})",
                hop.name, hop.space
            );
        }
        out.push('\n');
    }
    out
}

/// Where all packets went.
fn account(account: &SlaWindow) -> String {
    let places = account.lost.by_place().into_iter();
    let lost: Vec<_> = places
        .filter(|(_, packets)| *packets > 0)
        .map(|(place, packets)| format!("{packets} {place}"))
        .collect();
    let lost = if lost.is_empty() {
        "none lost".to_owned()
    } else {
        format!("lost: {}", lost.join(", "))
    };
    format!(
        "all traffic: {} packets in, {} policed, {} out, {lost}",
        account.packets_in, account.policed, account.packets_out
    )
}

/// Seconds since 1970 as RFC 3339.
fn date(unix_s: u64) -> String {
    humantime::format_rfc3339_seconds(
        std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_s),
    )
    .to_string()
}
