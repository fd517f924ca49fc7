//! `unis-latency`: the delay of packets in pipelines that share one core, at 80 % of the highest
//! throughput (Anthony et al. 2020, Fig. 5).

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::Parameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{self, LiveSetup, LiveWindow, chain_of};
use crate::published::unis;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

const LENGTHS: [usize; 2] = [3, 8];
/// Kinds, and the cycles of a packet.
const KINDS: [(&str, &[u32]); 3] = [("light", &[50]), ("medium", &[150]), ("heavy", &[250])];
const LIGHT: usize = 0;
const MEDIUM: usize = 1;
const HEAVY: usize = 2;
const SCHEDULERS: [&str; 3] = ["cooperative k=8", "unis", "deadline"];
const COOPERATIVE: usize = 0;
const UNIS: usize = 1;
const DEADLINE: usize = 2;
/// The rate of the packets, of the highest that cooperative functions carry.
const LOAD: f64 = 0.8;
/// Highest 99th percentile with `deadline`, of that with UNiS.
const DEADLINE_BOUND: f64 = 0.7;
/// The turns of `deadline` with [`Fault::LongTurns`], ns.
const LONG_TURN_NS: u64 = 1_000_000;
/// Turns that replace UNiS with [`Fault::SlowUnis`], ns.
const SLOW_NS: u64 = 2_000_000;
/// The budget of a packet, ns.
const BUDGET_NS: u64 = 350_000;

/// A pipeline at its rate.
struct Paced {
    window: LiveWindow,
    offered_mpps: f64,
}

impl Paced {
    fn mean_us(&self) -> f64 {
        self.window.sojourn.mean_ns().unwrap_or_default() / 1e3
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        let ns = self.window.sojourn.quantile(quantile);
        ns.unwrap_or_default() as f64 / 1e3
    }
}

const FIGURES: &[Figure<Paced>] = &[
    Figure::new("delay_mean", Interval("_us"), Paced::mean_us),
    Figure::new("delay_p50", Interval("_us"), |paced| paced.quantile_us(0.5)),
    Figure::new("delay_p99", Interval("_us"), |paced| {
        paced.quantile_us(0.99)
    }),
    Figure::new("offered_mpps", Median, |paced| paced.offered_mpps),
    Figure::new("carried_of_offered", Median, |paced| {
        paced.window.mpps() / paced.offered_mpps
    }),
    Figure::new("switches_per_s", Median, |paced| {
        paced.window.switches_per_s()
    }),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-latency",
    about: "delay of packets in pipelines of 3 and 8 poll-mode functions on one core at 80 % load: UNiS, cooperative turns, deadlines",
    differs: "all policies hand the core over by a futex, between batches; packets come from the memory of a process on another core and return to it",
    run,
    plots: include_str!("../../plots/unis-latency.yaml"),
};

fn subjects() -> Subjects<Paced, 3> {
    Subjects::new(FIGURES, [KINDS.len(), LENGTHS.len(), SCHEDULERS.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("load", LOAD);
    let window = live_core::window(session, [30, 150, 300], findings);
    let has_long_turns = session.has_fault(Fault::LongTurns);
    findings.set("budget_us", BUDGET_NS / 1000);
    let is_slow = session.has_fault(Fault::SlowUnis);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, length, scheduler]| {
            let cycles = chain_of(KINDS[kind].1, LENGTHS[length]);
            let observe = |scheduler, rate_pps| {
                let policy = match scheduler {
                    UNIS if is_slow => Parameters::RoundRobin { slice_ns: SLOW_NS },
                    DEADLINE if has_long_turns => Parameters::RoundRobin {
                        slice_ns: LONG_TURN_NS,
                    },
                    scheduler => policy(scheduler),
                };
                let setup = LiveSetup::shared(cycles.clone(), Some(policy))?;
                let setup = setup.fed_at(rate_pps)?;
                setup.observe(session.program, window)
            };
            // The clock of a virtual machine drifts, so each subject has its own highest rate.
            let highest_mpps = observe(COOPERATIVE, None)?.mpps();
            let offered_mpps = highest_mpps * LOAD;
            let rate_pps = (offered_mpps * 1e6) as u64;
            Ok(Paced {
                window: observe(scheduler, Some(rate_pps))?,
                offered_mpps,
            })
        })
    };
    let sampling = Sampling::of("pipelines at 80 % load").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[kind, length, scheduler]| {
        Row::of("delays")
            .with("kind", KINDS[kind].0)
            .with("functions", LENGTHS[length])
            .with("scheduler", SCHEDULERS[scheduler])
    });
    Ok(())
}

