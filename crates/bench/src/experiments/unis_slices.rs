//! `unis-slices`: what the occupancy rule of UNiS is worth when slices are too short or too long,
//! on a live core (Anthony et al. 2020, Figs. 14 and 15). `unis-occupancy` simulates the same.

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::Parameters;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::live_core::{self, BATCH, LiveSetup, LiveWindow, chain_of};
use crate::sampling::{Sampling, Turns};
use crate::slices::{self, FUNCTIONS, OFF, ON, PUBLISHED_SLICE, RULES, SHORT, SLICES_PERCENT};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Kinds, and the cycles of the functions in turn. A worker learns the cost of its own packets, so
/// functions of variable cost are those that take turns along the chain.
const KINDS: [(&str, &[u32]); 3] = [("light", &[50]), ("medium", &[150]), ("mixed", &[150, 250])];
const MIXED: usize = 2;

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
    findings.set("functions", FUNCTIONS);
    let window = live_core::window(session, [30, 100, 200], findings);
    let has_rule = !session.has_fault(Fault::LiveRuleOff);
    let has_tiny = session.has_fault(Fault::TinySlices);
    let subjects = subjects();
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[kind, slice, rule]| {
            let is_on = has_rule && rule == ON;
            let mut parameters = slices::parameters(slice, is_on, BATCH.into());
            if has_tiny && slice == SHORT {
                parameters.slice_share /= 100.0;
            }
            let cycles = chain_of(KINDS[kind].1, FUNCTIONS);
            let setup = LiveSetup::shared(cycles, Some(Parameters::Unis(parameters)))?;
            setup.observe(session.program, window)
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

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (kind, (name, _)) in KINDS.into_iter().enumerate() {
        let at = |slice, rule| subjects.at(samples, [kind, slice, rule]);
        let ratio = |rule, slice| at(slice, rule).ratio(&at(PUBLISHED_SLICE, rule), "throughput");
        let chain = format!("{FUNCTIONS} {name}");
        claims.extend(slices::claims(("throughput", &chain), Some(kind), ratio));
        if kind == MIXED {
            let worth = at(PUBLISHED_SLICE, ON).ratio(&at(PUBLISHED_SLICE, OFF), "throughput");
            claims.push(slices::claim_of_rule(("throughput", &chain), worth));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::LONG;

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
                        cpu_s: vec![1.0],
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
