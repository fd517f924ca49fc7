//! Simulated cores against the planner's bound for turns by deadline (theorem 13 of
//! `docs/guarantees/proofs.md`).

use myelin_planner::calculus::{
    ArrivalCurve, DeadlineTask, LeakyBucket, RateLatency, earliest_deadline,
};
use myelin_policy::sharing::{DeadlineParameters, Parameters};
use myelin_simulator::{CoreSetup, LaneSetup, Machine, Mechanism, Pattern, Scheduler, Source};
use proptest::prelude::*;

const RING: u32 = 2048;
/// Longest time between two decisions, ns.
const INTERVAL_NS: u64 = 10_000;
/// Femtoseconds of a nanosecond and of a picosecond.
const NS: u128 = 1_000_000;
const PS: u128 = 1000;

/// A chain with a worker of its own.
#[derive(Debug, Clone, Copy)]
struct Chain {
    cost_ps: u64,
    rate_pps: f64,
    budget_ns: u64,
}

/// A core whose workers hand it over by deadlines.
#[derive(Debug)]
struct Bed {
    chains: Vec<Chain>,
    batch: u32,
    longest_turn_ns: u64,
}

fn mechanism(batch: u32) -> Mechanism {
    Mechanism {
        switch_ns: 3000,
        decision_ns: 150,
        between_batches: true,
        batch,
        read_ns: 30,
    }
}

/// The cost of a turn besides its packets, ns.
fn turn_cost_ns(batch: u32) -> u64 {
    let mechanism = mechanism(batch);
    mechanism.switch_ns + mechanism.decision_ns + mechanism.read_ns
}

impl Bed {
    /// The longest sojourn of each chain, ns.
    fn simulate(&self, time_ns: u64) -> Vec<u64> {
        let mut machine = Machine::new(7);
        let rings: Vec<usize> = self.chains.iter().map(|_| machine.add_ring(RING)).collect();
        let lanes = self.chains.iter().zip(&rings).enumerate();
        let lanes = lanes.map(|(task, (chain, ring))| LaneSetup {
            task,
            ingress: *ring,
            egress: None,
            cost_ps: chain.cost_ps,
            assumed_cost_ps: chain.cost_ps,
        });
        let setup = CoreSetup {
            lanes: lanes.collect(),
            mechanism: mechanism(self.batch),
            scheduler: Scheduler::Policy,
        };
        let policy = Parameters::Deadline(DeadlineParameters {
            batch: self.batch,
            // Three such turns of a late task are the longest one.
            turn_ns: self.longest_turn_ns / 3,
            longest_turn_ns: self.longest_turn_ns,
            interval_ns: INTERVAL_NS,
            ..DeadlineParameters::default()
        });
        let policy = policy.policy(setup.shared_core(|_| RING));
        machine.add_core(setup, policy);
        let sources = self.chains.iter().zip(rings).map(|(chain, ring)| Source {
            ring,
            rate_pps: chain.rate_pps,
            pattern: Pattern::Even,
            budget_ns: Some(chain.budget_ns),
        });
        let chains: Vec<usize> = sources.map(|source| machine.add_source(source)).collect();
        machine.run(time_ns);
        let longest = chains.iter().map(|chain| {
            let result = machine.chain(*chain);
            assert!(
                result.delivered > 0 && result.lost_at_entry == 0,
                "{result:?}"
            );
            result.sojourn.max_ns().unwrap_or(0)
        });
        longest.collect()
    }

    /// The bound of each chain, ns.
    fn bounds(&self) -> Option<Vec<u64>> {
        let tasks = self.chains.iter().map(|chain| {
            let rate_pps = chain.rate_pps as u128 + 1;
            let curve_of = |packet| ArrivalCurve::of(LeakyBucket::new(packet, rate_pps * packet));
            // A turn ends at the first decision after its longest time, between two batches.
            let turn_ns = self.longest_turn_ns + INTERVAL_NS + turn_cost_ns(self.batch);
            let batch_fs = u128::from(chain.cost_ps) * PS * u128::from(self.batch);
            let turn_fs = u128::from(turn_ns) * NS + batch_fs;
            DeadlineTask {
                arrival: curve_of(u128::from(chain.cost_ps) * PS),
                turns: curve_of(1),
                deadline_fs: u128::from(chain.budget_ns) * NS,
                earlier_fs: 0,
                turn_fs,
                tail_fs: turn_fs,
            }
        });
        let tasks: Vec<DeadlineTask> = tasks.collect();
        let switch_fs = u128::from(turn_cost_ns(self.batch)) * NS;
        // A packet that comes to a task that waits for packets waits for the next decision.
        let idle_fs = u128::from(INTERVAL_NS) * NS + switch_fs;
        let bounds = earliest_deadline(&RateLatency::core(idle_fs), &tasks, switch_fs)?;
        Some(
            bounds
                .into_iter()
                .map(|bound| bound.from_stamp_fs.div_ceil(NS) as u64)
                .collect(),
        )
    }
}

fn beds() -> impl Strategy<Value = Bed> {
    let chain = (20_000_u64..4_000_000, 0.02_f64..0.3, 20_000_u64..2_000_000);
    let chains = prop::collection::vec(chain, 1..4);
    (chains, 1_u32..65, 10_000_u64..200_000).prop_map(|(chains, batch, longest_turn_ns)| {
        let chain = |(cost_ps, share, budget_ns): (u64, f64, u64)| {
            // The share of the core with a turn for each packet.
            let packet_ps = cost_ps + turn_cost_ns(batch) * 1000;
            Chain {
                cost_ps,
                rate_pps: share * 1e12 / packet_ps as f64,
                budget_ns,
            }
        };
        Bed {
            chains: chains.into_iter().map(chain).collect(),
            batch,
            longest_turn_ns,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// With a longest turn, no packet of the simulated policy exceeds the bound.
    #[test]
    fn no_packet_exceeds_the_bound_of_turns_by_deadline(bed in beds()) {
        let bounds = bed.bounds();
        prop_assert!(bounds.is_some(), "the core has time for a turn of each packet");
        for (longest_ns, bound_ns) in bed.simulate(20_000_000).into_iter().zip(bounds.unwrap()) {
            prop_assert!(longest_ns <= bound_ns, "{} ns above {} ns", longest_ns, bound_ns);
        }
    }
}

#[test]
fn a_packet_beside_a_backlog_waits_for_one_longest_turn() {
    let turn_ns = 100_000;
    let chain = |cost_ps, rate_pps, budget_ns| Chain {
        cost_ps,
        rate_pps,
        budget_ns,
    };
    let bed = Bed {
        // The second chain needs most of the core, and has time.
        chains: vec![
            chain(1_000_000, 1000.0, 20_000),
            chain(20_000_000, 42_000.0, 50_000_000),
        ],
        batch: 1,
        longest_turn_ns: turn_ns,
    };
    let bounds = bed.bounds().unwrap();
    let longest = bed.simulate(200_000_000);
    assert!(longest[0] <= bounds[0], "{longest:?} {bounds:?}");
    assert!(bounds[0] < 2 * turn_ns, "{bounds:?}");
}
