//! `calvin-chain`: a kernel and a user-space function, in CALVIN's mappings, compared with the
//! centralized approach (Fig. 12a).

use myelin_linux::pm_qos;
use myelin_measure::Mode;

use crate::agents::EmbeddedAgent;
use crate::conditions::Conditions;
use crate::published::calvin;
use crate::variant::{Measured, PAYLOADS, Variant, measure};
use crate::{Claim, Error, Findings, Row, Session, variants};

const CONDITIONS: [Conditions; 3] = [
    Conditions {
        mode: Mode::Inline,
        awake: false,
    },
    ASLEEP,
    AWAKE,
];
/// Blocking end hosts, as most applications, with the kernel's default idle states.
const ASLEEP: Conditions = Conditions {
    mode: Mode::Blocking,
    awake: false,
};
/// The same with `spec.cpuLatency: 0us`.
const AWAKE: Conditions = Conditions {
    mode: Mode::Blocking,
    awake: true,
};
/// Largest round trip of the chain over the direct link's, inline.
const DIRECT_BOUND: f64 = 2.0;
/// Least ratio of the published centralized approach to the chain.
const PUBLISHED_BOUND: f64 = 4.0;

const DIRECT: usize = 0;
const CALVIN: [usize; 2] = [1, 2];
const AS_PUBLISHED: usize = 3;
const AT_ITS_BEST: usize = 4;

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let deployments = session.effort.rounds(6, 30);
    let idle_driver = pm_qos::idle_driver();
    let all_conditions: Vec<Conditions> = CONDITIONS
        .into_iter()
        .filter(|conditions| !conditions.awake || idle_driver.is_ok())
        .collect();
    let build = || Ok((build(session)?, ()));
    let measured = measure(session, deployments, &all_conditions, build)?;
    let mut findings = Findings::default()
        .with(
            "probe_modes",
            "inline; blocking; blocking, cores awake: as with `cpuLatency: 0us`, for all variants",
        )
        .with("deployments", deployments.to_string())
        .with(
            "idle",
            "user-space functions poll; the published centralized approach sleeps",
        )
        .with("worker_batch", variants::BEST_BATCH.to_string())
        .with(
            "idle_states",
            idle_driver.unwrap_or_else(|error| format!("no limit: {error}")),
        )
        .with(
            "directions",
            "both functions forward packets to the server; replies pass a tc redirect to the peer",
        );
    for (index, conditions) in all_conditions.iter().enumerate() {
        for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
            let at = |variant| measured.subject(variant, payload_index, index);
            add_rows(&measured, (*conditions, payload), at, &mut findings)?;
            add_claims(&measured, (*conditions, payload_index), at, &mut findings)?;
        }
    }
    let index_of = |wanted| {
        all_conditions
            .iter()
            .position(|conditions| *conditions == wanted)
    };
    if let (Some(asleep), Some(awake)) = (index_of(ASLEEP), index_of(AWAKE)) {
        for (payload_index, payload) in PAYLOADS.into_iter().enumerate() {
            for variant in CALVIN {
                let name = measured.variants[variant].name.as_str();
                let published = measured.subject(AS_PUBLISHED, payload_index, asleep);
                let ours = measured.subject(variant, payload_index, awake);
                let ratio = measured.rounds.ratio(published, ours)?;
                let id =
                    format!("centralized as published, {ASLEEP} / {name}, {AWAKE}, {payload} B");
                let claim = Claim::ratio_at_least(id, ratio, PUBLISHED_BOUND);
                let published = &calvin::CENTRALIZED_OF_CALVIN[payload_index];
                findings.add_claim(published.add_to(claim));
            }
        }
    }
    Ok(findings)
}

fn build(session: Session<'_>) -> Result<Vec<Variant>, Error> {
    let agent = EmbeddedAgent::open(session.program)?;
    let worker = variants::worker("spin", variants::BEST_BATCH)?;
    let mut made = vec![variants::direct()?];
    for mapping in ["compact", "distributed"] {
        session.check()?;
        made.push(variants::deploy_chain(
            &agent,
            mapping,
            "one forward in the kernel and one in user space",
            &[("kind: forward", "kernel"), ("kind: forward", "user")],
            &format!("  mapping: {mapping}\n{worker}"),
        )?);
    }
    made.extend(variants::centralized_variants()?);
    Ok(made)
}

fn add_rows(
    measured: &Measured<()>,
    (conditions, payload): (Conditions, usize),
    at: impl Fn(usize) -> usize,
    findings: &mut Findings,
) -> Result<(), Error> {
    let rounds = &measured.rounds;
    for (index, variant) in measured.variants.iter().enumerate() {
        let all = &measured.distributions[at(index)];
        findings.add_row(
            Row::of("round trips")
                .with("variant", variant.name.as_str())
                .with("payload_bytes", payload)
                .with("mode", conditions.to_string())
                .with_estimate("rtt_p50", "_us", rounds.median(at(index)))
                .with("rtt_p99_us", all.quantile_us(0.99))
                .with("share_within_350us", all.share_within(calvin::BUDGET_US))
                .with("times_direct", rounds.ratio_value(at(index), at(DIRECT))?)
                .with("what", variant.about.as_str()),
        );
        for share in [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999] {
            findings.add_row(
                Row::of("cumulative distribution")
                    .with("variant", variant.name.as_str())
                    .with("payload_bytes", payload)
                    .with("mode", conditions.to_string())
                    .with("share", share)
                    .with("rtt_us", all.quantile_us(share)),
            );
        }
    }
    Ok(())
}

fn add_claims(
    measured: &Measured<()>,
    (conditions, payload_index): (Conditions, usize),
    at: impl Fn(usize) -> usize,
    findings: &mut Findings,
) -> Result<(), Error> {
    let payload = PAYLOADS[payload_index];
    for variant in CALVIN {
        let name = measured.variants[variant].name.as_str();
        let ratio = |one, other| measured.rounds.ratio(at(one), at(other));
        if conditions.mode == Mode::Inline {
            let id = format!("{name} / direct, {payload} B, {conditions}");
            findings.claim_at_most(id, ratio(variant, DIRECT)?, DIRECT_BOUND);
        }
        // With all cores awake, the published form waits less, too.
        let least = if conditions.awake {
            1.0
        } else {
            PUBLISHED_BOUND
        };
        let id = format!("centralized as published / {name}, {payload} B, {conditions}");
        let published = Claim::ratio_at_least(id, ratio(AS_PUBLISHED, variant)?, least);
        findings.add_claim(calvin::CENTRALIZED_OF_CALVIN[payload_index].add_to(published));
        let id = format!("centralized at its best / {name}, {payload} B, {conditions}");
        findings.claim_at_least(id, ratio(AT_ITS_BEST, variant)?, 1.0);
    }
    Ok(())
}