fn policy(scheduler: usize) -> Parameters {
    match scheduler {
        COOPERATIVE => Parameters::Cooperative { reads: 8 },
        UNIS => Parameters::Unis(live_core::unis()),
        _ => live_core::deadline().for_hand_over(BUDGET_NS),
    }
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (length, functions) in LENGTHS.into_iter().enumerate() {
        let at = |kind, scheduler| subjects.at(samples, [kind, length, scheduler]);
        for kind in [LIGHT, MEDIUM] {
            let [one, other] =
                [UNIS, COOPERATIVE].map(|scheduler| at(kind, scheduler).slot("delay_mean"));
            let above = samples.median_of(|round| round(one) - round(other));
            let id = format!(
                "mean delay, unis - cooperative k=8, us, {functions} {}",
                KINDS[kind].0
            );
            // The paper has a figure for light functions only.
            claims.push(if kind == LIGHT {
                let bound = unis::LIGHT_DELAY_US.value;
                unis::LIGHT_DELAY_US.add_to(Claim::at_most(id, above, bound))
            } else {
                Claim::shown(id, above)
            });
        }
        let heavy = at(HEAVY, UNIS).ratio(&at(HEAVY, COOPERATIVE), "delay_mean");
        let id = format!("mean delay, unis / cooperative k=8, {functions} heavy");
        let bound = unis::HEAVY_DELAY.value;
        claims.push(unis::HEAVY_DELAY.add_to(Claim::at_most(id, heavy, bound)));
        for (kind, (name, _)) in KINDS.into_iter().enumerate() {
            let ratio = at(kind, DEADLINE).ratio(&at(kind, UNIS), "delay_p99");
            let id = format!("99th percentile, deadline / unis, {functions} {name}");
            claims.push(Claim::at_most(id, ratio, DEADLINE_BOUND));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use myelin_packet::sojourn::Histogram;

    use super::*;

    #[test]
    fn claims_compare_delays() {
        let judge = |deadline_us: u64| {
            let mut all = Deployments::default();
            for _ in 0..8 {
                let observe = |[_, _, scheduler]: [usize; 3]| {
                    let us = [100, 110, deadline_us][scheduler];
                    let mut sojourn = Histogram::new();
                    sojourn.record_many(us * 1000, 100);
                    Paced {
                        window: LiveWindow {
                            seconds: 1.0,
                            packets: 100,
                            sojourn,
                            ..LiveWindow::default()
                        },
                        offered_mpps: 1e-4,
                    }
                };
                all.push(subjects().observed(subjects().all().map(observe)));
            }
            claims(&all)
        };
        let holds = |claims: &[Claim], part: &str| {
            let of_part = claims.iter().filter(|claim| claim.id.contains(part));
            of_part.map(|claim| claim.holds).collect::<Vec<_>>()
        };
        let claims = judge(50);
        assert_eq!(holds(&claims, "deadline / unis"), [Some(true); 6]);
        assert_eq!(holds(&claims, "us, 3 light"), [Some(true)]);
        assert_eq!(holds(&claims, "8 heavy")[..1], [Some(false)]);
        assert_eq!(holds(&judge(100), "deadline / unis"), [Some(false); 6]);
    }
}
