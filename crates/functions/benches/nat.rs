//! Measures `nat` on one flow among many, one packet at a time.
//!
//! Run `cargo bench -p myelin-functions --bench nat`.

mod common;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use myelin_functions::nat::{Endpoint, Lifetime, Mappings, Nat};
use myelin_functions::{Discard, Function, SharedState, WithState};
use myelin_packet::five_tuple::UDP;
use myelin_packet::fixtures::build;
use myelin_spec::{NatConfig, Side};

fn bench_nat(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nat");
    for flows in [1_u32, 100_000] {
        let (client, server) = (build::client_v4(), build::server_v4());
        // The external endpoint equals the inside endpoint, so translation does not change the
        // packet.
        let config = NatConfig {
            addresses: vec![client.ip()],
            flows: flows * 2,
            ..NatConfig::default()
        };
        let mut mappings = Mappings::new(&config);
        let own = Endpoint::new(client.ip(), UDP, client.port());
        assert_eq!(
            mappings.translate_outward(&own, 0, &Lifetime::constant(u64::MAX)),
            Some(own)
        );
        for flow in 1..flows {
            let [_, a, b, c] = flow.to_be_bytes();
            let inner = Endpoint::new([10, a, b, c].into(), UDP, 1024 + (flow % 60_000) as u16);
            mappings.translate_outward(&inner, 0, &Lifetime::constant(u64::MAX));
        }
        let shared = SharedState::new(mappings);
        for side in [Side::Forward, Side::Reply] {
            let mut function = WithState::new(Nat::new(&config, side), shared.clone());
            let frame = match side {
                Side::Forward => build::udp(client, server, b"hello"),
                Side::Reply => build::udp(server, client, b"hello"),
            };
            let mut buffers = vec![frame];
            let mut batch = common::make_batch(&mut buffers);
            group.bench_function(BenchmarkId::new(side.as_str(), flows), |bencher| {
                bencher.iter(|| {
                    let function: &mut dyn Function = black_box(&mut function);
                    function.process_batch(black_box(&mut batch), &mut Discard)
                });
            });
            assert_eq!(batch.len(), 1, "the packet was dropped");
        }
    }
    group.finish();
}

criterion_group!(benches, bench_nat);
criterion_main!(benches);
