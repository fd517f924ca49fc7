//! `dpdk-port`: round trip and packet rate of a chain between DPDK devices, compared with a bare
//! DPDK forwarder.
//!
//! Both use the same devices (`net_af_xdp` on virtual links, copy mode), core and burst size. The
//! chain does more: its front door parses, classifies, counts and stamps each packet, and it
//! records the sojourn.

use myelin_measure::Mode;
use myelin_measure::bandwidth::TrialResult;
use myelin_metrics::stats::Deployments;

use crate::figures::Column::{Interval, Least};
use crate::figures::{Figure, Subjects};
use crate::reference::Reference;
use crate::round_trips::{PAYLOADS, TripSubjects};
use crate::sampling::{Sampling, Turns};
use crate::variants::{self, VariantSpec};
use crate::{Claim, Error, Experiment, Findings, Row, Session, experiment};

const BATCHES: [u16; 2] = [1, variants::BEST_BATCH];
/// The subjects, in this order for each of [`BATCHES`].
const SUBJECTS: [&str; 2] = ["bare DPDK forwarder", "chain of one forward"];
/// Packets of each system call of the sender. With single packets, the sender would limit the rate.
const BURST: u16 = 32;
/// Largest ratio of the chain's cost to the bare forwarder's.
const BOUND: f64 = 1.03;

const FIGURES: &[Figure<TrialResult>] = &[
    Figure::new("rate", Interval("_mpps"), |trial| trial.carried_mpps),
    Figure::new("least_lost_share", Least, |trial| {
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
    let built = Reference::Dpdk
        .check_built()
        .map_err(|reason| reason.to_string());
    let library = || myelin_dpdk::version().map_err(|reason| reason.to_string());
    if let Err(reason) = built.and_then(|()| library()) {
        findings.add_row(Findings::skipped_row("variant", "all", &reason));
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

/// Both [`SUBJECTS`] with each of [`BATCHES`].
fn specs() -> Result<Vec<VariantSpec>, Error> {
    experiment::parse_list("dpdk-port", include_str!("../../cases/dpdk-port.yaml"))
}

fn measure_round_trips(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let specs = specs()?;
    let build = || variants::build(&specs, session);
    let claims = |samples: &Deployments, subjects: &TripSubjects| {
        let claim = |(batch, payload): (usize, usize)| {
            let both = [0, 1].map(|number| batch * SUBJECTS.len() + number);
            let [bare, chain] = both.map(|variant| subjects.slot(variant, payload, 0));
            let (batch, payload) = (BATCHES[batch], PAYLOADS[payload]);
            let id = format!("round trip / bare forwarder, {payload} B, batch {batch}");
            Claim::at_most(id, samples.ratio(chain, bare), BOUND)
        };
        cases().map(claim).collect()
    };
    let trips = session.round_trips(0.5, &[Mode::Inline], findings, build, claims)?;
    for (batch, payload) in cases() {
        for (number, name) in SUBJECTS.iter().enumerate() {
            let variant = batch * SUBJECTS.len() + number;
            let median = trips
                .samples
                .median(trips.subjects.slot(variant, payload, 0));
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
    let specs = specs()?;
    let packets = session.effort.choose(500, 20_000, 50_000);
    let sampling = Sampling::of("packet rates").share(0.5);
    let rates = Subjects::new(FIGURES, [BATCHES.len(), PAYLOADS.len(), SUBJECTS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let (made, _) = variants::build(&specs, session)?;
        rates.measure(turns, |[batch, payload, number]| {
            let variant = &made[batch * SUBJECTS.len() + number];
            variant.overload_trial((PAYLOADS[payload], packets, BURST), session)
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let claim = |(batch, payload): (usize, usize)| {
            let both = [0, 1].map(|number| rates.at(samples, [batch, payload, number]));
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
    findings
        .rows
        .extend(rates.rows(&samples, |[batch, payload, number]| {
            Row::of("packet rates")
                .with("variant", SUBJECTS[number])
                .with("batch", BATCHES[batch])
                .with("payload_bytes", PAYLOADS[payload])
        }));
    Ok(())
}

/// Indices of batch size and payload.
fn cases() -> impl Iterator<Item = (usize, usize)> {
    (0..BATCHES.len()).flat_map(|batch| (0..PAYLOADS.len()).map(move |payload| (batch, payload)))
}
