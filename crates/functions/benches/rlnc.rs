//! Measures `rlnc-encode`, `rlnc-recode` and `rlnc-decode` by payload length, without loss. The
//! default costs in the catalogue are from this benchmark.
//!
//! Also times `rlnc-encode` for single packets, in batches of one, by their position in the block.
//! The last packet of a block causes the repair packets of the block.
//!
//! Run `cargo bench -p myelin-functions --bench rlnc`.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::{Batch, Discard, Emitter, Function, Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, parse};
use myelin_spec::{FunctionConfig, RlncCode, RlncDecodeConfig, RlncEncodeConfig, RlncRecodeConfig};

/// Source packets of one round. The encoder codes the packets again in each round, so that their
/// encoding symbol identifiers continue.
const PACKETS: usize = 32;
const ROOM: usize = 2048;

/// Runs a function on frames, each at the start of a buffer, as one batch. Passes the forwarded
/// frames to `sink`.
fn run_batch(
    function: &mut dyn Function,
    buffers: &mut [(Vec<u8>, usize)],
    emitter: &mut dyn Emitter,
    mut sink: impl FnMut(&[u8]),
) {
    let mut batch = Batch::with_capacity(buffers.len());
    for (buffer, len) in buffers {
        let headers = parse(&buffer[..*len]).expect("a frame that parses");
        let meta = Meta::new(0, 1, 1, 0, &headers);
        batch.push(Packet::new(buffer, 0, *len, meta, 0).expect("a packet"));
    }
    function.process_batch(&mut batch, emitter);
    for packet in batch.packets() {
        sink(packet.bytes());
    }
}

/// Returns the frames with room after them.
fn buffers(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, usize)> {
    let buffer = |frame: &Vec<u8>| {
        let mut buffer = frame.clone();
        buffer.resize(ROOM, 0);
        (buffer, frame.len())
    };
    frames.iter().map(buffer).collect()
}

/// Measures the functions, and `forward` as the cost of a round without them.
fn bench_functions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rlnc");
    for len in [256_usize, 1400] {
        group.throughput(Throughput::Elements(PACKETS as u64));
        let frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(len));
        let plain = vec![frame; PACKETS];
        let encode = FunctionConfig::RlncEncode(RlncEncodeConfig::default());
        for config in [
            FunctionConfig::Forward,
            encode.clone(),
            FunctionConfig::RlncRecode(RlncRecodeConfig::default()),
            FunctionConfig::RlncDecode(RlncDecodeConfig::default()),
        ] {
            let name = config.kind().name;
            let mut function = instantiate(&config).expect("a function");
            let mut encoder = instantiate(&encode).expect("a function");
            let is_coded = matches!(
                config,
                FunctionConfig::RlncRecode(_) | FunctionConfig::RlncDecode(_)
            );
            group.bench_function(BenchmarkId::new(name, len), |bencher| {
                let setup = || {
                    if !is_coded {
                        return buffers(&plain);
                    }
                    let mut repairs: Vec<(Meta, Vec<u8>)> = Vec::new();
                    let mut sent: Vec<Vec<u8>> = Vec::new();
                    run_batch(&mut *encoder, &mut buffers(&plain), &mut repairs, |frame| {
                        sent.push(frame.to_vec());
                    });
                    sent.extend(repairs.into_iter().map(|(_, frame)| frame));
                    buffers(&sent)
                };
                let measured = |mut buffers: Vec<(Vec<u8>, usize)>| {
                    run_batch(&mut *function, &mut buffers, &mut Discard, |frame| {
                        black_box(frame);
                    });
                    buffers
                };
                bencher.iter_batched(setup, measured, criterion::BatchSize::SmallInput);
            });
        }
    }
    group.finish();
}

/// Blocks to time.
const BLOCKS: usize = 4000;

/// Times each packet of a block separately.
fn bench_single_packets(_: &mut Criterion) {
    for (block, len) in [(32_u8, 256), (32, 1400), (64, 1400)] {
        let frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(len));
        let config = RlncEncodeConfig {
            code: RlncCode::Block,
            block,
            ..RlncEncodeConfig::default()
        };
        let mut function = instantiate(&FunctionConfig::RlncEncode(config)).expect("a function");
        let mut positions: Vec<Vec<f64>> = vec![Vec::with_capacity(BLOCKS); block.into()];
        let mut buffer = buffers(std::slice::from_ref(&frame));
        for _ in 0..BLOCKS {
            for times in &mut positions {
                buffer[0].0[..frame.len()].copy_from_slice(&frame);
                buffer[0].1 = frame.len();
                let (buffer, len) = &mut buffer[0];
                let headers = parse(&buffer[..*len]).expect("a frame that parses");
                let meta = Meta::new(0, 1, 1, 0, &headers);
                let mut batch = Batch::with_capacity(1);
                batch.push(Packet::new(buffer, 0, *len, meta, 0).expect("a packet"));
                let start = Instant::now();
                function.process_batch(black_box(&mut batch), &mut Discard);
                times.push(start.elapsed().as_nanos() as f64);
            }
        }
        let mut all = positions.concat();
        for times in positions.iter_mut().chain([&mut all]) {
            times.sort_by(f64::total_cmp);
        }
        let at = |times: &[f64], part: f64| times[(times.len() as f64 * part) as usize];
        let sum: f64 = positions.iter().map(|times| at(times, 0.5)).sum();
        println!("block of {block}, {len} B: medians sum up to {sum:.0} ns");
        let inner = (1..positions.len() - 1)
            .max_by(|a, b| positions[*a][BLOCKS / 2].total_cmp(&positions[*b][BLOCKS / 2]));
        for (name, times) in [
            ("first packet", &positions[0]),
            ("slowest of the others", &positions[inner.unwrap_or(0)]),
            ("last packet", &positions[positions.len() - 1]),
            ("all packets", &all),
        ] {
            let [median, p99, p999] = [0.5, 0.99, 0.999].map(|part| at(times, part));
            println!("  {name:22} median {median:6.0} ns, p99 {p99:6.0} ns, p99.9 {p999:6.0} ns");
        }
    }
}

criterion_group!(benches, bench_functions, bench_single_packets);
criterion_main!(benches);
