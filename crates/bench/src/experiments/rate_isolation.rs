//! `rate-isolation`: two routers on one core, one of them flooded, without and with policing
//! (Rathore et al. 2022, Table 1).

use std::time::Duration;

use myelin_metrics::stats::Deployments;

use crate::figures::Column::{Hidden, Interval, Least, Median};
use crate::figures::{Figure, Subject, Subjects};
use crate::generator::check_offered;
use crate::published::rate_control;
use crate::routers::{RouterKind, RouterTurn, Routers, quantile_us};
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

/// A turn of both routers.
struct CaseTurn {
    flooded: RouterTurn,
    conforming: RouterTurn,
    profile_pps: f64,
    capacity_pps: f64,
}

impl CaseTurn {
    fn sojourn_us(&self, share: f64) -> f64 {
        quantile_us(&self.conforming.counters.sojourn, share)
    }
}

fn share(packets: u64, all: u64) -> f64 {
    packets as f64 / all as f64
}

const FIGURES: &[Figure<CaseTurn>] = &[
    Figure::new("capacity_kpps", Median, |turn| turn.capacity_pps / 1e3),
    Figure::new("profile_kpps", Median, |turn| turn.profile_pps / 1e3),
    Figure::new("neighbour_sent_kpps", Median, |turn| {
        turn.flooded.kpps(turn.flooded.sent.packets)
    }),
    Figure::new("sent_kpps", Median, |turn| {
        turn.conforming.kpps(turn.conforming.sent.packets)
    }),
    Figure::new("neighbour_arrived_kpps", Median, |turn| {
        turn.flooded.kpps(turn.flooded.counters.packets_in)
    }),
    Figure::new("neighbour_out_kpps", Median, |turn| {
        turn.flooded.kpps(turn.flooded.counters.packets_out)
    }),
    Figure::new("out_kpps", Median, |turn| {
        turn.conforming.kpps(turn.conforming.counters.packets_out)
    }),
    Figure::new("neighbour_policed_kpps", Median, |turn| {
        turn.flooded.kpps(turn.flooded.counters.policed)
    }),
    // Due packets that the generator did not send, as a share.
    Figure::new("neighbour_short", Median, |turn| {
        1.0 - turn.flooded.sent.offered()
    }),
    Figure::new("sender_short", Interval(""), |turn| {
        1.0 - turn.conforming.sent.offered()
    }),
    // Packets to the conforming router at its front door, as a share. The link's ring drops the
    // others.
    Figure::new("arrived", Interval(""), |turn| {
        share(
            turn.conforming.counters.packets_in,
            turn.conforming.sent.packets,
        )
    }),
    // Forwarded packets, as a share of those at the front door, and of all.
    Figure::new("passed", Interval(""), |turn| {
        share(
            turn.conforming.counters.packets_out,
            turn.conforming.counters.packets_in,
        )
    }),
    Figure::new("kept", Interval(""), |turn| turn.conforming.kept()),
    Figure::new("lowest_kept", Least, |turn| turn.conforming.kept()),
    Figure::new("sojourn_p50_us", Median, |turn| turn.sojourn_us(0.5)),
    Figure::new("sojourn_p99", Interval("_us"), |turn| turn.sojourn_us(0.99)),
    Figure::new("neighbour_of_allowed", Hidden, |turn| {
        let seconds = turn.conforming.sent.seconds;
        let allowed = turn.profile_pps * seconds + FLOODED_BURST as f64;
        turn.flooded.counters.packets_out as f64 / allowed
    }),
    Figure::new("load_of_capacity", Hidden, |turn| {
        let packets = turn.flooded.sent.packets + turn.conforming.sent.packets;
        packets as f64 / turn.conforming.sent.seconds / turn.capacity_pps
    }),
    Figure::new("neighbour_offered", Hidden, |turn| {
        turn.flooded.sent.offered()
    }),
    Figure::new("offered", Hidden, |turn| turn.conforming.sent.offered()),
];

fn cases() -> Subjects<CaseTurn, 1> {
    Subjects::new(FIGURES, [CASES.len()])
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
        let sampling = Sampling::of(format!("two {} routers", kind.name()))
            .rounds(session.effort.choose(2, 3, 8))
            .share(1.0 / SUBJECTS.len() as f64);
        let deploy = |turns: &mut Turns<'_>| measure(kind, functions, session, turns);
        let judge = |samples: &Deployments, (): &()| claims(kind.name(), samples);
        let (samples, ()) = session.sample(sampling, findings, deploy, judge)?;
        findings.rows.extend(cases().rows(&samples, |[case]| {
            Row::of("two routers")
                .with("routers", kind.name())
                .with("case", CASES[case].0)
        }));
    }
    Ok(())
}

fn measure(
    kind: RouterKind,
    functions: &'static [&'static str],
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
    cases().measure(turns, |[case]| {
        let (_, [flooded, conforming], is_policed) = CASES[case];
        let routers = if is_policed { &policed } else { &free };
        let generated_pps = generated * profile_pps;
        let streams = [
            (flooded * generated_pps, 1, u64::MAX),
            (conforming * generated_pps, CLUSTER as usize, CLUSTER),
        ];
        let mut turns = routers.send_and_count(&streams, TURN_TIME)?;
        for router in &mut turns {
            router.sent.due /= generated;
        }
        Ok(CaseTurn {
            conforming: turns.swap_remove(1),
            flooded: turns.swap_remove(0),
            profile_pps,
            capacity_pps,
        })
    })
}

