//! Measures a decision of each sharing policy over eight tasks with packets.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use myelin_policy::Policy;
use myelin_policy::sharing::{
    Action, CoreView, DeadlineParameters, Lane, LaneState, LoadBasedParameters, Parameters,
    RingState, SharedCore, UnisParameters,
};

const TASKS: usize = 8;

fn core() -> SharedCore {
    SharedCore {
        tasks: TASKS,
        lanes: (0..TASKS)
            .map(|task| Lane {
                task,
                ingress: task,
                egress: (task + 1 < TASKS).then_some(task + 1),
            })
            .collect(),
        capacities: vec![2048; TASKS],
    }
}

fn decision(criterion: &mut Criterion) {
    let policies = [
        ("unis", Parameters::Unis(UnisParameters::default())),
        ("cooperative", Parameters::Cooperative { reads: 8 }),
        ("round robin", Parameters::RoundRobin { slice_ns: 1 }),
        (
            "load-based",
            Parameters::LoadBased(LoadBasedParameters::default()),
        ),
        (
            "load turns",
            Parameters::LoadTurns {
                round_ns: 1,
                batch: 64,
            },
        ),
        (
            "deadline",
            Parameters::Deadline(DeadlineParameters::default()),
        ),
    ];
    let rings = [RingState {
        written: 1000,
        read: 0,
        due_ns: 500_000,
    }; TASKS];
    let lanes = [LaneState { cost_ps: 50_000 }; TASKS];
    let alive = [true; TASKS];
    for (name, parameters) in policies {
        let mut policy = parameters.policy(core()).expect("the core is consistent");
        let mut now_ns = 0;
        let mut running = None;
        criterion.bench_function(&format!("{name}, 8 tasks"), |bencher| {
            bencher.iter(|| {
                now_ns += 1000;
                let view = CoreView {
                    running,
                    switch_ns: 0,
                    reads: 9,
                    alive: &alive,
                    rings: black_box(&rings),
                    lanes: &lanes,
                };
                policy.decide(now_ns, view, &mut |action| {
                    if let Action::Run(task) = action {
                        running = Some(task);
                    }
                })
            });
        });
    }
}

criterion_group!(benches, decision);
criterion_main!(benches);
