//! The claims about all sets.

use myelin_metrics::stats::{CONFIDENCE, median_ci};

use super::draw::PoolKind;
use super::verdict::Verdict;
use super::{ChainResult, Results};
use crate::Claim;

/// Largest excused share of the time.
const EXCUSED_SHARE: f64 = 0.001;
/// Largest share of conforming packets that are policed or lost.
const MISSING_SHARE: f64 = 0.001;
/// Largest median of bound over longest delay.
const TIGHTNESS: f64 = 3.0;
/// Fewest sets for a claim.
const SETS_NEEDED: usize = 200;

pub(super) fn decide_claims(results: &Results) -> Vec<Claim> {
    let chains = || results.chains.iter();
    let unexplained: usize = chains().map(|one| one.count(Verdict::Unexplained)).sum();
    let excused = results.excused_ns as f64 / results.sum(|of| of.turns_ns).max(1) as f64;
    let above_paper = chains().filter(|one| {
        let sum_ns = one.bound.paper_sum_ns;
        sum_ns.is_some_and(|sum_ns| one.bound.bound_ns > sum_ns)
    });
    let missing = results.sum(|of| of.missing);
    let sent = results.sum(|of| of.sent);
    let figures = [
        (
            "delays above the bound without an excuse",
            unexplained as f64,
            0.0,
        ),
        ("share of the time that is excused", excused, EXCUSED_SHARE),
        (
            "chains whose bound is above the sum of Rathore et al., equation (4), with the same latencies",
            above_paper.count() as f64,
            0.0,
        ),
        (
            "share of the packets sent to profile that are policed or lost",
            missing as f64 / sent.max(1) as f64,
            MISSING_SHARE,
        ),
    ];
    let figures = figures.map(|(id, measured, bound)| Claim::figure_at_most(id, measured, bound));
    let tightness = [
        ("all", None),
        (PoolKind::Kernel.name(), Some(PoolKind::Kernel)),
        (PoolKind::Worker.name(), Some(PoolKind::Worker)),
    ]
    .map(|(name, kind)| {
        let of = |one: &&ChainResult| kind.is_none_or(|kind| one.kind == kind);
        let chains: Vec<&ChainResult> = results.chains.iter().filter(of).collect();
        // Chains of one set share their turns, so a set counts once.
        let of_set = |set: &[&ChainResult]| {
            let ratios: Vec<f64> = set.iter().filter_map(|one| one.tightness()).collect();
            median_ci(&ratios, CONFIDENCE).map(|median| median.value)
        };
        let sets = chains.chunk_by(|one, next| one.set == next.set);
        let ratios: Vec<f64> = sets.filter_map(of_set).collect();
        let id = format!("bound over the longest delay, {name} chains, median");
        Claim::at_most(id, median_ci(&ratios, CONFIDENCE), TIGHTNESS)
    });
    let precondition = if !results.is_calibrated {
        Err("the costs are not calibrated".to_owned())
    } else if results.sets < SETS_NEEDED {
        Err(format!("{} sets; {SETS_NEEDED} are needed", results.sets))
    } else {
        Ok(())
    };
    let claims = figures.into_iter().chain(tightness);
    // Few sets can break a bound, but not show that it holds.
    claims
        .map(|claim| match claim.holds {
            Some(false) if results.is_calibrated => claim,
            _ => claim.provided(precondition.clone()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope;

    use myelin_planner::{Costs, Machine, PortKind};

    use super::super::draw::{AdmissionCheck, Pool};
    use super::super::testbed::{Turn, Turns};
    use super::super::verdict::Absence;
    use super::super::{Results, SEED};
    use super::*;
    use crate::frames::SplitMix;

    const LATE: &str = "delays above the bound";
    const EXCUSED: &str = "time that is excused";
    const MISSING: &str = "policed or lost";

    /// A turn of a chain: its delay over its bound, the lost ones of 1000 packets, and the absence
    /// of its server, ns.
    type MadeUp = (fn(u64) -> Option<u64>, u64, u64);

    /// Claims about this number of sets, all with the same turn.
    fn judged(
        sets: usize,
        is_calibrated: bool,
        (delay_ns, lost, serving_ns): MadeUp,
    ) -> Vec<Claim> {
        let admission = AdmissionCheck {
            costs: Costs::default(),
            machine: Machine {
                ingress: PortKind::EndHost,
                egress: PortKind::Virtual,
                ..Machine::with_end_hosts(2)
            },
        };
        let mut random = SplitMix(SEED);
        let pool = Pool::draw(PoolKind::Kernel, 1, &mut random);
        let set = pool.draw_set(3, &admission, &mut random).unwrap();
        let delays = set.members.iter().map(|one| delay_ns(one.bound.bound_ns));
        let turns = Turns {
            turns: vec![Turn {
                worst_ns: delays.collect(),
                sent: 1000,
                lost,
                absence: Absence {
                    turn_ns: 100_000_000,
                    sending_ns: 0,
                    serving_ns,
                },
            }],
            policed: 0,
        };
        let mut results = Results {
            is_calibrated,
            ..Results::default()
        };
        for _ in 0..sets {
            results.add(PoolKind::Kernel, &set, &turns, [0, 0], 0);
        }
        decide_claims(&results)
    }

    /// The verdict of the claim whose name contains `part`.
    fn verdict(claims: &[Claim], part: &str) -> envelope::Verdict {
        let claim = claims.iter().find(|claim| claim.id.contains(part)).unwrap();
        claim.verdict().unwrap()
    }

    const WITHIN: MadeUp = (|bound_ns| Some(bound_ns / 2), 0, 0);

    #[test]
    fn delays_within_the_bounds_fulfil_the_claims() {
        let claims = judged(SETS_NEEDED, true, WITHIN);
        for claim in &claims {
            // There is no worker chain.
            let expected = if claim.id.contains("worker chains") {
                envelope::Verdict::Undecided
            } else {
                envelope::Verdict::Holds
            };
            assert_eq!(claim.verdict(), Some(expected), "{claim:?}");
        }
        assert_eq!(claims.len(), 7);
    }

    #[test]
    fn few_sets_and_costs_that_are_not_calibrated_decide_nothing() {
        for claims in [
            judged(SETS_NEEDED - 1, true, WITHIN),
            judged(SETS_NEEDED, false, WITHIN),
            judged(SETS_NEEDED, false, (|bound_ns| Some(2 * bound_ns), 500, 0)),
        ] {
            let is_undecided =
                |claim: &Claim| claim.verdict() == Some(envelope::Verdict::Undecided);
            assert!(claims.iter().all(is_undecided), "{claims:?}");
        }
    }

    #[test]
    fn wrong_clocks_are_found_in_few_sets() {
        // A fast clock makes all delays longer by more than any absence.
        let claims = judged(
            1,
            true,
            (|bound_ns| Some(bound_ns + 10_000_000), 0, 1_000_000),
        );
        assert_eq!(verdict(&claims, LATE), envelope::Verdict::False);
        assert_eq!(verdict(&claims, MISSING), envelope::Verdict::Undecided);
        // With a slow one, packets arrive before they are sent, as if they were of an earlier turn.
        let claims = judged(1, true, (|_| None, 1000, 0));
        assert_eq!(verdict(&claims, MISSING), envelope::Verdict::False);
        assert_eq!(verdict(&claims, LATE), envelope::Verdict::Undecided);
    }

    #[test]
    fn an_absence_excuses_delays_for_a_small_share_of_the_time() {
        let late = |bound_ns: u64| Some(bound_ns + 50_000);
        let claims = judged(SETS_NEEDED, true, (late, 0, 50_000));
        assert_eq!(verdict(&claims, LATE), envelope::Verdict::Holds);
        assert_eq!(verdict(&claims, EXCUSED), envelope::Verdict::Holds);
        let claims = judged(SETS_NEEDED, true, (late, 0, 500_000));
        assert_eq!(verdict(&claims, LATE), envelope::Verdict::Holds);
        assert_eq!(verdict(&claims, EXCUSED), envelope::Verdict::False);
    }
}
