//! `unis-multi`: chains that share a simulated core, and chains over two of them (Anthony et al.
//! 2020, Table 1).

use myelin_metrics::stats::Deployments;
use myelin_policy::sharing::UnisParameters;

use crate::figures::Column::Interval;
use crate::figures::{Figure, Subjects};
use crate::published::unis;
use crate::sampling::{Sampling, Turns};
use crate::simulated::{
    self, CoreScheduler, FAIR_SLICE_NS, KINDS, LINE_RATE_PPS, MEDIUM, Observation, PlacedFunction,
    Seeds, SimulatedChain, Span, Testbed, YIELD_NS,
};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// A configuration: its name, and the cores of the functions of S1 and S2. UNiS runs on one more
/// core.
type Configuration = (&'static str, &'static [&'static [usize]]);
const CONFIGURATIONS: [Configuration; 3] = [
    ("(a) 3 and 1 functions on one core", &[&[0, 0, 0], &[0]]),
    (
        "(b) 3+1 and 1+3 on two cores",
        &[&[0, 0, 0, 1], &[0, 1, 1, 1]],
    ),
    ("(c) 4+4 on two cores", &[&[0, 0, 0, 0, 1, 1, 1, 1]]),
];
/// Largest difference of two equal chains.
const DIFFERENCE_BOUND: f64 = 0.02;
/// Costs that UNiS assumes for the second chain with [`Fault::WrongCosts`], over the true ones.
const WRONG_COST: u64 = 10;

const COOPERATIVE: usize = 0;
const UNIS: usize = 1;
const UNIS_BY_YIELDS: usize = 2;
const DEADLINE: usize = 3;

fn schedulers() -> [CoreScheduler; 7] {
    let published = UnisParameters::default();
    [
        CoreScheduler::cooperative("cooperative k=8", 8),
        CoreScheduler::unis("unis", published),
        CoreScheduler::unis("unis, switch as cooperative", published).with_switch(YIELD_NS),
        CoreScheduler::deadline(),
        CoreScheduler::load_based(),
        CoreScheduler::fair("os 100 us", FAIR_SLICE_NS),
        CoreScheduler::round_robin("round-robin 100 us", 100_000),
    ]
}

const FIGURES: &[Figure<Observation>] = &[
    Figure::new("s1", Interval("_mpps"), |seen| seen.throughput_mpps(0)),
    Figure::new("s2", Interval("_mpps"), |seen| {
        let has_second = seen.chains.len() > 1;
        if has_second {
            seen.throughput_mpps(1)
        } else {
            f64::NAN
        }
    }),
    // Of both chains, over the larger.
    Figure::new("difference", Interval("_share"), |seen| {
        let mpps = |chain| seen.throughput_mpps(chain);
        let has_second = seen.chains.len() > 1;
        if has_second {
            (mpps(0) - mpps(1)).abs() / mpps(0).max(mpps(1))
        } else {
            f64::NAN
        }
    }),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unis-multi",
    about: "simulated: two chains on one core, and chains over two cores (UNiS, Table 1)",
    differs: "all is simulated, also what one core and its scheduler would do on this machine; (b) and (c) take two cores and a third for UNiS",
    run,
    plots: include_str!("../../plots/unis-multi.yaml"),
};

fn subjects() -> Subjects<Observation, 2> {
    Subjects::new(FIGURES, [CONFIGURATIONS.len(), schedulers().len()])
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    simulated::describe(findings);
    let span = Span::of(session.effort).times(2);
    let (subjects, schedulers) = (subjects(), schedulers());
    let mut seeds = Seeds::default();
    let is_wrong = session.has_fault(Fault::WrongCosts);
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |at| {
            let [configuration, scheduler] = at;
            let bed = bed(configuration, schedulers[scheduler], is_wrong);
            Ok(bed.observe(seeds.next(at), span))
        })
    };
    let sampling = Sampling::of("chains on simulated cores").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, |all, ()| claims(all))?;
    findings.rows = subjects.rows(&samples, |[configuration, scheduler]| {
        Row::of("simulated chains")
            .with("configuration", CONFIGURATIONS[configuration].0)
            .with("scheduler", schedulers[scheduler].name)
    });
    Ok(())
}

/// Chains of medium functions. Together they are offered a full line.
fn bed(configuration: usize, scheduler: CoreScheduler, is_wrong: bool) -> Testbed {
    let cost_ps = KINDS[MEDIUM].cost_ps(0);
    let (_, chains) = CONFIGURATIONS[configuration];
    let wrong = |chain: usize| {
        if is_wrong && chain == 1 {
            WRONG_COST
        } else {
            1
        }
    };
    let chain = |(chain, cores): (usize, &&[usize])| SimulatedChain {
        functions: cores
            .iter()
            .map(|core| PlacedFunction {
                core: *core,
                cost_ps,
                assumed_cost_ps: cost_ps * wrong(chain),
            })
            .collect(),
        rate_pps: LINE_RATE_PPS / chains.len() as f64,
    };
    let chains = chains.iter().enumerate().map(chain).collect();
    let scheduler = if is_wrong {
        scheduler.with_unis(|unis| unis.occupancy_rule = false)
    } else {
        scheduler
    };
    Testbed::of(scheduler, chains)
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = subjects();
    let mut claims = Vec::new();
    let pairs = unis::MULTI_UNIS.iter().zip(unis::MULTI_COOPERATIVE);
    for (configuration, (published, references)) in pairs.enumerate() {
        let name = CONFIGURATIONS[configuration].0;
        let of = |scheduler| subjects.at(samples, [configuration, scheduler]);
        let chains = published.iter().zip(references).zip(["s1", "s2"]);
        for ((published, reference), figure) in chains {
            let Some((published, reference)) = published.zip(reference) else {
                continue;
            };
            let chain = figure.to_uppercase();
            for (scheduler, what) in [
                (UNIS, "unis by flips / cooperative k=8 by yields"),
                (UNIS_BY_YIELDS, "same mechanism, unis / cooperative k=8"),
            ] {
                let id = format!("simulated throughput of {chain}, {what}, {name}");
                let ratio = of(scheduler).ratio(&of(COOPERATIVE), figure);
                let published = published.over(reference);
                let bound = (published.value * 1e3).floor() / 1e3;
                claims.push(published.add_to(Claim::at_least(id, ratio, bound)));
            }
            for (scheduler, published) in [(COOPERATIVE, reference), (UNIS, published)] {
                let id = format!(
                    "simulated throughput of {chain}, Mpps, {}, {name}",
                    schedulers()[scheduler].name
                );
                let median = of(scheduler).median(figure);
                claims.push(published.add_to(Claim::shown(id, median)));
            }
        }
        if CONFIGURATIONS[configuration].1.len() > 1 {
            for scheduler in [COOPERATIVE, UNIS, DEADLINE] {
                let id = format!(
                    "simulated {}, difference of S1 and S2, {name}",
                    schedulers()[scheduler].name
                );
                let difference = of(scheduler).median("difference");
                claims.push(Claim::at_most(id, difference, DIFFERENCE_BOUND));
            }
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;

    #[test]
    fn wrong_costs_starve_a_chain() {
        let span = Span::of(Effort::Quick);
        let difference = |is_wrong| {
            let seen = bed(0, schedulers()[UNIS], is_wrong).observe(1, span);
            (FIGURES[2].of)(&seen)
        };
        let (right, wrong) = (difference(false), difference(true));
        assert!(right < 0.1 && wrong > 0.2, "{right} {wrong}");
    }
}
