//! `unis-occupancy`: what the occupancy rule of UNiS is worth when slices are too short or too
//! long, on a simulated core (Anthony et al. 2020, Figs. 14 and 15).

use myelin_metrics::stats::Deployments;

use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns};
use crate::simulated::{
    self, BATCH, CoreScheduler, FLIP_NS, KINDS, LIGHT, LINE_RATE_PPS, MEDIUM, MIXED, Observation,
    Seeds, SimulatedChain, Span, Testbed, YIELD_NS,
};
use crate::slices::{self, FUNCTIONS, OFF, ON, PUBLISHED_SLICE, RULES, SLICES_PERCENT};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Kinds, and whether UNiS assumes their mean cost for all functions. The packets of a simulated
/// function cost the same, so these stand for the functions of variable cost.
const CHAINS: [(&str, usize, bool); 3] = [
    ("light", LIGHT, false),
    ("medium", MEDIUM, false),
    ("mixed assumed alike", MIXED, true),
];
const ALIKE: usize = 2;
/// Costs of a switch, ns: by flips, and the least.
const SWITCHES_NS: [u64; 2] = [FLIP_NS, YIELD_NS];

const FIGURES: &[Figure<Observation>] = &[
    Figure::new("throughput", Interval("_mpps"), |seen| {
        seen.throughput_mpps(0)
    }),
    Figure::new("lost_inside_of_delivered", Median, |seen| {
        seen.lost_inside(0)
    }),
    Figure::new("switches_per_s", Median, Observation::switches_per_s),
    Figure::new("work_share", Median, Observation::work_share),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-occupancy",
    about: "simulated: UNiS with slices for 25 to 125 % of a ring, with and without its occupancy rule",
    differs: "cores, switches and packets are simulated; functions whose cost is assumed wrongly stand for functions of variable cost",
    run,
    plots: include_str!("../../plots/unis-occupancy.yaml"),
};

/// One for each chain, slice, rule and switch.
fn subjects() -> Subjects<Observation, 4> {
    let shape = [
        CHAINS.len(),
        SLICES_PERCENT.len(),
        RULES.len(),
        SWITCHES_NS.len(),
    ];
    Subjects::new(FIGURES, shape)
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    simulated::describe(findings);
    findings.set("functions", FUNCTIONS);
    let span = Span::of(session.effort).times(2);
    let subjects = subjects();
    let mut seeds = Seeds::default();
    let has_rule = !session.has_fault(Fault::RuleOff);
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |at| {
            Ok(bed(at, has_rule).observe(seeds.next(at), span))
        })
    };
    let sampling = Sampling::of("slices on a simulated core").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[chain, slice, rule, switch]| {
        Row::of("simulated slices")
            .with("chain", CHAINS[chain].0)
            .with("slice_percent", SLICES_PERCENT[slice])
            .with("rule", RULES[rule])
            .with("switch_us", SWITCHES_NS[switch] / 1000)
    });
    Ok(())
}

/// The core of a subject. Without `has_rule`, no subject has the rule.
fn bed([chain, slice, rule, switch]: [usize; 4], has_rule: bool) -> Testbed {
    let (_, kind, is_alike) = CHAINS[chain];
    let parameters = slices::parameters(slice, has_rule && rule == ON, BATCH);
    let scheduler = CoreScheduler::unis("unis", parameters).with_switch(SWITCHES_NS[switch]);
    let mut chain = SimulatedChain::on_one_core(KINDS[kind], FUNCTIONS, LINE_RATE_PPS);
    if is_alike {
        for function in &mut chain.functions {
            function.assumed_cost_ps = KINDS[kind].mean_cost_ps();
        }
    }
    Testbed::of(scheduler, vec![chain])
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    for (switch, ns) in SWITCHES_NS.iter().enumerate() {
        let figure = "simulated throughput";
        for (chain, (name, ..)) in CHAINS.into_iter().enumerate() {
            let at = |rule, slice| subjects.at(samples, [chain, slice, rule, switch]);
            let chain_name = format!("switch of {} us, {FUNCTIONS} {name}", ns / 1000);
            let subject = (figure, chain_name.as_str());
            if chain == ALIKE {
                let worth = at(ON, PUBLISHED_SLICE).ratio(&at(OFF, PUBLISHED_SLICE), "throughput");
                claims.push(slices::claim_of_rule(subject, worth));
                continue;
            }
            let ratio =
                |rule, slice| at(rule, slice).ratio(&at(rule, PUBLISHED_SLICE), "throughput");
            claims.extend(slices::claims(subject, Some(chain), ratio));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;
    use crate::slices::LONG;

    #[test]
    fn long_slices_overflow_a_ring_only_without_the_rule() {
        let span = Span::of(Effort::Quick);
        for chain in [LIGHT, MEDIUM] {
            let lost = |slice, rule, has_rule| {
                bed([chain, slice, rule, 1], has_rule)
                    .observe(1, span)
                    .lost_inside(0)
            };
            assert!(lost(LONG, OFF, true) > 0.1);
            assert!(lost(LONG, ON, false) > 0.1, "the fault");
            assert!(lost(LONG, ON, true) < 1e-3);
            assert!(lost(PUBLISHED_SLICE, OFF, true) < 1e-3);
        }
    }
}
