//! `dpdk-port`: round trip and packet rate of a chain between DPDK devices, compared with a bare
//! DPDK forwarder.
//!
//! Both use the same devices (`net_af_xdp` on virtual links, copy mode), core and burst size. The
//! chain does more: its front door parses, classifies, counts and stamps each packet, and it
//! records the sojourn.

use myelin_measure::Mode;

use crate::reference::{self, Reference};
use crate::rounds::Rounds;
use crate::variant::{Measured, PAYLOADS, ROUNDS, Variant, measure};
use crate::variants::{self, BATCH, BEST_BATCH};
use crate::{Claim, Error, Findings, Row, Session};

const BATCHES: [u16; 2] = [BATCH, BEST_BATCH];
/// The subjects, in this order for each of [`BATCHES`].
const SUBJECTS: [&str; 2] = ["bare DPDK forwarder", "chain of one forward"];
/// Packets of each system call of the sender. With single packets, the sender would limit the rate.
const BURST: u16 = 32;
/// Largest ratio of the chain's cost to the bare forwarder's.
const BOUND: f64 = 1.03;

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let mut findings = Findings::default()
        .with("probe_mode", "inline")
        .with("devices", "net_af_xdp over virtual links, copy mode, no busy polling")
        .with("rate", "packets that arrived over the time from the first send to the last arrival, while the sender sends as fast as it can")
        .with("sent", format!("in bursts of {BURST}"));
    let absent = match (Reference::Dpdk.check_built(), myelin_dpdk::version()) {
        (Err(reason @ reference::Error::Absent { .. }), _) => Some(reason.to_string()),
        (Err(error), _) => return Err(error.into()),
        (Ok(()), Err(reason)) => Some(reason.to_string()),
        (Ok(()), Ok(_)) => None,
    };
    if let Some(reason) = absent {
        let row = Row::of("skipped").with("variant", "all");
        findings.add_row(row.with("reason", reason));
        return Ok(findings);
    }
    measure_round_trips(session, &mut findings)?;
    measure_rates(session, &mut findings)?;
    Ok(findings)
}

fn build(session: Session<'_>) -> Result<Vec<Variant>, Error> {
    let mut made = Vec::new();
    for batch in BATCHES {
        session.check()?;
        let [bare, chain] = SUBJECTS;
        let name = format!("d{batch}");
        let about = "kind `forward` between DPDK devices, polling";
        made.push(variants::start_reference(
            Reference::Dpdk,
            bare,
            "C program: receive burst, transmit burst",
            batch,
        )?);
        let port =
            variants::deploy_dpdk_chain(session.program, &name, about, "kind: forward", batch)?;
        made.push(port.with_name(chain));
    }
    Ok(made)
}

fn measure_round_trips(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let deployments = session.effort.rounds(6, 30);
    let build = || Ok((build(session)?, ()));
    let Measured { rounds, .. } = measure(session, deployments, &[Mode::Inline], build)?;
    for_each_case(|batch_index, payload_index| {
        let at = |number| subject(batch_index, number, payload_index);
        let (batch, payload) = (BATCHES[batch_index], PAYLOADS[payload_index]);
        for (subject, name) in SUBJECTS.iter().enumerate() {
            findings.add_row(
                Row::of("round trips")
                    .with("variant", *name)
                    .with("batch", batch)
                    .with("payload_bytes", payload)
                    .with_estimate("rtt_p50", "_us", rounds.median(at(subject))),
            );
        }
        let ratio = rounds.ratio(at(1), at(0))?;
        let id = format!("round trip / bare forwarder, {payload} B, batch {batch}");
        findings.claim_at_most(id, ratio, BOUND);
        Ok(())
    })
}

fn measure_rates(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(500, 20_000, 50_000);
    let subjects = BATCHES.len() * SUBJECTS.len() * PAYLOADS.len();
    let deployments = session.effort.rounds(3, 10);
    let mut lost = vec![1.0_f64; subjects];
    let mut rounds = Rounds::default();
    for deployment in 1..=deployments {
        let made = build(session)?;
        let stage = format!("packet rates, deployment {deployment} of {deployments}");
        rounds.extend(
            session.measure(&stage, subjects, (ROUNDS, ROUNDS), |index| {
                let load = (PAYLOADS[index % PAYLOADS.len()], packets, BURST);
                let variant = &made[index / PAYLOADS.len()];
                let carried = variant.overload_trial(load, session)?;
                let missing = carried.sent.saturating_sub(carried.received);
                lost[index] = lost[index].min(missing as f64 / carried.sent as f64);
                Ok(carried.carried_mpps)
            })?,
        );
    }
    for_each_case(|batch_index, payload_index| {
        let at = |number| subject(batch_index, number, payload_index);
        let (batch, payload) = (BATCHES[batch_index], PAYLOADS[payload_index]);
        for (subject, name) in SUBJECTS.iter().enumerate() {
            findings.add_row(
                Row::of("packet rates")
                    .with("variant", *name)
                    .with("batch", batch)
                    .with("payload_bytes", payload)
                    .with_estimate("rate", "_mpps", rounds.median(at(subject)))
                    .with("least_lost_share", lost[at(subject)]),
            );
        }
        let ratio = rounds.ratio(at(0), at(1))?;
        let id = format!("rate of the bare forwarder / rate, {payload} B, batch {batch}");
        let mut claim = Claim::ratio_at_most(id, ratio, BOUND);
        if [0, 1].iter().any(|subject| lost[at(*subject)] <= 0.0) {
            // Without loss, the sender limited the rate.
            claim = claim.without_bound();
        }
        findings.add_claim(claim);
        Ok(())
    })
}

/// Index of a subject, from the indices of batch size, subject and payload.
fn subject(batch: usize, number: usize, payload: usize) -> usize {
    (batch * SUBJECTS.len() + number) * PAYLOADS.len() + payload
}

fn for_each_case(mut case: impl FnMut(usize, usize) -> Result<(), Error>) -> Result<(), Error> {
    for batch in 0..BATCHES.len() {
        for payload in 0..PAYLOADS.len() {
            case(batch, payload)?;
        }
    }
    Ok(())
}
