//! Tests functions on packets whose sender left the checksum and the segmentation to the card.

mod common;

use std::net::SocketAddr;

use myelin_functions::{Batch, Discard, FlowPage, Packet};
use myelin_packet::five_tuple::UDP;
use myelin_packet::offload::{KERNEL_HEADER_LEN, OFFLOAD_LEN};
use myelin_packet::{Flags, Meta, Offload, checksum, fixtures::build, parse};
use myelin_spec::{BackendSpec, FunctionConfig, LoadBalancerConfig, MonitorConfig, NatConfig};
use proptest::prelude::*;

/// Offset of the frame in its buffer.
const START: usize = 64;

/// A packet with a partial checksum in its buffer.
struct Offloaded {
    buffer: Vec<u8>,
    meta: Meta,
}

impl Offloaded {
    /// `segment_len` 0 makes a packet of one segment.
    fn new(frame: &[u8], segment_len: u16) -> Self {
        let headers = parse(frame).unwrap();
        let field = checksum::l4_offset(&headers).unwrap();
        let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
        let addresses = if headers.flags.is_ipv6() {
            l3 + 8..l3 + 40
        } else {
            l3 + 12..l3 + 20
        };
        let length = u64::from(headers.end - headers.l4);
        let sum = checksum::sum(&frame[addresses]) + u64::from(headers.protocol) + length;
        let kind = match (segment_len, headers.flags.is_ipv6()) {
            (0, _) => 0,
            (_, false) => 1,
            (_, true) => 4,
        };
        let words = [0, segment_len, headers.l4, (field - l4) as u16].map(u16::to_ne_bytes);
        let header = [vec![1, kind], words.concat()].concat();
        let header: &[u8; KERNEL_HEADER_LEN] = header.first_chunk().unwrap();
        let offload = Offload::read(*header, 0, &headers, frame.len()).unwrap();
        let mut buffer = vec![0xa5; START];
        buffer[..OFFLOAD_LEN].copy_from_slice(&offload.to_bytes());
        buffer.extend(frame);
        let at = START + field;
        buffer[at..at + 2].copy_from_slice(&checksum::fold(sum).to_be_bytes());
        let mut meta = Meta::new(1, 2, 3, 0, &headers);
        meta.flags |= Flags::OFFLOADED.bits();
        Self { buffer, meta }
    }

    fn packet(&mut self) -> Packet<'_> {
        let len = self.buffer.len() - START;
        Packet::new(&mut self.buffer, START, len, self.meta, 0).unwrap()
    }
}

/// Completes a partial checksum as a network card does.
fn complete(frame: &mut [u8]) {
    let headers = parse(frame).unwrap();
    let field = checksum::l4_offset(&headers).unwrap();
    let sum = checksum::sum(&frame[headers.l4.into()..headers.end.into()]);
    let value = match (headers.protocol, !checksum::fold(sum)) {
        (UDP, 0) => 0xffff,
        (_, value) => value,
    };
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

fn endpoint(is_ipv6: bool, words: (u32, u32), port: u16) -> SocketAddr {
    let (a, b) = words;
    if is_ipv6 {
        let low = u128::from(a) << 32 | u128::from(b);
        (std::net::Ipv6Addr::from(0xfd00 << 112 | low), port).into()
    } else {
        (std::net::Ipv4Addr::from(0x0a00_0000 | a & 0xff_ffff), port).into()
    }
}

fn configs() -> [FunctionConfig; 3] {
    let addresses = ["192.0.2.1", "2001:db8::1"];
    let addresses = addresses.map(|address| address.parse().unwrap());
    let backends = addresses.map(|address| BackendSpec {
        address,
        weight: 1,
        mac: None,
    });
    let addresses = addresses.into();
    [
        FunctionConfig::Forward,
        FunctionConfig::LoadBalancer(LoadBalancerConfig {
            backends: backends.into(),
            ..LoadBalancerConfig::default()
        }),
        FunctionConfig::Nat(NatConfig {
            addresses,
            // No flow keeps its port.
            ports: 1..=9,
            ..NatConfig::default()
        }),
    ]
}

proptest! {
    #[test]
    fn a_partial_checksum_stays_right(
        is_ipv6: bool,
        is_tcp: bool,
        source: (u32, u32),
        destination: (u32, u32),
        ports in (10..u16::MAX, 1..u16::MAX),
        payload in prop::collection::vec(any::<u8>(), 1..300),
    ) {
        let from = endpoint(is_ipv6, source, ports.0);
        let to = endpoint(is_ipv6, destination, ports.1);
        let frame = if is_tcp {
            build::tcp(from, to, &payload)
        } else {
            build::udp(from, to, &payload)
        };
        for config in configs() {
            let mut function = common::function(&config);
            let mut offloaded = Offloaded::new(&frame, 0);
            let mut packet = offloaded.packet();
            prop_assert!(packet.has_partial_checksum());
            function.process(&mut packet, &mut Discard);
            let mut out = packet.bytes().to_vec();
            complete(&mut out);
            let whole = common::run(&mut *common::function(&config), &frame);
            prop_assert_eq!(Some(out), whole, "{:?}", config);
        }
    }
}

#[test]
fn segments_of_a_super_packet_count() {
    let frame = build::tcp(build::client_v4(), build::server_v4(), &[7; 2500]);
    let mut offloaded = [1000, 0].map(|segment_len| Offloaded::new(&frame, segment_len));
    let mut batch = Batch::with_capacity(2);
    for offloaded in &mut offloaded {
        batch.push(offloaded.packet());
    }
    assert!(batch.has_super_packets());
    assert_eq!((batch.len(), batch.segments()), (2, 4));
    let mut monitor = common::function(&FunctionConfig::Monitor(MonitorConfig::default()));
    monitor.process_batch(&mut batch, &mut Discard);
    let mut page = FlowPage::new(1 << 20);
    monitor.read_flows(&mut page);
    let bytes = 2 * frame.len() as u64;
    let counted: Vec<_> = page
        .records
        .iter()
        .map(|flow| (flow.packets, flow.bytes))
        .collect();
    assert_eq!(counted, [(4, bytes)]);
}

#[test]
fn the_headroom_ends_behind_the_offload() {
    let frame = build::udp(build::client_v4(), build::server_v4(), &[7; 20]);
    let mut offloaded = Offloaded::new(&frame, 0);
    let mut packet = offloaded.packet();
    assert_eq!(packet.headroom(), START - OFFLOAD_LEN);
    assert!(packet.push_front(START - OFFLOAD_LEN + 1).is_none());
    assert!(packet.push_front(START - OFFLOAD_LEN).is_some());
    assert!(packet.has_partial_checksum());
}