fn claims(name: &str, samples: &Deployments) -> Vec<Claim> {
    let cases = cases();
    let [alone, unpoliced, policed] =
        [ALONE, UNPOLICED, POLICED].map(|case| cases.at(samples, [case]));
    let conforming = |case: &Subject<'_, CaseTurn>| {
        check_offered("conforming traffic", case.median("offered"), OFFERED_BOUND)
    };
    // If the generator sends only part of the flood, the claims are undecided.
    let both = |case: &Subject<'_, CaseTurn>| {
        check_offered("flood", case.median("neighbour_offered"), OFFERED_BOUND)
            .and_then(|()| conforming(case))
    };
    let mut claims = Vec::new();
    // If the core can process the whole flood, the other router loses no packets.
    if unpoliced
        .median("load_of_capacity")
        .is_some_and(|load| load.value > 1.0)
    {
        let id = format!("{name}: kept beside a flooded neighbour, not policed");
        let claim = Claim::at_most(id, unpoliced.median("kept"), KEPT_BOUND);
        claims.push(rate_control::KEPT_UNPOLICED.add_to(claim.provided(both(&unpoliced))));
    }
    // The contract begins at the front door. Losses in the link's ring, because the receive work
    // gets too little time, are a separate claim.
    let id =
        format!("{name}: kept beside a flooded neighbour, policed, of packets at the front door");
    let claim = Claim::at_least(id, policed.median("passed"), KEPT_BOUND);
    claims.push(rate_control::KEPT_POLICED.add_to(claim.provided(both(&policed))));
    let id = format!(
        "{name}: packets at the front door beside a flooded neighbour, policed, of those sent"
    );
    let claim = Claim::at_least(id, policed.median("arrived"), KEPT_BOUND);
    claims.push(claim.provided(both(&policed)));
    let id = format!("{name}: flooded neighbour, policed, of what its profile allows");
    let claim = Claim::at_most(id, policed.median("neighbour_of_allowed"), LIMITED_BOUND);
    claims.push(claim.provided(both(&policed)));
    let id = format!("{name}: sojourn p99 beside a policed flood / alone");
    let claim = Claim::at_most(id, policed.ratio(&alone, "sojourn_p99"), SOJOURN_BOUND);
    claims.push(claim.provided(both(&policed).and_then(|()| conforming(&alone))));
    claims
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;
    use crate::judged::Judged;

    /// Profile, packets a second; a turn takes a second.
    const PPS: f64 = 10_000.0;

    /// A router that gets a share of the due packets, and forwards up to `limit` of them.
    fn turn(due: f64, sent: f64, limit: u64) -> RouterTurn {
        let packets = (due * sent) as u64;
        RouterTurn::forwarded(due, packets, packets.min(limit))
    }

    /// Verdicts of the claims about a router that forwards up to `limits` packets of the flooded
    /// and the conforming stream, and a generator that sends these shares of them.
    fn verdicts(limits: [u64; 2], sent: [f64; 2]) -> Judged {
        let mut samples = Deployments::default();
        for _ in 0..8 {
            let of_case = |(_, [flooded, conforming], is_policed): (&str, [f64; 2], bool)| {
                let limits = if is_policed { limits } else { [40_000, 2000] };
                CaseTurn {
                    flooded: turn(flooded * PPS, sent[0], limits[0]),
                    conforming: turn(conforming * PPS, sent[1], limits[1]),
                    profile_pps: PPS,
                    capacity_pps: 4.0 * PPS,
                }
            };
            samples.push(cases().observed(CASES.map(of_case)));
        }
        Judged::of(claims("test", &samples))
    }

    #[test]
    fn a_policer_that_works_fulfils_all_claims() {
        let all = verdicts([10_000, 10_000], [1.0, 1.0]);
        assert_eq!(all.counts(Verdict::Holds), (5, 5), "{all:?}");
    }

    #[test]
    fn a_leaky_policer_is_found() {
        // It lets half of the flood pass, and the other router starves.
        let all = verdicts([50_000, 2000], [1.0, 1.0]);
        let wrong = all.with(Verdict::False);
        assert_eq!(wrong.len(), 2, "{all:?}");
        assert!(wrong[0].contains("policed, of packets at the front door"));
        assert!(wrong[1].contains("of what its profile allows"));
    }

    #[test]
    fn a_generator_that_sends_half_decides_nothing() {
        for sent in [[0.5, 1.0], [1.0, 0.5], [0.94, 1.0]] {
            let all = verdicts([10_000, 10_000], sent);
            assert_eq!(all.counts(Verdict::Undecided), (5, 5), "{all:?}");
        }
    }

    #[test]
    fn a_core_that_has_time_for_the_flood_has_no_claim_about_harm() {
        let all = verdicts([10_000, 10_000], [0.2, 1.0]);
        let holding = all.with(Verdict::Holds).into_iter();
        assert!(
            holding
                .chain(all.with(Verdict::False))
                .all(|id| !id.contains("not policed"))
        );
    }
}
