//! Measures the simulation of ten thousand cores: real time for a millisecond of each.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use myelin_policy::sharing::{DeadlineParameters, Parameters};
use myelin_simulator::{CoreSetup, LaneSetup, Machine, Mechanism, Pattern, Scheduler, Source};

const CORES: usize = 10_000;
const TASKS: usize = 3;
const BUDGET_NS: u64 = 350_000;

/// Cores with a chain of three tasks of 50 ns a packet, offered 80 % of what they can do.
fn machine() -> Machine {
    let mut machine = Machine::new(1);
    for _ in 0..CORES {
        let rings: Vec<usize> = (0..TASKS).map(|_| machine.add_ring(2048)).collect();
        let lanes = (0..TASKS).map(|task| LaneSetup {
            task,
            ingress: rings[task],
            egress: rings.get(task + 1).copied(),
            cost_ps: 50_000,
            assumed_cost_ps: 50_000,
        });
        let setup = CoreSetup {
            lanes: lanes.collect(),
            mechanism: Mechanism {
                switch_ns: 3000,
                decision_ns: 150,
                between_batches: true,
                batch: 64,
                read_ns: 30,
            },
            scheduler: Scheduler::Policy,
        };
        let shared = setup.shared_core(|_| 2048);
        let policy = Parameters::Deadline(DeadlineParameters::default());
        machine.add_core(setup, policy.for_hand_over(BUDGET_NS).policy(shared));
        machine.add_source(Source {
            ring: rings[0],
            rate_pps: 0.8 * 1e9 / 150.0,
            pattern: Pattern::Even,
            budget_ns: Some(BUDGET_NS),
        });
    }
    machine
}

fn cores(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulator");
    group.sample_size(10);
    for threads in [1, 2] {
        group.bench_function(
            format!("10,000 cores, 1 ms, threads: {threads}"),
            |bencher| {
                bencher.iter_batched(
                    || {
                        let mut machine = machine();
                        machine.run_on(threads, 1_000_000);
                        machine
                    },
                    |mut machine| {
                        machine.run_on(threads, 2_000_000);
                        machine
                    },
                    BatchSize::PerIteration,
                );
            },
        );
    }
    group.finish();
}

criterion_group!(benches, cores);
criterion_main!(benches);
