//! Collects the results of a measured chain for the client, which draws them.

use myelin_linux::affinity;
use myelin_measure::environment;
use myelin_metrics::chain::{ChainReport, Hop, Traffic};
use myelin_metrics::envelope::{Claim, Report};
use myelin_metrics::{Distribution, Environment, Mode};
use myelin_packet::sojourn::Histogram as Sojourn;
use myelin_policy::sla::claims;
use myelin_spec::Space;
use serde_json::{Value, json};

use crate::api::{HopStatus, PacketAccount, ReportReply, SlaWindow, SojournStatus};
use crate::measure::{MeasuredChain, Row};

/// Builds the answer to a measurement request.
pub(crate) fn build_reply(measured: MeasuredChain) -> ReportReply {
    let claims = claims::check_claims(
        &measured.target.chain.sla,
        &measured.sojourn,
        &measured.probe_totals(),
        &measured.account,
    );
    let environment = describe_environment(&measured);
    let mut envelope = json!(Report {
        experiment: measured.target.chain.name.clone(),
        environment: environment.clone(),
        rows: measured.rows.iter().map(build_row).collect(),
        claims: claims.clone(),
        ended_early: None,
    });
    put_sojourn(&mut envelope, "sojourn", &measured.sojourn);
    envelope["hops"] = json!(measured.status.hops);
    envelope["account"] = json!(measured.account);
    envelope["floods"] = json!(measured.floods);
    envelope["plan"] = json!(measured.target.plan);
    envelope["sla_met"] = json!(claims::all_hold(&claims));
    let mut status = measured.status.clone();
    status.account = build_packet_account(&measured.account);
    ReportReply {
        envelope,
        report: build_chain_report(measured, claims, environment),
        status: Box::new(status),
    }
}

fn describe_environment(measured: &MeasuredChain) -> Environment {
    let (chain, plan) = (&measured.target.chain, &measured.target.plan);
    let mut environment = environment()
        .with("hook", plan.hook.as_str())
        .with("mapping", plan.mapping.as_str());
    if plan.uses(Space::User) {
        environment = environment
            .with("worker_idle", chain.worker.idle.as_str())
            .with("worker_batch", chain.worker.batch.to_string());
    }
    environment
}

/// Builds a flat row from the result of one mode and payload. Its keys name their units.
fn build_row(row: &Row) -> Value {
    let mut value = row.probe.row();
    value["cpu"] = json!(row.cpu);
    let [sojourn] = &row.sojourn[..] else {
        put_sojourn(&mut value, "sojourn", &row.sojourn);
        return value;
    };
    let sojourn = SojournStatus::from(sojourn);
    let mut put = |key: &str, figure: Value| value[key] = figure;
    put("sojourn_packets", json!(sojourn.packets));
    put("sojourn_mean_us", json!(sojourn.mean_us));
    put("sojourn_p50_us", json!(sojourn.p50_us));
    put("sojourn_p99_us", json!(sojourn.p99_us));
    put("sojourn_p99_9_us", json!(sojourn.p99_9_us));
    put("sojourn_max_us", json!(sojourn.max_us));
    value
}

/// Writes the sojourn under `key`. For a chain with black boxes, `key` is null and `key_sections`
/// has the sojourn of each section.
fn put_sojourn(object: &mut Value, key: &str, sojourn: &[Sojourn]) {
    if let [whole] = sojourn {
        object[key] = json!(SojournStatus::from(whole));
        return;
    }
    let sections: Vec<_> = sojourn.iter().map(SojournStatus::from).collect();
    object[key] = Value::Null;
    object[format!("{key}_sections")] = json!(sections);
}

/// The sojourn of each section, with a title that names the section's two ends.
fn build_sections(measured: &MeasuredChain) -> Vec<(String, Distribution)> {
    if let [whole] = &measured.sojourn[..] {
        return vec![("chain".to_owned(), Distribution::from(whole))];
    }
    let boxes: Vec<&str> = measured
        .target
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

fn build_hops(measured: &MeasuredChain) -> Vec<Hop> {
    let plan = &measured.target.plan;
    let step = |name: &str, step: &myelin_planner::Step| Hop {
        name: format!("{name} ({})", step.name),
        space: "kernel".to_owned(),
        predicted_ns: Some(step.cost_ns),
        ..Hop::default()
    };
    let functions = plan.hops.iter().zip(&measured.status.hops).map(
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

fn build_chain_report(
    measured: MeasuredChain,
    claims: Vec<Claim>,
    environment: Environment,
) -> ChainReport {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let (chain, plan) = (&measured.target.chain, &measured.target.plan);
    let mut notes = plan.warnings.clone();
    notes.push(plan.worst_case_note.clone());
    let polls = |row: &Row| row.probe.mode == Mode::Spin;
    if plan.uses(Space::User) && affinity::count_cores() < 3 && measured.rows.iter().any(polls) {
        notes.push("spin mode polls on two cores and the worker polls too: with only two cores the probe and the worker slow each other down".to_owned());
    }
    if plan.black_boxes().next().is_some() {
        notes.push(
            "sojourns are given by section: no section includes the time inside black boxes, only the probe's delays do"
                .to_owned(),
        );
    }
    let cpu = measured.rows.first().map(|row| row.cpu.clone());
    ChainReport {
        chain: chain.name.clone(),
        claims,
        latency_bound_us: us(chain.sla.latency_ns),
        round_trip_bound_us: us(chain.sla.round_trip_ns),
        sojourns: build_sections(&measured),
        hops: build_hops(&measured),
        traffic: build_traffic(&measured.account),
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
        floods: measured.floods,
        cpu,
        environment,
        notes,
        file_name: measured.target.source.name.clone(),
        file_text: measured.target.source.text.clone(),
    }
}

/// Builds the account of all packets. Losses inside a function are listed by its name.
fn build_packet_account(account: &SlaWindow) -> PacketAccount {
    let SlaWindow { lost, lost_in, .. } = account;
    let mut dropped = lost_in.clone();
    if lost.shaper > 0 {
        *dropped.entry("shaper".to_owned()).or_default() += lost.shaper;
    }
    let elsewhere = lost
        .by_place()
        .into_iter()
        .filter(|(place, packets)| *packets > 0 && !["function", "shaper"].contains(place));
    PacketAccount {
        packets_in: account.packets_in,
        packets_out: account.packets_out,
        policed: account.policed,
        dropped,
        lost: elsewhere
            .map(|(place, packets)| (place.to_owned(), packets))
            .collect(),
        ..PacketAccount::default()
    }
}

/// The packet counts of the measurement.
fn build_traffic(account: &SlaWindow) -> Traffic {
    let places = account.lost.by_place().into_iter();
    Traffic {
        packets_in: account.packets_in,
        policed: account.policed,
        packets_out: account.packets_out,
        lost: places
            .filter(|(_, packets)| *packets > 0)
            .map(|(place, packets)| (place.to_owned(), packets))
            .collect(),
    }
}
