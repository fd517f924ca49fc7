//! `sfc-gap`: packets that pass no function after the chain is active.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use myelin_measure::clock::now_ns;
use myelin_metrics::stats::Deployments;
use myelin_spec::Space;

use crate::cluster::placements::{ALGORITHMS, places};
use crate::cluster::probe::{Datagram, Ends, INTERVAL};
use crate::cluster::{Cluster, DELAY_NS, LONGEST, NODES, with_mean};
use crate::figures::Column::{Interval, Sum};
use crate::figures::{Figure, Subjects};
use crate::published::sfc;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Largest gap of ten functions over the published one.
const GAP_BOUND: f64 = 0.1;
/// Deployments without which no count shows that a packet never passes.
const NEEDED: usize = 8;
/// Packets before the request, and after the chain is active.
const BEFORE: u32 = 5;
const AFTER: u32 = 20;
/// Time before the request at which a chain counts as active with [`Fault::EarlyActive`], ns.
const EARLY_NS: u64 = 1_000_000_000;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sfc-gap",
    about: "Fig. 2.4(b): packets that pass no function after a chain of 1 to 10 functions over four nodes is active, and the gap from active to the first packet that passed all",
    differs: "the dissertation has four servers with clocks that NTP aligns; here four nodes are on one machine and have one clock",
    run,
    plots: include_str!("../../plots/sfc-gap.yaml"),
};

/// The packets around the moment when a chain is active.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Activation {
    /// Packets that passed no function, or not all, although they were sent after that moment.
    unchained: f64,
    /// Packets sent before the request or later that did not arrive.
    lost: f64,
    /// Packets that passed some of the functions.
    partly: f64,
    /// Packets that passed all functions.
    chained: f64,
    /// Time from that moment to the arrival of the first packet that passed all functions.
    gap_ms: f64,
    /// Time from the sending of that packet to that moment; below zero if it was sent later.
    lead_ms: f64,
}

impl Activation {
    fn of(datagrams: &[Datagram], functions: usize, active_ns: u64) -> Self {
        let count = |test: &dyn Fn(&Datagram) -> bool| {
            datagrams.iter().filter(|datagram| test(datagram)).count() as f64
        };
        let passed = |datagram: &Datagram| datagram.arrival.map(|arrival| arrival.functions);
        let mut chained = datagrams
            .iter()
            .filter(|one| passed(one) == Some(functions));
        let first = chained.next();
        let from_active_ms = |ns: u64| (ns as f64 - active_ns as f64) / 1e6;
        let arrived = first.and_then(|first| first.arrival);
        Self {
            unchained: count(&|one| {
                one.sent_ns >= active_ns && passed(one).is_some_and(|passed| passed != functions)
            }),
            lost: count(&|one| one.arrival.is_none()),
            partly: count(&|one| {
                passed(one).is_some_and(|passed| passed != 0 && passed != functions)
            }),
            chained: count(&|one| passed(one) == Some(functions)),
            gap_ms: arrived.map_or(f64::NAN, |arrival| from_active_ms(arrival.ns).max(0.0)),
            lead_ms: first.map_or(f64::NAN, |first| -from_active_ms(first.sent_ns)),
        }
    }
}

