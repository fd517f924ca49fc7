//! Measures the cost of a packet in a call through the trait object, by batch size.
//!
//! Run `cargo bench -p myelin-functions --bench dispatch`. The time is per batch, and the
//! throughput is per packet.

mod common;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::{Discard, Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::rules::{Action, Rule};
use myelin_packet::{Meta, parse};
use myelin_spec::{
    FirewallConfig, FlowTrackerConfig, FragmentPolicy, FunctionConfig, MonitorConfig, XorConfig,
};

fn bench_dispatch(criterion: &mut Criterion) {
    let allow = FirewallConfig {
        rules: vec![Rule {
            protocol: Some(17),
            ..Rule::any(Action::Allow)
        }],
        default: Action::Deny,
        fragments: FragmentPolicy::Drop,
    };
    let kinds = [
        ("forward", FunctionConfig::Forward),
        ("xor", FunctionConfig::Xor(XorConfig { key: 0x5a })),
        ("firewall", FunctionConfig::Firewall(allow)),
        (
            "monitor",
            FunctionConfig::Monitor(MonitorConfig { flows: 4096 }),
        ),
        (
            "flow-tracker",
            FunctionConfig::FlowTracker(FlowTrackerConfig::default()),
        ),
    ];
    let mut group = criterion.benchmark_group("dispatch");
    for (name, config) in kinds {
        for size in [1_usize, 8, 32] {
            let mut function = instantiate(&config).expect("a valid configuration");
            let frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(64));
            let mut buffers = vec![frame; size];
            let mut batch = common::make_batch(&mut buffers);
            group.throughput(Throughput::Elements(size as u64));
            group.bench_function(BenchmarkId::new(name, size), |bencher| {
                bencher.iter(|| {
                    black_box(&mut *function).process_batch(black_box(&mut batch), &mut Discard)
                });
            });
        }
    }
    group.finish();

    // Measures the cost of each packet before a worker calls the first function.
    let mut frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(64));
    let headers = parse(&frame).expect("a frame that parses");
    let (meta, len) = (Meta::new(0, 1, 1, 0, &headers), frame.len());
    criterion.bench_function("packet/parse", |bencher| {
        bencher.iter(|| parse(black_box(&frame)));
    });
    criterion.bench_function("packet/new-from-metadata", |bencher| {
        bencher.iter(|| {
            let packet = Packet::new(black_box(&mut frame), 0, len, black_box(meta), 0);
            black_box(packet.is_some())
        });
    });
}

criterion_group!(benches, bench_dispatch);
criterion_main!(benches);
