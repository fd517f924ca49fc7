//! `calvin-chain`: a kernel and a user-space function, in CALVIN's mappings, compared with the
//! centralized approach (Fig. 12a).

use myelin_linux::pm_qos;
use myelin_measure::Mode;
use myelin_metrics::stats::Deployments;

use crate::conditions::Conditions;
use crate::published::{Published, calvin};
use crate::round_trips::{PAYLOADS, RoundTrips, TripSubjects};
use crate::variants::{self, AS_PUBLISHED, AT_ITS_BEST, VariantSpec};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment};

const CONDITIONS: [Conditions; 3] = [conditions(Mode::Inline, false), ASLEEP, AWAKE];
/// Blocking end hosts, as most applications, with the kernel's default idle states.
const ASLEEP: Conditions = conditions(Mode::Blocking, false);
/// The same with `spec.cpuLatency: 0us`.
const AWAKE: Conditions = conditions(Mode::Blocking, true);

const fn conditions(mode: Mode, awake: bool) -> Conditions {
    Conditions { mode, awake }
}

/// Largest round trip of the chain over the direct link's, inline.
const DIRECT_BOUND: f64 = 2.0;
/// Least ratio of the published centralized approach to the chain.
const PUBLISHED_BOUND: f64 = 4.0;

/// CALVIN's mappings.
const MAPPINGS: [&str; 2] = ["compact", "distributed"];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calvin-chain",
    about: "round trip through a kernel and a user-space function, compact and distributed, against the centralized approach",
    differs: "hosts are network namespaces of one machine, and functions run in it, not in virtual machines; a packet follows the reply to the packet before it, without the paper's interval of 5 ms (`--interval 5ms`)",
    run,
    plots: include_str!("../../plots/calvin-chain.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let idle_driver = pm_qos::idle_driver();
    let conditions: Vec<Conditions> = CONDITIONS
        .into_iter()
        .filter(|conditions| !conditions.awake || idle_driver.is_ok())
        .collect();
    let text = include_str!("../../cases/calvin-chain.yaml");
    let specs: Vec<VariantSpec> = experiment::parse_list("calvin-chain", text)?;
    let build = || variants::build(&specs, session);
    let trips = session.round_trips(1.0, &conditions, findings, build, claims)?;
    rows(&trips, findings);
    findings.set(
        "probe_modes",
        "inline; blocking; blocking, cores awake: as with `cpuLatency: 0us`, for all variants",
    );
    findings.set(
        "idle",
        "user-space functions poll; the published centralized approach sleeps",
    );
    findings.set("worker_batch", variants::BEST_BATCH);
    let idle_states = idle_driver.unwrap_or_else(|error| format!("no limit: {error}"));
    findings.set("idle_states", idle_states);
    findings.set(
        "directions",
        "both functions forward packets to the server; replies pass a tc redirect to the peer",
    );
    Ok(())
}

fn rows(trips: &RoundTrips, findings: &mut Findings) {
    findings.rows.extend(trips.rows(|row, all| {
        row.with("rtt_p99_us", all.quantile_us(0.99))
            .with("share_within_350us", all.share_within(calvin::BUDGET_US))
    }));
    for subject in trips.subjects.all() {
        for share in [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999] {
            let rtt_us = trips.distributions[subject.slot].quantile_us(share);
            findings.add_row(
                Row::of("cumulative distribution")
                    .with("variant", subject.variant.name.as_str())
                    .with("payload_bytes", subject.payload)
                    .with("mode", subject.conditions.to_string())
                    .with("share", share)
                    .with("rtt_us", rtt_us),
            );
        }
    }
}

fn claims(samples: &Deployments, subjects: &TripSubjects) -> Vec<Claim> {
    let mut claims = Vec::new();
    for name in MAPPINGS {
        let ratios = |what: &str, pair| subjects.ratios(samples, what, pair).into_iter();
        let direct = ratios(&format!("{name} / direct"), [name, "direct"]);
        let inline = direct.filter(|ratio| ratio.conditions.mode == Mode::Inline);
        claims.extend(inline.map(|ratio| ratio.at_most(DIRECT_BOUND)));
        let what = format!("centralized as published / {name}");
        claims.extend(ratios(&what, [AS_PUBLISHED, name]).map(|ratio| {
            // With all cores awake, the published form waits less, too.
            let least = if ratio.conditions.awake {
                1.0
            } else {
                PUBLISHED_BOUND
            };
            published(ratio.payload).add_to(ratio.at_least(least))
        }));
        let what = format!("centralized at its best / {name}");
        claims.extend(ratios(&what, [AT_ITS_BEST, name]).map(|ratio| ratio.at_least(1.0)));
        claims.extend(asleep_to_awake(samples, subjects, name));
    }
    claims
}

/// Compares the published form with idle states to Myelin's mapping without.
fn asleep_to_awake(samples: &Deployments, subjects: &TripSubjects, name: &str) -> Vec<Claim> {
    let condition = |wanted| {
        let mut all = subjects.conditions.iter();
        all.position(|conditions| *conditions == wanted)
    };
    let variants = (subjects.find(AS_PUBLISHED), subjects.find(name));
    let (Some(asleep), Some(awake), (Some(theirs), Some(ours))) =
        (condition(ASLEEP), condition(AWAKE), variants)
    else {
        return Vec::new();
    };
    let claim = |(index, payload): (usize, usize)| {
        let theirs = subjects.slot(theirs, index, asleep);
        let ours = subjects.slot(ours, index, awake);
        let id = format!("centralized as published, {ASLEEP} / {name}, {AWAKE}, {payload} B");
        let claim = Claim::at_least(id, samples.ratio(theirs, ours), PUBLISHED_BOUND);
        published(payload).add_to(claim)
    };
    PAYLOADS.into_iter().enumerate().map(claim).collect()
}

fn published(payload: usize) -> &'static Published {
    let large = payload == PAYLOADS[1];
    &calvin::CENTRALIZED_OF_CALVIN[usize::from(large)]
}
