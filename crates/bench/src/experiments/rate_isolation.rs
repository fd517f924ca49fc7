//! `rate-isolation`: two routers on one core, one of them flooded, without and with policing
//! (Rathore et al. 2022, Table 1).

use std::time::Duration;

use myelin_metrics::stats::Deployments;

use crate::generator::check_offered;
use crate::published::rate_control;
use crate::routers::{RouterKind, RouterTurn, Routers};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Load of the flooded router, in profiles.
const FLOOD: f64 = 10.0;
/// Burst of the conforming router, packets: the size of a link's ring, because a worker may forward
/// a full ring as one cluster.
const BURST: u64 = 256;
/// Burst of the flooded router, packets. It is so small that its first packets do not affect the
/// 99th percentile.
const FLOODED_BURST: u64 = 32;
/// Cluster of the conforming sender, packets.
const CLUSTER: u64 = 16;
/// Largest share of the capacity of both profiles together.
const BOOKED_SHARE: f64 = 0.5;
/// Share of the offered rate that the generator keeps free.
const SPARE_SHARE: f64 = 0.35;
/// Duration of a case in a round.
const TURN_TIME: Duration = Duration::from_millis(50);
/// Duration of the search for the capacity.
const SEARCH_TIME: Duration = Duration::from_millis(100);
/// Least share of the flood, and of the conforming traffic, that the generator must send.
const OFFERED_BOUND: f64 = 0.95;
/// Least share of its packets that the conforming router forwards.
const KEPT_BOUND: f64 = 0.999;
/// Largest share of its allowance that the flooded router forwards. The allowance includes a full
/// bucket.
const LIMITED_BOUND: f64 = 1.01;
/// Largest p99 of its sojourn over that without a flood.
const SOJOURN_BOUND: f64 = 1.2;

/// The compared routers, and the functions behind each, which make it slow enough that one core can
/// flood it.
const SUBJECTS: [(RouterKind, &[&str]); 4] = [
    (RouterKind::Kernel, &["kind: xor, config: { key: 90 }"; 24]),
    (RouterKind::Namespace, &["kind: monitor"]),
    (RouterKind::NamespaceXdp, &["kind: monitor"]),
    (
        RouterKind::Worker,
        &["kind: compress, config: { algorithm: zstd }"],
    ),
];

/// Load of the flooded router and of the other one, in profiles, and whether the chains are
/// policed.
const CASES: [(&str, [f64; 2], bool); 4] = [
    ("alone", [0.0, 1.0], true),
    ("both keep to their profiles", [1.0, 1.0], true),
    ("neighbour floods, not policed", [FLOOD, 1.0], false),
    ("neighbour floods, policed", [FLOOD, 1.0], true),
];
const ALONE: usize = 0;
const UNPOLICED: usize = 2;
const POLICED: usize = 3;

/// The figures of a case in a round. Their slots have this order.
#[derive(Debug, Clone, Copy)]
enum Figure {
    NeighbourSent,
    Sent,
    NeighbourArrived,
    NeighbourOut,
    Out,
    NeighbourPoliced,
    /// Shares of the due packets that the generator sent.
    NeighbourOffered,
    Offered,
    /// Share of the packets to the conforming router that reach its front door. The link's ring
    /// drops the others.
    Arrived,
    /// Share of the packets at its front door that it forwards.
    Passed,
    /// Share of its packets that it forwards.
    Kept,
    SojournP50,
    SojournP99,
    /// Packets of the flooded router, as a share of what its profile allows.
    NeighbourOfAllowed,
    /// Load of the core, as a share of its capacity.
    Load,
}

const FIGURES: usize = Figure::Load as usize + 1;
/// Slots after those of the cases: packets a second.
const CAPACITY: usize = CASES.len() * FIGURES;
const PROFILE: usize = CAPACITY + 1;