const FIGURES: &[Figure<Activation>] = &[
    Figure::new("unchained", Sum, |one| one.unchained),
    Figure::new("lost", Sum, |one| one.lost),
    Figure::new("partly", Sum, |one| one.partly),
    Figure::new("chained", Sum, |one| one.chained),
    Figure::new("gap", Interval("_ms"), |one| one.gap_ms),
    Figure::new("lead", Interval("_ms"), |one| one.lead_ms),
];

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let lengths: &[usize] = session.effort.choose(
        &[LONGEST],
        &[1, 4, 7, LONGEST],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, LONGEST],
    );
    let interval = match session.interval {
        Duration::ZERO => INTERVAL,
        interval => interval,
    };
    findings.set("nodes", NODES);
    findings.set("probe_interval_us", interval.as_micros());
    let subjects = Subjects::new(FIGURES, [ALGORITHMS.len(), lengths.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        let cluster = Cluster::start(session.program, NODES, DELAY_NS)?;
        subjects.measure(turns, |[algorithm, length]| {
            let places = places(ALGORITHMS[algorithm], NODES, lengths[length])?;
            activate(session, &cluster, &places, interval)
        })
    };
    let longest = lengths.len() - 1;
    let claims = |samples: &Deployments, (): &()| {
        let total = |figure| {
            let all = subjects.all().map(|at| subjects.at(samples, at));
            all.flat_map(|subject| subject.values(figure).collect::<Vec<_>>())
                .sum::<f64>()
        };
        let enough = match samples.len() {
            few if few < NEEDED => Err(format!("{few} deployments; {NEEDED} are needed")),
            _ => Ok(()),
        };
        let counts = ["unchained", "lost", "partly"].map(|figure| {
            let id = match figure {
                "unchained" => "packets after active that did not pass all functions",
                "lost" => "packets lost while a chain comes up",
                _ => "packets that passed some functions, not all",
            };
            let claim = Claim::figure_at_most(id, total(figure), 0.0);
            claim.provided(enough.clone())
        });
        let gaps = [(0, sfc::GAP_LB_MS), (2, sfc::GAP_LBLC_MS)];
        let gaps = gaps.map(|(algorithm, published)| {
            let name = ALGORITHMS[algorithm].as_str();
            let gap = subjects.at(samples, [algorithm, longest]).median("gap");
            let id = format!("gap, {LONGEST} functions, {name}, ms");
            published.add_to(Claim::at_most(id, gap, GAP_BOUND * published.value))
        });
        counts.into_iter().chain(gaps).collect()
    };
    let sampling = Sampling::of("activations").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for at in subjects.all() {
        let [algorithm, length] = at;
        let row = Row::of("activations")
            .with("placement", ALGORITHMS[algorithm].as_str())
            .with("functions", lengths[length]);
        let subject = subjects.at(&samples, at);
        let row = with_mean(subject.add_to(row), "gap", "_ms", &subject);
        findings.add_row(row);
    }
    Ok(())
}

/// Brings a chain up while packets pass, and removes it.
fn activate(
    session: Session<'_>,
    cluster: &Cluster,
    places: &[usize],
    interval: Duration,
) -> Result<Activation, Error> {
    let ends: Ends = cluster.ends(places)?;
    ends.wait_for(0)?;
    let is_over = AtomicBool::new(false);
    let (datagrams, active) = thread::scope(|scope| {
        let watching = scope.spawn(|| ends.watch(interval, &is_over));
        thread::sleep(interval * BEFORE);
        let requested_ns = now_ns();
        let active = cluster.up(places, Space::Kernel).map(|()| {
            if session.has_fault(Fault::EarlyActive) {
                requested_ns.saturating_sub(EARLY_NS)
            } else {
                now_ns()
            }
        });
        thread::sleep(interval * AFTER);
        is_over.store(true, Ordering::Relaxed);
        let datagrams = watching.join();
        (datagrams, active)
    });
    let ended = || Err(Error::Internal("the thread of the probe ended".to_owned()));
    let datagrams = datagrams.unwrap_or_else(|_| ended())?;
    let asked = places.len() + usize::from(session.has_fault(Fault::ShortChain));
    let activation = Activation::of(&datagrams, asked, active?);
    cluster.down()?;
    Ok(activation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::probe::Arrival;

    #[test]
    fn packets_count_by_the_moment_when_they_are_sent() {
        let datagram = |sent_ms: u64, functions: Option<usize>| Datagram {
            sent_ns: sent_ms * 1_000_000,
            arrival: functions.map(|functions| Arrival {
                ns: (sent_ms + 1) * 1_000_000,
                functions,
            }),
        };
        let datagrams = [
            datagram(0, Some(0)),
            datagram(4, None),
            datagram(8, Some(1)),
            datagram(12, Some(0)),
            datagram(16, Some(3)),
        ];
        let counted = |active_ms: u64| Activation::of(&datagrams, 3, active_ms * 1_000_000);
        let expected = Activation {
            unchained: 1.0,
            lost: 1.0,
            partly: 1.0,
            chained: 1.0,
            gap_ms: 7.0,
            lead_ms: -6.0,
        };
        assert_eq!(counted(10), expected);
        // The answer came after the first chained packet: no gap.
        assert_eq!(counted(18).gap_ms.to_bits(), 0.0_f64.to_bits());
        assert_eq!(counted(18).unchained.to_bits(), 0.0_f64.to_bits());
        assert!(Activation::of(&datagrams[..2], 3, 0).gap_ms.is_nan());
    }
}
