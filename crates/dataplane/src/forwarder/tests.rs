//! Tests the forwarder over ports in memory. Compares the forwarder with functions that process one
//! packet at a time.

use std::cell::Cell;

use myelin_functions::{Discard, Emitter, Function, Verdict, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::rules::{Action, Rule};
use myelin_packet::{HopCounters, Meta, parse};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig, XorConfig};
use proptest::prelude::*;

use super::*;
use crate::chain::{SocketId, UserExit, UserSegment};
use crate::memory_port::MemoryPort;
use crate::segment::{Exit, ExitTarget, SAMPLE_EVERY};
use crate::umem::Umem;

mod expiry;
mod flows;
mod frames;
mod replies;
mod shaping;

const FRAMES: u32 = 512;
const RING: usize = 64;
const IN: usize = 0;
const OUT: usize = 1;
const STAMP_NS: u64 = 1_000;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Reads a clock that advances 10 ns with each reading.
fn tick_and_read_clock() -> u64 {
    NOW_NS.set(NOW_NS.get() + 10);
    NOW_NS.get()
}

struct ForwarderFixture {
    memory: FrameMemory,
    stats: Stats,
}

impl ForwarderFixture {
    fn new() -> Self {
        let umem = Umem::create(FRAMES, 2048).unwrap();
        Self {
            memory: FrameMemory::map(&umem).unwrap(),
            stats: Stats::create().unwrap(),
        }
    }

    /// Returns a started forwarder with an ingress and an egress port.
    fn forwarder(&self, batch_size: u16) -> Forwarder<'_, MemoryPort> {
        let counters = self.stats.file().worker_counters().unwrap();
        let mut forwarder = Forwarder::new(&self.memory, batch_size, counters, tick_and_read_clock);
        for port in [IN, OUT] {
            forwarder.add_port(port, MemoryPort::new(Borrower::new(port).unwrap(), RING));
        }
        forwarder.start();
        forwarder
    }
}

/// Returns the number of frames in the pool and the ports. No frame may get lost or exist twice.
fn count_frames(forwarder: &Forwarder<'_, MemoryPort>) -> usize {
    forwarder.free_frames() + forwarder.ports().map(MemoryPort::frames).sum::<usize>()
}

fn meta_of(packet: &[u8], spi: u32, position: u8) -> Meta {
    let headers = parse(packet).unwrap();
    Meta::new(STAMP_NS, spi, 0, position, &headers)
}

fn one_segment(functions: Vec<FunctionConfig>) -> UserChain {
    UserChain {
        spi: 1,
        generation: 0,
        positions: functions.len() as u8,
        segments: vec![UserSegment {
            first_position: 0,
            functions: functions.into_iter().map(Into::into).collect(),
            exit: UserExit::Port(SocketId(OUT as u16)),
            shaping: None,
        }],
    }
}

/// Adds a segment with these functions at positions 1 and up of chain 1. Its exit is the egress
/// port, or the kernel function at position `inward`.
fn add_functions(
    fixture: &mut ForwarderFixture,
    forwarder: &mut Forwarder<'_, MemoryPort>,
    functions: Vec<Box<dyn Function>>,
    inward: Option<u8>,
) {
    let block = fixture.stats.allocate(1, 0, 8).unwrap();
    let counters = Arc::new(fixture.stats.file().chain_counters(block).unwrap());
    let target = inward.map_or(ExitTarget::Egress, ExitTarget::Kernel);
    let exit = Exit { port: OUT, target };
    let segment = Segment::new((1, 0), 1, functions, exit, &counters);
    forwarder.add_segments(vec![segment]);
}

fn udp(payload: usize) -> Vec<u8> {
    build::udp(
        build::client_v4(),
        build::server_v4(),
        &build::payload(payload),
    )
}

fn inject(forwarder: &mut Forwarder<'_, MemoryPort>, meta: &Meta, packet: &[u8]) {
    let memory = forwarder.memory;
    assert!(forwarder.port_mut(IN).unwrap().inject(memory, meta, packet));
}

fn take_sent(forwarder: &mut Forwarder<'_, MemoryPort>) -> Vec<Vec<u8>> {
    forwarder.port_mut(OUT).unwrap().take_sent()
}

fn any_function() -> impl Strategy<Value = FunctionConfig> {
    let firewall = (any::<bool>(), 1_u8..3).prop_map(|(by_port, protocol)| {
        let mut rule = Rule::any(Action::Deny);
        if by_port {
            rule.source_ports = Some(40_000..=40_000);
            rule.protocol = Some(6);
        } else {
            rule.protocol = Some(protocol);
        }
        FunctionConfig::Firewall(FirewallConfig {
            rules: vec![rule],
            default: Action::Allow,
            fragments: FragmentPolicy::Drop,
        })
    });
    prop_oneof![
        Just(FunctionConfig::Forward),
        any::<u8>().prop_map(|key| FunctionConfig::Xor(XorConfig { key })),
        firewall,
    ]
}

fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    (0_u8..5, 0_usize..1400).prop_map(|(kind, len)| {
        let (v4, v6) = (
            (build::client_v4(), build::server_v4()),
            (build::client_v6(), build::server_v6()),
        );
        let payload = build::payload(len);
        match kind {
            0 => build::udp(v4.0, v4.1, &payload),
            1 => build::tcp(v4.0, v4.1, &payload),
            2 => build::udp(v6.0, v6.1, &payload),
            3 => build::echo_request(v4.0.ip(), v4.1.ip(), &payload),
            _ => build::ipv4_fragment(17, &payload, 8, true),
        }
    })
}

/// Processes each packet separately. Returns the output packets, and the counters of each position.
fn process_one_by_one(
    configs: &[FunctionConfig],
    packets: &[Vec<u8>],
) -> (Vec<Vec<u8>>, Vec<HopCounters>) {
    let mut functions: Vec<_> = configs.iter().map(|c| instantiate(c).unwrap()).collect();
    let mut stats = vec![HopCounters::default(); configs.len()];
    let mut out = Vec::new();
    'packets: for bytes in packets {
        let meta = meta_of(bytes, 1, 0);
        let mut bytes = bytes.clone();
        let len = bytes.len();
        let mut packet = Packet::new(&mut bytes, 0, len, meta, 0).unwrap();
        for (function, stats) in functions.iter_mut().zip(&mut stats) {
            stats.packets_in += 1;
            if function.process(&mut packet, &mut Discard) == Verdict::Drop {
                stats.drops += 1;
                continue 'packets;
            }
        }
        out.push(packet.bytes().to_vec());
    }
    (out, stats)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The packets also leave in the same order.
    #[test]
    fn every_batch_size_gives_the_same_packets_and_counters(
        configs in prop::collection::vec(any_function(), 1..6),
        packets in prop::collection::vec(any_packet(), 1..RING),
        batch_size in prop_oneof![Just(1_u16), 2_u16..40, Just(256)],
    ) {
        let mut fixture = ForwarderFixture::new();
        let stats = std::mem::replace(&mut fixture.stats, Stats::create().unwrap());
        let mut forwarder = fixture.forwarder(batch_size);
        forwarder.deploy(&one_segment(configs.clone()), &stats).unwrap();
        for packet in &packets {
            inject(&mut forwarder, &meta_of(packet, 1, 0), packet);
        }
        let mut rounds = 0;
        while forwarder.process_batches() > 0 {
            rounds += 1;
        }
        prop_assert_eq!(rounds, packets.len().div_ceil(batch_size.into()));
        let (expected, mut counts) = process_one_by_one(&configs, &packets);
        prop_assert_eq!(take_sent(&mut forwarder), expected);
        prop_assert_eq!(count_frames(&forwarder), FRAMES as usize);
        let seen = stats.chain(1, 0).unwrap();
        for (count, seen) in counts.iter_mut().zip(&seen.positions) {
            (count.sampled_ns, count.samples) = (seen.sampled_ns, seen.samples);
        }
        prop_assert_eq!(&seen.positions, &counts);
        prop_assert_eq!(seen.transmitted, seen.sojourn.count());
    }
}

#[test]
fn packets_of_many_chains_in_one_batch_keep_their_order_and_their_functions() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(32);
    for spi in 1..=5 {
        let key = spi as u8;
        let mut chain = one_segment(vec![FunctionConfig::Xor(XorConfig { key })]);
        chain.spi = spi;
        forwarder.deploy(&chain, &stats).unwrap();
    }
    let packet = udp(100);
    let payload = packet.len() - 100;
    for i in 0..32 {
        inject(
            &mut forwarder,
            &meta_of(&packet, [1, 1, 5, 2, 9, 5][i % 6], 0),
            &packet,
        );
    }
    assert_eq!(forwarder.process_batches(), 32);
    let keys: Vec<u8> = take_sent(&mut forwarder)
        .iter()
        .map(|bytes| bytes[payload] ^ packet[payload])
        .collect();
    let expected: Vec<u8> = (0..32)
        .map(|i| [1, 1, 5, 2, 9, 5][i % 6])
        .filter(|&k| k != 9)
        .collect();
    assert_eq!(keys, expected);
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

#[test]
fn packets_of_unknown_chains_are_dropped_and_counted() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(8);
    forwarder
        .deploy(&one_segment(vec![FunctionConfig::Forward; 2]), &stats)
        .unwrap();
    let packet = udp(10);
    let good = meta_of(&packet, 1, 0);
    for meta in [
        Meta { spi: 2, ..good },
        Meta {
            generation: 1,
            ..good
        },
        Meta {
            position: 1,
            ..good
        },
        Meta { end: 1500, ..good },
        good,
    ] {
        inject(&mut forwarder, &meta, &packet);
    }
    forwarder.process_batches();
    assert_eq!(take_sent(&mut forwarder), [packet]);
    let seen = fixture.stats.worker();
    assert_eq!(
        (seen.received, seen.unknown_chain, seen.malformed),
        (5, 3, 1)
    );
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
}

