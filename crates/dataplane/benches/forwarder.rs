//! Measures the cost of the framework, with batches of 1 and 32 packets. The chains have 1 to 32
//! `forward` functions and a port without a device.
//!
//! Run `cargo bench -p myelin-dataplane`. The slope over the chain length is the cost of one
//! function. The intercept is the cost of the loop, the port and the clock.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_dataplane::replay_port::{Replay, ReplayPort};
use myelin_dataplane::umem::{Borrower, FrameMemory};
use myelin_dataplane::{Forwarder, SocketId, Stats, Umem, UserChain, UserExit, UserSegment};
use myelin_packet::fixtures::build;
use myelin_spec::{FunctionConfig, Limit, ReplayTimes, Shaping};

const FRAMES: u32 = 512;

/// Returns a port that receives packets of chain 1.
fn make_port(memory: &FrameMemory) -> ReplayPort {
    let packet = build::udp(build::client_v4(), build::server_v4(), &build::payload(200));
    let borrower = Borrower::new(0).expect("a number");
    let replay = Replay {
        packets: vec![packet],
        chain: Some((1, 0)),
        times: ReplayTimes::Endless,
        end: None,
        ring: FRAMES,
    };
    ReplayPort::new(borrower, memory, replay).expect("a port")
}

/// A profile that no packet exceeds, so no packet waits.
const WIDE: Shaping = Shaping {
    packets: Some(Limit {
        rate: 1_000_000_000_000,
        burst: 1_000_000,
    }),
    bits: None,
    queue: 64,
    delay_ns: 1_000_000,
    tolerance_ns: 0,
};

fn bench_forward(criterion: &mut Criterion) {
    bench_chains(criterion, "forward", None);
}

/// Measures a shaper that delays no packet.
fn bench_shaped(criterion: &mut Criterion) {
    bench_chains(criterion, "shaped", Some(WIDE));
}

fn bench_chains(criterion: &mut Criterion, name: &str, shaping: Option<Shaping>) {
    for batch in [1_u16, 32] {
        let mut group = criterion.benchmark_group(format!("{name}/batch-{batch}"));
        group.throughput(Throughput::Elements(batch.into()));
        for functions in [1_u8, 2, 8, 32] {
            let umem = Umem::create(FRAMES, 2048).expect("memory");
            let memory = FrameMemory::map(&umem).expect("a mapping");
            let stats = Stats::create().expect("statistics");
            let mut forwarder = Forwarder::in_process(&memory, batch, &stats).expect("a forwarder");
            let chain = UserChain {
                spi: 1,
                generation: 0,
                positions: functions,
                segments: vec![UserSegment {
                    first_position: 0,
                    functions: vec![FunctionConfig::Forward.into(); functions.into()],
                    exit: UserExit::Port(SocketId::of_port(0)),
                    shaping,
                }],
            };
            forwarder.deploy(&chain, &stats).expect("a chain");
            forwarder.add_port(0, make_port(&memory));
            forwarder.start();
            let id = BenchmarkId::from_parameter(functions);
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    assert_eq!(
                        black_box(&mut forwarder).process_batches(),
                        u32::from(batch)
                    );
                });
            });
        }
    }
}

criterion_group!(benches, bench_forward, bench_shaped);
criterion_main!(benches);
