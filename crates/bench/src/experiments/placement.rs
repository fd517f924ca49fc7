//! `placement`: the algorithms that place functions on nodes, on networks and chains that a seed
//! draws, and how long a placement takes.

mod draw;

use std::time::Instant;

use myelin_metrics::stats::{Deployments, LOOKS};
use myelin_planner::placement::{self, Placement};
use myelin_spec::PlacementAlgorithm;

use self::draw::{Drawn, Size};
use crate::figures::Column::{Interval, MeanValue, Sum};
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns};
use crate::simulated::Seeds;
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Largest delay of `delay` over that of `optimal`, the median of all drawn networks.
const OPTIMAL_BOUND: f64 = 1.03;
/// Largest time of a placement on the great network over that on the small one.
const TIME_BOUND: f64 = 200.0;
/// Nodes of the two networks of which the times are.
const NODES: [usize; 2] = [100, 10_000];
/// Functions of the chain of which the times are.
const LENGTH: usize = 8;

const LBLC: usize = 2;
const DELAY: usize = 4;
const OPTIMAL: usize = 5;

const ALGORITHMS: [PlacementAlgorithm; 6] = [
    PlacementAlgorithm::LoadBalancing,
    PlacementAlgorithm::LeastConnections,
    PlacementAlgorithm::LoadBalancingLeastConnections,
    PlacementAlgorithm::RoundRobin,
    PlacementAlgorithm::Delay,
    PlacementAlgorithm::Optimal,
];

/// Results of an algorithm on drawn networks.
#[derive(Debug, Clone, Default)]
struct Quality {
    /// Delay over that of `optimal`, of each chain that it places.
    of_optimal: Vec<f64>,
    /// Chains with a greater delay than by `lblc`, or that only `lblc` places.
    worse_than_lblc: usize,
    /// Chains that `optimal` places and the algorithm refuses.
    refused: usize,
    crossings: usize,
}

impl Quality {
    fn median_of_optimal(&self) -> f64 {
        let mut sorted = self.of_optimal.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

const QUALITY: &[Figure<Quality>] = &[
    Figure::new("delay_of_optimal", Interval(""), Quality::median_of_optimal),
    Figure::new("greatest_delay_of_optimal", MeanValue, |quality| {
        let of_optimal = quality.of_optimal.iter().copied();
        of_optimal.reduce(f64::max).unwrap_or(f64::NAN)
    }),
    Figure::new("placed", Sum, |quality| quality.of_optimal.len() as f64),
    Figure::new("refused", Sum, |quality| quality.refused as f64),
    Figure::new("worse_than_lblc", Sum, |quality| {
        quality.worse_than_lblc as f64
    }),
    Figure::new("crossings", MeanValue, |quality| {
        quality.crossings as f64 / quality.of_optimal.len().max(1) as f64
    }),
];

const TIME: &[Figure<f64>] = &[Figure::new("time", Interval("_ms"), |ms| *ms)];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "placement",
    about: "simulated: the algorithms of `placement` on networks and chains that a seed draws, and the time of a placement on 100 and 10,000 nodes",
    differs: "the dissertation measures delays on four servers; these are computed worst cases",
    run,
    plots: include_str!("../../plots/placement.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let chains = session.effort.choose(20, 40, 200);
    findings.set("networks", chains);
    let is_debug = cfg!(debug_assertions);
    findings.set("build", if is_debug { "debug" } else { "release" });
    draw::describe(findings);
    measure_quality(chains, session, findings)?;
    measure_time(session, findings)
}

fn quality_subjects() -> Subjects<Quality, 1> {
    Subjects::new(QUALITY, [ALGORITHMS.len()])
}

fn measure_quality(
    chains: usize,
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    let subjects = quality_subjects();
    let mut algorithms = ALGORITHMS;
    if session.has_fault(Fault::PlaceByLoad) {
        algorithms[DELAY] = PlacementAlgorithm::LoadBalancing;
    }
    let mut seeds = Seeds::default();
    let deploy = |turns: &mut Turns<'_>| {
        let compared = compare(algorithms, chains, seeds.next([0]));
        subjects.measure(turns, |[algorithm]| Ok(compared[algorithm].clone()))
    };
    let sampling = Sampling::of("chains").rounds(1).share(0.5);
    let claims = |all: &Deployments, (): &()| quality_claims(all);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[algorithm]| {
        Row::of("simulated placements").with("algorithm", ALGORITHMS[algorithm].as_str())
    });
    findings.rows.extend(rows);
    Ok(())
}

fn quality_claims(samples: &Deployments) -> Vec<Claim> {
    let delay = quality_subjects().at(samples, [DELAY]);
    vec![
        Claim::figure_at_most(
            "simulated chains, delay, worse than by lblc",
            Some(delay.values("worse_than_lblc").sum()),
            0.0,
        )
        .provided(check_deployments(samples)),
        Claim::at_most(
            "simulated chains, delay, worst case / optimal",
            delay.median("delay_of_optimal"),
            OPTIMAL_BOUND,
        ),
    ]
}

