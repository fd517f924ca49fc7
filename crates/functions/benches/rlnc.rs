//! `rlnc-encode`, `rlnc-recode` and `rlnc-decode` by payload length, without loss: what the catalogue's default costs come
//! from.
//!
//! `cargo bench -p myelin-functions --bench rlnc`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::{Batch, Discard, Emitter, Function, Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, parse};
use myelin_spec::{FunctionConfig, RlncDecodeConfig, RlncEncodeConfig, RlncRecodeConfig};

/// Source packets of one round: they are coded anew each time, so that numbers go on.
const PACKETS: usize = 32;
const ROOM: usize = 2048;

/// Runs a function on frames, each at the start of a buffer, as one batch; gives those that go on to `sink`.
fn run(
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

/// The frames with room behind them.
fn buffers(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, usize)> {
    let buffer = |frame: &Vec<u8>| {
        let mut buffer = frame.clone();
        buffer.resize(ROOM, 0);
        (buffer, frame.len())
    };
    frames.iter().map(buffer).collect()
}

/// The functions, and one that does nothing, as what a round costs without them.
fn rlnc(criterion: &mut Criterion) {
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
                    run(&mut *encoder, &mut buffers(&plain), &mut repairs, |frame| {
                        sent.push(frame.to_vec());
                    });
                    sent.extend(repairs.into_iter().map(|(_, frame)| frame));
                    buffers(&sent)
                };
                let measured = |mut buffers: Vec<(Vec<u8>, usize)>| {
                    run(&mut *function, &mut buffers, &mut Discard, |frame| {
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

criterion_group!(benches, rlnc);
criterion_main!(benches);