/// The exit into the kernel prepends an RFC 8300 header with the position of the next function.
#[test]
fn a_packet_for_a_kernel_function_gets_an_nsh_header() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    let mut chain = one_segment(vec![FunctionConfig::Forward; 2]);
    chain.positions = 3;
    chain.segments[0].exit = UserExit::Internal {
        socket: SocketId(OUT as u16),
        position: 2,
    };
    forwarder.deploy(&chain, &stats).unwrap();
    let packet = udp(64);
    inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    forwarder.process_batches();
    let [frame] = take_sent(&mut forwarder).try_into().unwrap();
    let (context, inner) = fixtures::nsh::decapsulate(&frame).unwrap();
    assert_eq!(inner, packet);
    assert_eq!(
        (context.spi, context.position, context.stamp_ns),
        (1, 2, STAMP_NS)
    );
    let seen = stats.chain(1, 0).unwrap();
    assert_eq!(
        (seen.transmitted, seen.sojourn.count()),
        (1, 0),
        "the packet has not left the chain"
    );
}

/// Emits `copies` copies of each packet.
struct CopyEmitter {
    copies: usize,
}

impl Function for CopyEmitter {
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        let meta = *packet.meta();
        for _ in 0..self.copies {
            emitter.emit(&meta, packet.bytes());
        }
        Verdict::Forward
    }
}

#[test]
fn emitted_packets_continue_at_the_next_function() {
    let mut fixture = ForwarderFixture::new();
    let mut stats_fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    let xor = || instantiate(&FunctionConfig::Xor(XorConfig { key: 0xff })).unwrap();
    let functions = vec![xor(), Box::new(CopyEmitter { copies: 2 }), xor()];
    add_functions(&mut stats_fixture, &mut forwarder, functions, None);
    let packets = [udp(20), udp(30)];
    for packet in &packets {
        inject(&mut forwarder, &meta_of(packet, 1, 1), packet);
    }
    forwarder.process_batches();
    let [a, b] = packets;
    let expected = [&a, &b, &a, &a, &b, &b].map(Clone::clone);
    assert_eq!(take_sent(&mut forwarder), expected);
    let seen = stats_fixture.stats.chain(1, 0).unwrap().positions;
    assert_eq!((seen[1].packets_in, seen[1].emitted), (2, 0));
    assert_eq!(
        (seen[2].packets_in, seen[2].emitted, seen[2].packets_out()),
        (2, 4, 6)
    );
    assert_eq!((seen[3].packets_in, seen[3].packets_out()), (6, 6));
    assert_eq!(count_frames(&forwarder), FRAMES as usize);
    drop(forwarder);
    fixture.stats = Stats::create().unwrap();
}

#[test]
fn removing_a_chain_first_processes_its_arrived_packets() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(4);
    forwarder
        .deploy(&one_segment(vec![FunctionConfig::Forward]), &stats)
        .unwrap();
    let packet = udp(10);
    for _ in 0..50 {
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    }
    assert_eq!(forwarder.remove_segments(1, 0).len(), 1);
    assert_eq!(take_sent(&mut forwarder).len(), 50);
    inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    forwarder.process_batches();
    assert_eq!(fixture.stats.worker().unknown_chain, 1);
    assert!(forwarder.remove_segments(1, 0).is_empty());
    // The new segment gets the free index, and the cached look-up finds it.
    stats.release(1, 0);
    forwarder
        .deploy(&one_segment(vec![FunctionConfig::Forward]), &stats)
        .unwrap();
    inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
    forwarder.process_batches();
    assert_eq!(take_sent(&mut forwarder).len(), 1);
}

#[test]
fn sojourn_and_samples_follow_the_clock() {
    let stats = Stats::create().unwrap();
    let fixture = ForwarderFixture::new();
    let mut forwarder = fixture.forwarder(1);
    forwarder
        .deploy(&one_segment(vec![FunctionConfig::Forward; 2]), &stats)
        .unwrap();
    let packet = udp(10);
    for i in 0..u64::from(SAMPLE_EVERY) {
        NOW_NS.set(STAMP_NS + i * 1000);
        inject(&mut forwarder, &meta_of(&packet, 1, 0), &packet);
        forwarder.process_batches();
    }
    let seen = stats.chain(1, 0).unwrap();
    for position in &seen.positions {
        // A function takes one reading of 10 ns. The forwarder subtracts the cost of a reading.
        assert_eq!((position.samples, position.sampled_ns), (1, 0));
    }
    assert_eq!(seen.sojourn.count(), u64::from(SAMPLE_EVERY));
    assert_eq!(seen.sojourn.min_ns(), Some(10));
    // The forwarder timed the functions of the last packet: three more readings.
    assert_eq!(
        seen.sojourn.max_ns(),
        Some((u64::from(SAMPLE_EVERY) - 1) * 1000 + 40)
    );
}
