//! Tests the parser and the metadata on random frames. Compares whole frames with etherparse.

use std::net::{IpAddr, SocketAddr};

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, parse};
use proptest::prelude::*;

/// Generates frames of all kinds, with random addresses, ports, tags and lengths.
fn whole_frame() -> impl Strategy<Value = Vec<u8>> {
    let addresses = prop_oneof![
        (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        (any::<[u8; 16]>(), any::<[u8; 16]>())
            .prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ];
    // etherparse accepts each header once at most, in the order of RFC 8200, section 4.1.
    let extensions = (any::<[bool; 4]>(), 1..5_u8).prop_map(|(present, units)| {
        let all = [
            build::options_header(60, units),
            build::options_header(43, units),
            build::fragment_header(0, false),
            build::authentication_header(),
        ];
        all.into_iter()
            .zip(present)
            .filter(|(_, present)| *present)
            .map(|(header, _)| header)
            .collect::<Vec<_>>()
    });
    (
        addresses,
        any::<(u16, u16)>(),
        0..3_u8,
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(prop::sample::select(vec![build::VLAN, build::QINQ]), 0..=2),
        extensions,
        0..20_usize,
    )
        .prop_map(
            |((source, destination), (sport, dport), kind, payload, tags, extensions, padding)| {
                let (from, to) = (
                    SocketAddr::new(source, sport),
                    SocketAddr::new(destination, dport),
                );
                let mut frame = match kind {
                    0 => build::udp(from, to, &payload),
                    1 => build::tcp(from, to, &payload),
                    _ => build::echo_request(source, destination, &payload),
                };
                if source.is_ipv6() {
                    frame = build::with_extensions(frame, &extensions);
                }
                let len = frame.len() + padding;
                build::with_tags(build::pad_frame(frame, len), &tags)
            },
        )
}

/// Generates damaged packets: fixtures with some bytes changed.
fn damaged_frame() -> impl Strategy<Value = Vec<u8>> {
    let frames: Vec<Vec<u8>> = fixtures::all()
        .into_iter()
        .map(|f| f.frame)
        .filter(|f| f.len() < 300)
        .collect();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (
        prop::sample::select(frames),
        damage,
        any::<prop::sample::Index>(),
    )
        .prop_map(|(mut frame, damage, cut)| {
            for (at, value) in damage {
                if !frame.is_empty() {
                    let at = at.index(frame.len());
                    frame[at] = value;
                }
            }
            let len = cut.index(2 * frame.len() + 1);
            frame.truncate(len);
            frame
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_frames_parse_like_etherparse(frame in whole_frame()) {
        let headers = parse(&frame).unwrap();
        let tuple = headers.five_tuple(&frame);
        let reference = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let (source, destination) = match reference.net.unwrap() {
            NetHeaders::Ipv4(ip, _) => (IpAddr::from(ip.source), IpAddr::from(ip.destination)),
            NetHeaders::Ipv6(ip, _) => (IpAddr::from(ip.source), IpAddr::from(ip.destination)),
            NetHeaders::Arp(_) => unreachable!("no ARP was built"),
        };
        prop_assert_eq!((tuple.source, tuple.destination), (source, destination));
        let ports = match reference.transport {
            Some(TransportHeader::Udp(udp)) => Some((17, udp.source_port, udp.destination_port)),
            Some(TransportHeader::Tcp(tcp)) => Some((6, tcp.source_port, tcp.destination_port)),
            _ => None,
        };
        prop_assert_eq!(headers.flags.has_ports(), ports.is_some());
        if let Some((protocol, sport, dport)) = ports {
            prop_assert_eq!(tuple.protocol, protocol);
            prop_assert_eq!((tuple.source_port, tuple.destination_port), (Some(sport), Some(dport)));
            let payload = &frame[usize::from(headers.payload)..usize::from(headers.end)];
            prop_assert_eq!(payload, reference.payload.slice());
        }
    }

    #[test]
    fn damaged_frames_do_not_panic(frame in damaged_frame()) {
        if let Ok(headers) = parse(&frame) {
            prop_assert!(usize::from(headers.end) <= frame.len());
            prop_assert_eq!(Meta::new(0, 0, 0, 0, &headers).headers(&frame), Some(headers));
        }
    }

    #[test]
    fn random_metadata_never_points_outside_the_frame(
        bytes in any::<[u8; 24]>(),
        small in any::<[u8; 4]>(),
        frame in damaged_frame(),
    ) {
        let mut meta = Meta::from_bytes(&bytes);
        // Plausible offsets, because random offsets would fail the first check.
        if bytes[0] & 1 == 0 {
            meta.l3 = 14 + 4 * u16::from(small[0] % 3);
            meta.l4 = meta.l3 + 20 + u16::from(small[1] % 60);
            meta.payload = meta.l4 + u16::from(small[2] % 24);
            meta.end = meta.payload + u16::from(small[3]);
        }
        if let Some(headers) = meta.headers(&frame) {
            prop_assert!(usize::from(headers.end) <= frame.len());
            prop_assert!(headers.try_five_tuple(&frame).is_some());
            prop_assert!(headers.payload <= headers.end);
        }
    }
}