fn slot(case: usize, figure: Figure) -> usize {
    case * FIGURES + figure as usize
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rate-isolation",
    about: "two routers on one core, one flooded at ten times its profile: throughput of the other, without and with policing",
    differs: "routers are chains on one core of this machine, not virtual machines or containers; rates are shares of the capacity of that core",
    run,
    plots: include_str!("../../plots/rate-isolation.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("frame_bytes", crate::routers::FRAME_BYTES);
    for (kind, functions) in SUBJECTS {
        let stage = format!("two {} routers", kind.name());
        let sampling = Sampling {
            stage: &stage,
            rounds: session.effort.choose(2, 3, 8),
            share: 1.0 / SUBJECTS.len() as f64,
        };
        let deploy = |turns: &mut Turns<'_>| measure(kind, functions, session, turns);
        let judge = |samples: &Deployments, (): &()| claims(kind.name(), samples);
        let (samples, ()) = session.sample(sampling, findings, deploy, judge)?;
        for case in 0..CASES.len() {
            findings.add_row(row(kind.name(), &samples, case));
        }
    }
    Ok(())
}

fn measure(
    kind: RouterKind,
    functions: &[&str],
    session: Session<'_>,
    turns: &mut Turns<'_>,
) -> Result<(), Error> {
    // The two routers. `sla` makes the SLA for a burst.
    let deploy = |sla: &dyn Fn(u64) -> String| {
        let slas = [FLOODED_BURST, BURST].map(sla);
        Routers::new(session.program, kind, functions, &slas)
    };
    let free = deploy(&|_| "enforce: none".to_owned())?;
    let (offered_pps, capacity_pps) = free.capacity(SEARCH_TIME)?;
    let profile_pps = (capacity_pps * BOOKED_SHARE / 2.0)
        .min(offered_pps * (1.0 - SPARE_SHARE) / (FLOOD + 1.0))
        .floor()
        .max(1.0);
    let leak = if session.has_fault(Fault::LeakyPolicer) {
        4.0
    } else {
        1.0
    };
    let policed = deploy(&|burst| {
        let rate_pps = leak * profile_pps;
        format!("rate: {rate_pps}pps, burst: {burst}, enforce: policer")
    })?;
    let generated = if session.has_fault(Fault::HalfRateGenerator) {
        0.5
    } else {
        1.0
    };
    turns.measure_figures(
        CASES.len(),
        |_| false,
        |case| {
            let (_, [flooded, conforming], is_policed) = CASES[case];
            let routers = if is_policed { &policed } else { &free };
            let streams = [
                (generated * flooded * profile_pps, 1, u64::MAX),
                (
                    generated * conforming * profile_pps,
                    CLUSTER as usize,
                    CLUSTER,
                ),
            ];
            let mut turn = routers.send_and_count(&streams, TURN_TIME)?;
            for router in &mut turn {
                router.sent.due /= generated;
            }
            Ok(figures(&turn, profile_pps, capacity_pps))
        },
    )?;
    turns.record([capacity_pps, profile_pps]);
    Ok(())
}

/// The figures of the flooded and the conforming router, in the order of [`Figure`].
fn figures(turns: &[RouterTurn], profile_pps: f64, capacity_pps: f64) -> [f64; FIGURES] {
    let [flooded, conforming] = [&turns[0], &turns[1]];
    let seconds = conforming.sent.seconds;
    let kpps = |packets: u64| packets as f64 / seconds / 1e3;
    let share = |packets: u64, all: u64| packets as f64 / all as f64;
    let (sent, counters) = (&conforming.sent, &conforming.counters);
    let us = |quantile| match counters.sojourn.quantile(quantile) {
        Some(ns) => ns as f64 / 1e3,
        None => f64::NAN,
    };
    let allowed = profile_pps * seconds + FLOODED_BURST as f64;
    [
        kpps(flooded.sent.packets),
        kpps(sent.packets),
        kpps(flooded.counters.packets_in),
        kpps(flooded.counters.packets_out),
        kpps(counters.packets_out),
        kpps(flooded.counters.policed),
        flooded.sent.offered(),
        sent.offered(),
        share(counters.packets_in, sent.packets),
        share(counters.packets_out, counters.packets_in),
        share(counters.packets_out, sent.packets),
        us(0.5),
        us(0.99),
        flooded.counters.packets_out as f64 / allowed,
        (flooded.sent.packets + sent.packets) as f64 / seconds / capacity_pps,
    ]
}

fn claims(name: &str, samples: &Deployments) -> Vec<Claim> {
    let median = |case, figure| samples.median(slot(case, figure));
    let conforming = |case| {
        let offered = median(case, Figure::Offered);
        check_offered("conforming traffic", offered, OFFERED_BOUND)
    };
    // If the generator sends only part of the flood, the claims are undecided.
    let both = |case| {
        let flood = median(case, Figure::NeighbourOffered);
        check_offered("flood", flood, OFFERED_BOUND).and_then(|()| conforming(case))
    };
    let mut claims = Vec::new();
    // If the core can process the whole flood, the other router loses no packets.
    if median(UNPOLICED, Figure::Load).is_some_and(|load| load.value > 1.0) {
        let id = format!("{name}: kept beside a flooded neighbour, not policed");
        let claim = Claim::at_most(id, median(UNPOLICED, Figure::Kept), KEPT_BOUND);
        claims.push(rate_control::KEPT_UNPOLICED.add_to(claim.provided(both(UNPOLICED))));
    }
    // The contract begins at the front door. Losses in the link's ring, because the receive work
    // gets too little time, are a separate claim.
    let id =
        format!("{name}: kept beside a flooded neighbour, policed, of packets at the front door");
    let claim = Claim::at_least(id, median(POLICED, Figure::Passed), KEPT_BOUND);
    claims.push(rate_control::KEPT_POLICED.add_to(claim.provided(both(POLICED))));
    let id = format!(
        "{name}: packets at the front door beside a flooded neighbour, policed, of those sent"
    );
    let claim = Claim::at_least(id, median(POLICED, Figure::Arrived), KEPT_BOUND);
    claims.push(claim.provided(both(POLICED)));
    let id = format!("{name}: flooded neighbour, policed, of what its profile allows");
    let claim = Claim::at_most(
        id,
        median(POLICED, Figure::NeighbourOfAllowed),
        LIMITED_BOUND,
    );
    claims.push(claim.provided(both(POLICED)));
    let [p99, alone] = [POLICED, ALONE].map(|case| slot(case, Figure::SojournP99));
    let id = format!("{name}: sojourn p99 beside a policed flood / alone");
    let claim = Claim::at_most(id, samples.ratio(p99, alone), SOJOURN_BOUND);
    claims.push(claim.provided(both(POLICED).and_then(|()| conforming(ALONE))));
    claims
}

fn row(name: &str, samples: &Deployments, case: usize) -> Row {
    let median = |figure| samples.median(slot(case, figure));
    let value = |figure| median(figure).map(|figure| figure.value);
    let kpps = |slot| samples.median(slot).map(|rate| rate.value / 1e3);
    let short = |figure| samples.median_of(|round| 1.0 - round(slot(case, figure)));
    Row::of("two routers")
        .with("routers", name)
        .with("case", CASES[case].0)
        .with("capacity_kpps", kpps(CAPACITY))
        .with("profile_kpps", kpps(PROFILE))
        .with("neighbour_sent_kpps", value(Figure::NeighbourSent))
        .with("sent_kpps", value(Figure::Sent))
        .with("neighbour_arrived_kpps", value(Figure::NeighbourArrived))
        .with("neighbour_out_kpps", value(Figure::NeighbourOut))
        .with("out_kpps", value(Figure::Out))
        .with("neighbour_policed_kpps", value(Figure::NeighbourPoliced))
        .with(
            "neighbour_short",
            short(Figure::NeighbourOffered).map(|short| short.value),
        )
        .with_estimate("sender_short", "", short(Figure::Offered))
        .with_estimate("arrived", "", median(Figure::Arrived))
        .with_estimate("passed", "", median(Figure::Passed))
        .with_estimate("kept", "", median(Figure::Kept))
        .with(
            "lowest_kept",
            samples.figures(slot(case, Figure::Kept)).reduce(f64::min),
        )
        .with("sojourn_p50_us", value(Figure::SojournP50))
        .with_estimate("sojourn_p99", "_us", median(Figure::SojournP99))
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;
    use myelin_packet::sojourn::Histogram;

    use super::*;
    use crate::generator::StreamCounts;
    use crate::routers::RouterCounters;

    /// Profile, packets a second; a turn takes a second.
    const PPS: f64 = 10_000.0;

    /// A router that gets a share of the due packets, and forwards up to `limit` of them.
    fn turn(due: f64, sent: f64, limit: u64) -> RouterTurn {
        let packets = (due * sent) as u64;
        let packets_out = packets.min(limit);
        let mut sojourn = Histogram::new();
        sojourn.record_many(1000, packets_out);
        RouterTurn {
            sent: StreamCounts {
                packets,
                due,
                seconds: 1.0,
            },
            counters: RouterCounters {
                packets_in: packets,
                policed: packets - packets_out,
                packets_out,
                sojourn,
            },
        }
    }

    /// Verdicts of the claims about a router that forwards up to `limits` packets of the flooded
    /// and the conforming stream, and a generator that sends these shares of them.
    fn verdicts(limits: [u64; 2], sent: [f64; 2]) -> Vec<(String, Verdict)> {
        let mut samples = Deployments::default();
        for _ in 0..8 {
            let of_case = |(_, [flooded, conforming], is_policed): (&str, [f64; 2], bool)| {
                let limits = if is_policed { limits } else { [40_000, 2000] };
                let turns = [
                    turn(flooded * PPS, sent[0], limits[0]),
                    turn(conforming * PPS, sent[1], limits[1]),
                ];
                figures(&turns, PPS, 4.0 * PPS)
            };
            let slots = CASES.into_iter().flat_map(of_case);
            samples.push(slots.map(|figure| vec![figure]).collect());
        }
        let claims = claims("test", &samples).into_iter();
        claims
            .filter_map(|claim| Some((claim.id.clone(), claim.verdict()?)))
            .collect()
    }

    /// The claims with this verdict.
    fn with_verdict(all: &[(String, Verdict)], verdict: Verdict) -> Vec<&str> {
        let those = all.iter().filter(|(_, its)| *its == verdict);
        those.map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn a_policer_that_works_fulfils_all_claims() {
        let all = verdicts([10_000, 10_000], [1.0, 1.0]);
        assert_eq!(all.len(), 5);
        assert_eq!(with_verdict(&all, Verdict::Holds).len(), 5, "{all:?}");
    }

    #[test]
    fn a_leaky_policer_is_found() {
        // It lets half of the flood pass, and the other router starves.
        let all = verdicts([50_000, 2000], [1.0, 1.0]);
        let wrong = with_verdict(&all, Verdict::False);
        assert_eq!(wrong.len(), 2, "{all:?}");
        assert!(wrong[0].contains("policed, of packets at the front door"));
        assert!(wrong[1].contains("of what its profile allows"));
    }

    #[test]
    fn a_generator_that_sends_half_decides_nothing() {
        for sent in [[0.5, 1.0], [1.0, 0.5], [0.94, 1.0]] {
            let all = verdicts([10_000, 10_000], sent);
            assert_eq!(with_verdict(&all, Verdict::Undecided).len(), 5, "{all:?}");
        }
    }

    #[test]
    fn a_core_that_has_time_for_the_flood_has_no_claim_about_harm() {
        let all = verdicts([10_000, 10_000], [0.2, 1.0]);
        assert!(
            all.iter().all(|(id, _)| !id.contains("not policed")),
            "{all:?}"
        );
    }
}
