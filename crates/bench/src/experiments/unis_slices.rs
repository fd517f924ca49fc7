//! `unis-slices`: what the occupancy rule of UNiS is worth when slices are too short or too long,
//! on a live core (Anthony et al. 2020, Figs. 14 and 15). `unis-occupancy` simulates the same.

use std::time::Duration;

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::{Parameters, UnisParameters};

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{BATCH, LivePipeline, LiveSetup, LiveWindow, RING, chain_of};
use crate::published::unis;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

const FUNCTIONS: usize = 5;
/// Kinds, and the cycles of the functions in turn. A worker learns the cost of its own packets, so
/// functions of variable cost are those that take turns along the chain.
const KINDS: [(&str, &[u32]); 3] = [("light", &[50]), ("medium", &[150]), ("mixed", &[150, 250])];
const MIXED: usize = 2;
/// Length of a slice: the time to fill this part of the next ring, %.
const SLICES_PERCENT: [u32; 5] = [25, 50, 75, 100, 125];
const SHORT: usize = 0;
const PUBLISHED_SLICE: usize = 2;
const LONG: usize = 4;
const RULES: [&str; 2] = ["rule off", "rule on"];
const OFF: usize = 0;
const ON: usize = 1;
/// Least throughput over that with the published slice, where the paper sees no large difference.
const STEADY_BOUND: f64 = 0.95;

const FIGURES: &[Figure<LiveWindow>] = &[
    Figure::new("throughput", Interval("_mpps"), LiveWindow::own_mpps),
    Figure::new("lost_inside_of_delivered", Median, LiveWindow::lost_inside),
    Figure::new("switches_per_s", Median, LiveWindow::switches_per_s),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-slices",
    about: "UNiS with slices for 25 to 125 % of a ring, with and without its occupancy rule, on a live core",
    differs: "the core is handed over by a futex, between batches; a function leaves packets for which the next ring has no room, so a slice that is too long wastes time and loses no packet; functions of two costs stand for those of variable cost",
    run,
    plots: include_str!("../../plots/unis-slices.yaml"),
};

fn subjects() -> Subjects<LiveWindow, 3> {
    Subjects::new(FIGURES, [KINDS.len(), SLICES_PERCENT.len(), RULES.len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("ring_entries", RING);
    findings.set("batch", BATCH);
    findings.set("functions", FUNCTIONS);
    let window = Duration::from_millis(session.effort.choose(30, 100, 200));
    findings.set("window_ms", window.as_millis() as u64);
    let has_rule = !session.has_fault(Fault::LiveRuleOff);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, slice, rule]| {
            let parameters = parameters(slice, has_rule && rule == ON);
            let cycles = chain_of(KINDS[kind].1, FUNCTIONS);
            let setup = LiveSetup::shared(cycles, Some(Parameters::Unis(parameters)))?;
            Ok(LivePipeline::start(session.program, &setup)?.observe(window))
        })
    };
    let sampling = Sampling::of("slices on one core").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[kind, slice, rule]| {
        Row::of("slices")
            .with("chain", KINDS[kind].0)
            .with("slice_percent", SLICES_PERCENT[slice])
            .with("rule", RULES[rule])
    });
    Ok(())
}

fn parameters(slice: usize, occupancy_rule: bool) -> UnisParameters {
    UnisParameters {
        slice_share: f64::from(SLICES_PERCENT[slice]) / 100.0,
        occupancy_rule,
        ..UnisParameters::for_batch(BATCH.into())
    }
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (kind, (name, _)) in KINDS.into_iter().enumerate() {
        let at = |slice, rule| subjects.at(samples, [kind, slice, rule]);
        let ratio = |slice, rule| at(slice, rule).ratio(&at(PUBLISHED_SLICE, rule), "throughput");
        let id = |slice: usize, rule: usize| {
            format!(
                "throughput, {}, slices of {} % / 75 %, {FUNCTIONS} {name}",
                RULES[rule], SLICES_PERCENT[slice]
            )
        };
        if let Some(drops) = unis::LONG_SLICE.get(kind) {
            let off = Claim::at_most(id(LONG, OFF), ratio(LONG, OFF), drops.value);
            claims.push(drops.add_to(off));
            let short = Claim::at_least(id(SHORT, OFF), ratio(SHORT, OFF), STEADY_BOUND);
            claims.push(unis::SHORT_SLICE.add_to(short));
        }
        for slice in [SHORT, LONG] {
            let steady = Claim::at_least(id(slice, ON), ratio(slice, ON), STEADY_BOUND);
            claims.push(unis::ANY_SLICE.add_to(steady));
        }
    }
    let at = |rule| subjects.at(samples, [MIXED, PUBLISHED_SLICE, rule]);
    let worth = at(ON).ratio(&at(OFF), "throughput");
    let id = format!("throughput, rule on / off, {FUNCTIONS} mixed");
    claims.push(unis::RULE.add_to(Claim::at_least(id, worth, 1.0)));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_tell_a_rule_from_none() {
        let judge = |long_with_rule: u64| {
            let mut all = Deployments::default();
            for _ in 0..8 {
                let observe = |[_, slice, rule]: [usize; 3]| {
                    let packets = match (slice, rule) {
                        (LONG, ON) => long_with_rule,
                        (LONG, _) => 70,
                        _ => 100,
                    };
                    LiveWindow {
                        cpu_s: 1.0,
                        packets,
                        taken: packets,
                        ..LiveWindow::default()
                    }
                };
                all.push(subjects().observed(subjects().all().map(observe)));
            }
            let claims = claims(&all).into_iter();
            let of_rule = claims.filter(|claim| claim.id.contains("rule on, slices of 125 %"));
            of_rule.map(|claim| claim.holds).collect::<Vec<_>>()
        };
        assert_eq!(judge(100), [Some(true); 3]);
        assert_eq!(judge(70), [Some(false); 3]);
    }
}
