//! The simulator against a plain one, which steps by single packets and reads.

#[path = "reference/plain.rs"]
mod plain;

use std::collections::VecDeque;

use myelin_packet::sojourn::Histogram;
use myelin_policy::sharing::{
    DeadlineParameters, LoadBasedParameters, Parameters, SharedCore, Sharing, UnisParameters,
};
use myelin_simulator::{
    ChainResult, CoreSetup, LaneSetup, Machine, Mechanism, Pattern, Scheduler, Source,
};
use plain::{Core, Plain, Ring, Sender, next_task};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const SEED: u64 = 7;
const MS: u64 = 1_000_000;

/// A core's chain: costs of its tasks, ps, its source, and whether its last task is on the next
/// core.
#[derive(Debug, Clone)]
struct Chain {
    costs_ps: Vec<u64>,
    sources: Vec<(f64, Pattern, Option<u64>)>,
    leads_on: bool,
}

#[derive(Debug, Clone)]
struct Setup {
    chains: Vec<Vec<Chain>>,
    mechanism: Mechanism,
    kind: usize,
    capacity: u32,
    /// Whether the first task of a chain also has its last lane.
    returns: bool,
}

fn policy(kind: usize, core: SharedCore) -> Option<Sharing> {
    let parameters = match kind {
        0 => Parameters::Deadline(DeadlineParameters::default()),
        1 => Parameters::Unis(UnisParameters::default()),
        2 => Parameters::Cooperative { reads: 8 },
        3 => Parameters::RoundRobin { slice_ns: 20_000 },
        4 => Parameters::LoadTurns {
            round_ns: 200_000,
            batch: 64,
        },
        5 => Parameters::LoadBased(LoadBasedParameters::default()),
        _ => return None,
    };
    parameters.policy(core)
}

impl Setup {
    fn build(&self) -> (Machine, Plain) {
        let mut machine = Machine::new(SEED);
        let mut lanes = vec![Vec::new(); self.chains.len()];
        let mut sources = Vec::new();
        for (core, chains) in self.chains.iter().enumerate() {
            for chain in chains {
                let rings = chain.costs_ps.iter();
                let rings: Vec<usize> = rings.map(|_| machine.add_ring(self.capacity)).collect();
                let cost_ps = chain.costs_ps.iter().sum::<u64>() as f64;
                let source = |(load, pattern, budget_ns): &(f64, Pattern, Option<u64>)| Source {
                    ring: rings[0],
                    rate_pps: load * 1e12 / cost_ps,
                    pattern: *pattern,
                    budget_ns: *budget_ns,
                };
                sources.extend(chain.sources.iter().map(source));
                self.add_lanes(&mut lanes[core..], chain, &rings);
            }
        }
        let rings: usize = self
            .chains
            .iter()
            .flatten()
            .map(|chain| chain.costs_ps.len())
            .sum();
        let ring = |_| Ring {
            capacity: self.capacity,
            packets: VecDeque::new(),
            read: 0,
        };
        let mut plain = Plain {
            rings: (0..rings).map(ring).collect(),
            senders: Vec::new(),
            cores: Vec::new(),
        };
        let fair = Scheduler::Fair {
            slice_ns: 50_000,
            wake_ns: 5000,
            polls: self.kind == 7,
        };
        for lanes in lanes {
            let setup = CoreSetup {
                lanes,
                mechanism: self.mechanism,
                scheduler: if self.kind < 5 {
                    Scheduler::Policy
                } else {
                    fair
                },
            };
            let policy = policy(self.kind, setup.shared_core(|_| self.capacity));
            machine.add_core(setup.clone(), policy.clone());
            plain.cores.push(Core::new(setup, policy));
        }
        for source in sources {
            let chain = machine.add_source(source);
            plain.senders.push(Sender::new(chain, source));
        }
        (machine, plain)
    }

