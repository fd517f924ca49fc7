//! Compares `compress` and `decompress` with plain calls of their libraries: on JSON, on JSON with
//! a dictionary, and on random bytes.
//!
//! Run `cargo bench -p myelin-functions --bench compress`.
//!
//! The functions change their packets, so each iteration first restores the packet, with the same
//! copy for function and plain call. Before criterion's times, the benchmark prints the differences
//! between function and plain call, which it measures alternately.

#[path = "../tests/common/telemetry.rs"]
mod telemetry;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::compression::{Header, is_marked, lz4, zstd};
use myelin_functions::{Discard, Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, parse};
use myelin_spec::{
    CompressConfig, CompressionAlgorithm, DecompressConfig, Dictionary, FunctionConfig,
};

/// Number of different packets, which alternate so that no branch predictor learns them.
const PACKETS: usize = 64;
/// Pairs of measurements.
const ROUNDS: usize = 301;
/// Payloads for the dictionary. The benchmark sends none of them.
const SAMPLES: u64 = 64;

/// Packets, and the buffer for the current one.
struct Traffic {
    frames: Vec<(Vec<u8>, Meta)>,
    buffer: Vec<u8>,
    next: usize,
}

impl Traffic {
    fn new(frames: Vec<Vec<u8>>) -> Self {
        let with_meta = |frame: Vec<u8>| {
            let meta = Meta::new(0, 1, 1, 0, &parse(&frame).expect("a frame"));
            (frame, meta)
        };
        Self {
            frames: frames.into_iter().map(with_meta).collect(),
            buffer: vec![0; 2048],
            next: 0,
        }
    }

    /// Restores the next packet.
    #[inline]
    fn restore_next_packet(&mut self) -> Packet<'_> {
        self.next = (self.next + 1) % self.frames.len();
        let (frame, meta) = &self.frames[self.next];
        self.buffer[..frame.len()].copy_from_slice(frame);
        Packet::new(&mut self.buffer, 0, frame.len(), *meta, 0).expect("a packet")
    }

    /// Runs `work` on each packet and returns the results.
    fn process_all(&mut self, work: &mut PacketCall) -> Vec<Vec<u8>> {
        (0..self.frames.len())
            .map(|_| {
                let mut packet = self.restore_next_packet();
                work(&mut packet);
                packet.bytes().to_vec()
            })
            .collect()
    }

    /// Returns the bytes of all payloads.
    fn payload_bytes(&self) -> usize {
        const HEADERS: usize = 14 + 20 + 8;
        self.frames
            .iter()
            .map(|(frame, _)| frame.len() - HEADERS)
            .sum()
    }
}

