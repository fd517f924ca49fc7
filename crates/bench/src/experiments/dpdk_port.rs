//! `dpdk-port`: round trip and packet rate of a chain between DPDK devices, compared with a bare
//! DPDK forwarder.
//!
//! Both use the same devices (`net_af_xdp` on virtual links, copy mode), core and burst size. The
//! chain does more: its front door parses, classifies, counts and stamps each packet, and it
//! records the sojourn.

use myelin_measure::Mode;
use myelin_measure::bandwidth::TrialResult;
use myelin_metrics::stats::Deployments;

use crate::figures::{Figure, Subjects};
use crate::reference::{self, Reference};
use crate::round_trips::{PAYLOADS, TripSubjects};
use crate::sampling::{Sampling, Turns};
use crate::variant::Variant;
use crate::variants::{self, BATCH, BEST_BATCH};
use crate::{Claim, Error, Experiment, Findings, Row, Session};

const BATCHES: [u16; 2] = [BATCH, BEST_BATCH];
/// The subjects, in this order for each of [`BATCHES`].
const SUBJECTS: [&str; 2] = ["bare DPDK forwarder", "chain of one forward"];
/// Packets of each system call of the sender. With single packets, the sender would limit the rate.
const BURST: u16 = 32;
/// Largest ratio of the chain's cost to the bare forwarder's.
const BOUND: f64 = 1.03;

const FIGURES: &[Figure<TrialResult>] = &[
    Figure::interval("rate", "_mpps", |trial| trial.carried_mpps),
    Figure::least("least_lost_share", |trial| {
        let missing = trial.sent.saturating_sub(trial.received);
        missing as f64 / trial.sent as f64
    }),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "dpdk-port",
    about: "a function between devices of DPDK against a bare DPDK forwarder: round trip and packet rate",
    differs: "",
    run,
    plots: include_str!("../../plots/dpdk-port.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let absent = match (Reference::Dpdk.check_built(), myelin_dpdk::version()) {
        (Err(reason @ reference::Error::Absent { .. }), _) => Some(reason.to_string()),
        (Err(error), _) => return Err(error.into()),
        (Ok(()), Err(reason)) => Some(reason.to_string()),
        (Ok(()), Ok(_)) => None,
    };
    if let Some(reason) = absent {
        let row = Row::of("skipped").with("variant", "all");
        findings.add_row(row.with("reason", reason));
        return Ok(());
    }
    measure_round_trips(session, findings)?;
    measure_rates(session, findings)?;
    findings.set("probe_mode", Mode::Inline);
    findings.set(
        "devices",
        "net_af_xdp over virtual links, copy mode, no busy polling",
    );
    findings.set(
        "rate",
        "packets that arrived over the time from the first send to the last arrival, while the sender goes as fast as it can",
    );
    findings.set("sent", format!("in bursts of {BURST}"));
    Ok(())
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
    let build = || Ok((build(session)?, Vec::new()));
    let claims = |samples: &Deployments, _: &TripSubjects| {
        let claim = |(batch, payload): (usize, usize)| {
            let [bare, chain] = [0, 1].map(|number| slot(batch, number, payload));
            let (batch, payload) = (BATCHES[batch], PAYLOADS[payload]);
            let id = format!("round trip / bare forwarder, {payload} B, batch {batch}");
            Claim::at_most(id, samples.ratio(chain, bare), BOUND)
        };
        cases().map(claim).collect()
    };
    let trips = session.round_trips(0.5, &[Mode::Inline], findings, build, claims)?;
    for (batch, payload) in cases() {
        for (number, name) in SUBJECTS.iter().enumerate() {
            let median = trips.samples.median(slot(batch, number, payload));
            findings.add_row(
                Row::of("round trips")
                    .with("variant", *name)
                    .with("batch", BATCHES[batch])
                    .with("payload_bytes", PAYLOADS[payload])
                    .with_estimate("rtt_p50", "_us", median),
            );
        }
    }
    Ok(())
}

fn measure_rates(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let packets = session.effort.choose(500, 20_000, 50_000);
    let sampling = Sampling::of("packet rates").share(0.5);
    let rates = Subjects::new(FIGURES, [BATCHES.len(), SUBJECTS.len(), PAYLOADS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let made = build(session)?;
        rates.measure(turns, |[batch, number, payload]| {
            let variant = &made[batch * SUBJECTS.len() + number];
            variant.overload_trial((PAYLOADS[payload], packets, BURST), session)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let claim = |(batch, payload): (usize, usize)| {
            let both = [0, 1].map(|number| rates.at(samples, [batch, number, payload]));
            let (batch, payload) = (BATCHES[batch], PAYLOADS[payload]);
            let id = format!("rate of the bare forwarder / rate, {payload} B, batch {batch}");
            let [bare, chain] = &both;
            let is_overloaded = both
                .iter()
                .all(|rate| rate.values("least_lost_share").all(|lost| lost > 0.0));
            Claim::at_most(id, bare.ratio(chain, "rate"), BOUND).provided(if is_overloaded {
                Ok(())
            } else {
                Err("the sender is not fast enough to overload both".to_owned())
            })
        };
        cases().map(claim).collect()
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (batch, payload) in cases() {
        for (number, name) in SUBJECTS.iter().enumerate() {
            let row = Row::of("packet rates")
                .with("variant", *name)
                .with("batch", BATCHES[batch])
                .with("payload_bytes", PAYLOADS[payload]);
            findings.add_row(rates.at(&samples, [batch, number, payload]).add_to(row));
        }
    }
    Ok(())
}

/// Index of a subject, from the indices of batch size, subject and payload.
fn slot(batch: usize, number: usize, payload: usize) -> usize {
    (batch * SUBJECTS.len() + number) * PAYLOADS.len() + payload
}

/// Indices of batch size and payload.
fn cases() -> impl Iterator<Item = (usize, usize)> {
    (0..BATCHES.len()).flat_map(|batch| (0..PAYLOADS.len()).map(move |payload| (batch, payload)))
}