    /// Adds the tasks of a chain to the first of these cores, the last task perhaps to the second.
    fn add_lanes(&self, cores: &mut [Vec<LaneSetup>], chain: &Chain, rings: &[usize]) {
        let first = next_task(&cores[0]);
        for (stage, cost_ps) in chain.costs_ps.iter().enumerate() {
            let is_last = stage + 1 == rings.len();
            let leads_on = chain.leads_on && is_last && cores.len() > 1;
            let home = &mut cores[usize::from(leads_on)];
            let returns = self.returns && is_last && !leads_on && stage > 0;
            home.push(LaneSetup {
                task: if returns { first } else { next_task(home) },
                ingress: rings[stage],
                egress: rings.get(stage + 1).copied(),
                cost_ps: *cost_ps,
                assumed_cost_ps: cost_ps / 2,
            });
        }
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    let pattern = prop_oneof![
        3 => Just(Pattern::Even),
        1 => Just(Pattern::Poisson),
        1 => (1_u64..5, 1_u64..5).prop_map(|(on, off)| Pattern::OnOff {
            on_ns: on * 50_000,
            off_ns: off * 50_000
        }),
    ];
    let budget = prop_oneof![Just(None), (20_u64..500).prop_map(|us| Some(us * 1000))];
    let source = (prop_oneof![0.01_f64..0.5, 0.5_f64..3.0], pattern, budget);
    let chain = (
        prop::collection::vec(20_000_u64..400_000, 1..4),
        prop_oneof![
            4 => prop::collection::vec(source.clone(), 1),
            1 => prop::collection::vec(source, 2..4)
        ],
        any::<bool>(),
    );
    let chain = chain.prop_map(|(costs_ps, sources, leads_on)| Chain {
        costs_ps,
        sources,
        leads_on,
    });
    let core = prop::collection::vec(chain, 1..3);
    let mechanism = (
        any::<bool>(),
        0_u64..2,
        prop_oneof![Just(64_u32), 1_u32..40],
    );
    let mechanism = mechanism.prop_map(|(between_batches, decides, batch)| Mechanism {
        switch_ns: 3000,
        decision_ns: decides * 150,
        between_batches,
        batch,
        read_ns: 30,
    });
    (
        prop::collection::vec(core, 1..4),
        mechanism,
        0_usize..8,
        prop_oneof![Just(2048_u32), 64_u32..600],
        any::<bool>(),
    )
        .prop_map(|(chains, mechanism, kind, capacity, returns)| Setup {
            chains,
            mechanism,
            kind,
            capacity,
            returns,
        })
}

/// The buckets and extremes of a histogram. A series of packets may round the sum.
fn exact(sojourn: &Histogram) -> (Vec<(usize, u64)>, Option<u64>, Option<u64>) {
    let counts = sojourn.counts().iter().copied().enumerate();
    let counts = counts.filter(|(_, count)| *count > 0).collect();
    (counts, sojourn.min_ns(), sojourn.max_ns())
}

/// Steps of many reads, records of many packets, islands and threads change no result.
fn check(setup: &Setup) -> Result<(), TestCaseError> {
    let (mut machine, mut plain) = setup.build();
    let mut threaded = machine.clone();
    machine.run(MS);
    machine.run(2 * MS);
    threaded.run_on(3, 2 * MS);
    plain.run(2 * MS);
    for (index, core) in plain.cores.iter().enumerate() {
        prop_assert_eq!(*machine.core(index), core.result, "core {}", index);
        prop_assert_eq!(threaded.core(index), machine.core(index), "core {}", index);
    }
    for (index, sender) in plain.senders.iter().enumerate() {
        let (result, expected) = (machine.chain(index), &sender.result);
        prop_assert_eq!(threaded.chain(index), result);
        prop_assert_eq!(
            exact(&result.sojourn),
            exact(&expected.sojourn),
            "chain {}",
            index
        );
        let means = [result, expected].map(|one| one.sojourn.mean_ns().unwrap_or(0.0));
        prop_assert!((means[0] - means[1]).abs() <= 1.0, "{:?}", means);
        let without_sojourn = |result: &ChainResult| ChainResult {
            sojourn: Histogram::default(),
            ..result.clone()
        };
        prop_assert_eq!(without_sojourn(result), without_sojourn(expected));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    })]

    #[test]
    fn results_are_those_of_single_packets(setup in setups()) {
        check(&setup)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "thorough: draws many machines, with a new seed each time"]
    fn results_of_many_machines_are_those_of_single_packets(setup in setups()) {
        check(&setup)?;
    }
}