/// A function or the plain call of its library.
type PacketCall = Box<dyn FnMut(&mut Packet<'_>)>;

fn function_call(config: &FunctionConfig) -> PacketCall {
    let mut function = instantiate(config).expect("a function");
    Box::new(move |packet| {
        black_box(function.process(packet, &mut Discard));
    })
}

fn bare_compress(algorithm: CompressionAlgorithm, dictionary: Option<&[u8]>) -> PacketCall {
    let mut scratch = vec![0; 1500];
    let at = Header::len(dictionary.is_some());
    match algorithm {
        CompressionAlgorithm::Lz4 => {
            let mut lz4 = lz4::Compressor::new(1, dictionary).expect("a state");
            Box::new(move |packet| {
                let payload = packet.payload();
                let to = &mut scratch[at..payload.len() - 1];
                black_box(lz4.compress(payload, to));
            })
        }
        CompressionAlgorithm::Zstd => {
            let mut zstd = zstd::Compressor::new(1, dictionary, 1500).expect("a state");
            Box::new(move |packet| {
                let payload = packet.payload();
                let to = &mut scratch[at..payload.len() - 1];
                black_box(zstd.compress(payload, to));
            })
        }
    }
}

fn bare_decompress(
    algorithm: CompressionAlgorithm,
    len: usize,
    dictionary: Option<&[u8]>,
) -> PacketCall {
    let mut scratch = vec![0; 1500];
    let at = Header::len(dictionary.is_some());
    let mut zstd = zstd::Decompressor::new(dictionary).expect("a state");
    let dictionary = dictionary.map(<[u8]>::to_vec);
    Box::new(move |packet| {
        let payload = packet.payload_mut();
        if !is_marked(payload) {
            return;
        }
        let to = &mut scratch[..len];
        black_box(match algorithm {
            CompressionAlgorithm::Lz4 => lz4::decompress(&payload[at..], to, dictionary.as_deref()),
            CompressionAlgorithm::Zstd => zstd.decompress(&mut payload[at - zstd::MAGIC_LEN..], to),
        });
    })
}

/// Returns the mean time of one packet, ns.
fn time_packet(traffic: &mut Traffic, work: &mut PacketCall) -> f64 {
    let start = Instant::now();
    for _ in 0..PACKETS * 10 {
        work(&mut traffic.restore_next_packet());
    }
    start.elapsed().as_nanos() as f64 / (PACKETS * 10) as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures function and plain call alternately, and prints both times and their difference.
fn compare(name: &str, traffic: &mut Traffic, function: &mut PacketCall, bare: &mut PacketCall) {
    let mut nothing: PacketCall = Box::new(|packet| {
        black_box(packet);
    });
    let rounds: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_| {
            let mut time = |work| time_packet(traffic, work);
            [time(function), time(bare), time(&mut nothing)]
        })
        .collect();
    let of = |figure: fn(&[f64; 3]) -> f64| median(rounds.iter().map(figure).collect());
    println!(
        "{name:<40} function {:6.0} ns, bare {:6.0} ns, difference {:5.1} ns, ratio {:.3}",
        of(|[function, _, nothing]| function - nothing),
        of(|[_, bare, nothing]| bare - nothing),
        of(|[function, bare, _]| function - bare),
        of(|[function, bare, nothing]| (function - nothing) / (bare - nothing)),
    );
}

fn bench_compression(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compression");
    group.warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(2));
    let samples = (0..SAMPLES).flat_map(|seed| telemetry::telemetry(256, PACKETS as u64 + seed));
    let samples = Dictionary::new(samples.collect());
    let json: fn(usize, u64) -> Vec<u8> = telemetry::telemetry;
    for algorithm in [CompressionAlgorithm::Lz4, CompressionAlgorithm::Zstd] {
        for (kind, payload, lengths, dictionary) in [
            ("json", json, &[256_usize, 1400][..], None),
            ("json+dictionary", json, &[64, 256, 1400], Some(&samples)),
            ("random", telemetry::random, &[256, 1400], None),
        ] {
            let compress = FunctionConfig::Compress(CompressConfig {
                algorithm,
                dictionary: dictionary.cloned(),
                ..CompressConfig::default()
            });
            let decompress = FunctionConfig::Decompress(DecompressConfig {
                dictionary: dictionary.cloned(),
                ..DecompressConfig::default()
            });
            let dict = dictionary.map(Dictionary::bytes);
            for &len in lengths {
                let frame =
                    |seed| build::udp(build::client_v4(), build::server_v4(), &payload(len, seed));
                let mut plain = Traffic::new((0..PACKETS as u64).map(frame).collect());
                let mut compressed = Traffic::new(plain.process_all(&mut function_call(&compress)));
                for (direction, traffic, config, mut bare) in [
                    (
                        "compress",
                        &mut plain,
                        &compress,
                        bare_compress(algorithm, dict),
                    ),
                    (
                        "decompress",
                        &mut compressed,
                        &decompress,
                        bare_decompress(algorithm, len, dict),
                    ),
                ] {
                    let name = format!("{direction}/{algorithm}/{kind}");
                    let mut function = function_call(config);
                    compare(&format!("{name}/{len}"), traffic, &mut function, &mut bare);
                    group.throughput(Throughput::Bytes(len as u64));
                    group.bench_function(BenchmarkId::new(name, len), |bencher| {
                        bencher.iter(|| function(&mut traffic.restore_next_packet()));
                    });
                }
                println!(
                    "{algorithm}/{kind}/{len}: {:.2} times smaller",
                    plain.payload_bytes() as f64 / compressed.payload_bytes() as f64
                );
            }
        }
    }
    group.finish();
}

criterion_group!(benches, bench_compression);
criterion_main!(benches);
