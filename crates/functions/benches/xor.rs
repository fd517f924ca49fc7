//! Measures `xor` by payload length. A copy of the same bytes is the lower bound.
//!
//! Run `cargo bench -p myelin-functions --bench xor`.

mod common;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::{Discard, instantiate};
use myelin_packet::fixtures::build;
use myelin_spec::{FunctionConfig, XorConfig};

fn bench_xor(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("xor");
    for len in [256_usize, 1400] {
        group.throughput(Throughput::Bytes(len as u64));
        let frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(len));
        let mut buffers = vec![frame];
        let mut batch = common::make_batch(&mut buffers);
        let mut function =
            instantiate(&FunctionConfig::Xor(XorConfig { key: 0x5a })).expect("a function");
        group.bench_function(BenchmarkId::new("function", len), |bencher| {
            bencher.iter(|| {
                black_box(&mut *function).process_batch(black_box(&mut batch), &mut Discard)
            });
        });
        let (from, mut to) = (build::payload(len), vec![0; len]);
        group.bench_function(BenchmarkId::new("memcpy", len), |bencher| {
            bencher.iter(|| black_box(&mut to[..]).copy_from_slice(black_box(&from)));
        });
    }
    group.finish();
}

criterion_group!(benches, bench_xor);
criterion_main!(benches);
