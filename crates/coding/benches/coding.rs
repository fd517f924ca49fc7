//! Measures one coded packet with each kernel, ISA-L's dot product, the encoder, and the encoder of
//! the crate `rlnc`. That crate uses another field (x^8 + x^4 + x^3 + x + 1).
//!
//! Run `cargo bench -p myelin-coding --bench coding`. For ratios run `--bench ratios`.

mod peers;

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_coding::{Code, Encoder, Kernel, Redundancy};
use rand::SeedableRng;
use rand::rngs::SmallRng;

fn bench_coded_packet(criterion: &mut Criterion) {
    let isal = peers::Isal::load();
    if let Err(cause) = &isal {
        println!("ISA-L is not measured: {cause}. Install `libisal2` to measure it.");
    }
    for (count, len) in [(8, 256), (8, 1400), (32, 256), (32, 1400)] {
        let mut group = criterion.benchmark_group(format!("coded packet of {count}"));
        group.throughput(Throughput::Bytes((count * len) as u64));
        let symbols = peers::make_symbols(count, len);
        let terms = peers::make_terms(&symbols);
        let mut result = vec![0; len];
        for kernel in Kernel::available() {
            group.bench_function(BenchmarkId::new(kernel.name(), len), |bencher| {
                bencher.iter(|| kernel.dot(black_box(&mut result), black_box(&terms)));
            });
        }
        if let Ok(isal) = &isal {
            let terms = isal.prepare_terms(&terms);
            group.bench_function(BenchmarkId::new("isa-l", len), |bencher| {
                bencher.iter(|| isal.dot(black_box(&mut result), black_box(&terms)));
            });
        }
        let none = Redundancy::new(0, NonZeroU32::MIN);
        let mut encoder = Encoder::new(Code::Window(count as u8), none, len, 0);
        for symbol in &symbols {
            encoder.push(&[symbol]).expect("not too long");
        }
        let mut out = vec![0; len + 64];
        group.bench_function(BenchmarkId::new("encoder", len), |bencher| {
            bencher.iter(|| black_box(&mut encoder).make_repair(black_box(&mut out)));
        });
        // The data has one byte less, because this encoder appends a byte.
        let data = symbols.concat()[1..].to_vec();
        let other = rlnc::full::Encoder::new(data, count).expect("an encoder");
        let mut random = SmallRng::seed_from_u64(1);
        let mut piece = vec![0; other.get_full_coded_piece_byte_len()];
        group.bench_function(BenchmarkId::new("rlnc", len), |bencher| {
            bencher.iter(|| black_box(&other).code_with_buf(&mut random, black_box(&mut piece)));
        });
        group.finish();
    }
}

criterion_group!(benches, bench_coded_packet);
criterion_main!(benches);