/// The precondition of a claim on a count: enough deployments, as for other claims.
fn check_deployments(samples: &Deployments) -> Result<(), String> {
    let count = samples.len();
    let is_enough = count >= LOOKS[0];
    is_enough
        .then_some(())
        .ok_or_else(|| format!("too few deployments: {count}"))
}

/// Places chains on small networks with all algorithms.
fn compare(
    algorithms: [PlacementAlgorithm; 6],
    chains: usize,
    seed: u64,
) -> [Quality; ALGORITHMS.len()] {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all: [Quality; ALGORITHMS.len()] = Default::default();
    for _ in 0..chains {
        let size = Size {
            nodes: random.usize(2..=5),
            functions: random.usize(2..=5),
        };
        let drawn = Drawn::new(size, &mut random);
        let seed = random.u64(..);
        let placed = algorithms.map(|algorithm| place(&drawn, algorithm, seed));
        let Some(optimal) = &placed[OPTIMAL] else {
            continue;
        };
        let lblc_ns = placed[LBLC].as_ref().map(|placed| placed.delay_ns);
        for (quality, placed) in all.iter_mut().zip(&placed) {
            let delay_ns = placed.as_ref().map_or(u64::MAX, |placed| placed.delay_ns);
            quality.worse_than_lblc += usize::from(lblc_ns.is_some_and(|lblc| delay_ns > lblc));
            match placed {
                None => quality.refused += 1,
                Some(placed) => {
                    let ratio = delay_ns as f64 / optimal.delay_ns.max(1) as f64;
                    quality.of_optimal.push(ratio);
                    quality.crossings += placed.crossings;
                }
            }
        }
    }
    all
}

fn place(drawn: &Drawn, algorithm: PlacementAlgorithm, seed: u64) -> Option<Placement> {
    placement::place(&drawn.network, &drawn.request, algorithm, seed).ok()
}

/// The subjects of the times: algorithm and network. `optimal` has none.
fn time_subjects() -> Subjects<f64, 2> {
    Subjects::new(TIME, [OPTIMAL, NODES.len()])
}

fn measure_time(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let subjects = time_subjects();
    // Placements of one time on the smaller network.
    let small: u32 = session.effort.choose(1, 10, 10);
    let mut seeds = Seeds::default();
    let deploy = |turns: &mut Turns<'_>| {
        let mut random = fastrand::Rng::with_seed(seeds.next([0]));
        let drawn = NODES.map(|nodes| {
            let functions = LENGTH;
            Drawn::new(Size { nodes, functions }, &mut random)
        });
        subjects.measure(turns, |[algorithm, network]| {
            let repeats = if network == 0 { small } else { 1 };
            let start = Instant::now();
            for seed in 0..repeats {
                std::hint::black_box(place(&drawn[network], ALGORITHMS[algorithm], seed.into()));
            }
            Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(repeats))
        })
    };
    let sampling = Sampling::of("times").rounds(3).share(0.5);
    let claims = |all: &Deployments, (): &()| time_claims(all);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[algorithm, network]| {
        Row::of("simulated networks, measured times")
            .with("algorithm", ALGORITHMS[algorithm].as_str())
            .with("nodes", NODES[network])
    });
    findings.rows.extend(rows);
    Ok(())
}

fn time_claims(samples: &Deployments) -> Vec<Claim> {
    let subjects = time_subjects();
    let ratio = |algorithm| {
        let [small, great] = [0, 1].map(|network| subjects.at(samples, [algorithm, network]));
        great.ratio(&small, "time")
    };
    let id = |algorithm: usize| {
        let name = ALGORITHMS[algorithm];
        format!("simulated networks, {name}, time on 10,000 nodes / on 100")
    };
    vec![
        Claim::at_most(id(DELAY), ratio(DELAY), TIME_BOUND),
        Claim::shown(id(LBLC), ratio(LBLC)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most drawn chains have a placement, and some do not.
    #[test]
    fn a_seed_draws_chains_of_which_most_are_placed() {
        let compared = compare(ALGORITHMS, 100, 1);
        let placed = compared[OPTIMAL].of_optimal.len();
        assert!((60..100).contains(&placed), "{placed}");
        assert!((compared[OPTIMAL].median_of_optimal() - 1.0).abs() < 1e-9);
        assert_eq!(compared[DELAY].worse_than_lblc, 0);
        assert!(compared[0].worse_than_lblc > 0, "lb");
        let again = compare(ALGORITHMS, 100, 1);
        assert_eq!(again[0].of_optimal, compared[0].of_optimal);
    }

    #[test]
    fn great_networks_have_room_for_the_chain() {
        for nodes in NODES {
            let mut random = fastrand::Rng::with_seed(1);
            let functions = LENGTH;
            let drawn = Drawn::new(Size { nodes, functions }, &mut random);
            for algorithm in &ALGORITHMS[..OPTIMAL] {
                assert!(place(&drawn, *algorithm, 1).is_some(), "{algorithm}");
            }
        }
    }
}
