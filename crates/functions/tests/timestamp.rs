//! `timestamp` against a plain reference: the datagram put together anew, its checksums too.

mod common;

use myelin_functions::timestamp::{MTU, STAMPS_LEN, Timestamp};
use myelin_functions::{Discard, Function, Packet, Verdict};
use myelin_packet::five_tuple::UDP;
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Headers, Meta, checksum, parse};
use proptest::prelude::*;

const RECEIVED_NS: u64 = 0x0102_0304_0506_0708;
const SENT_NS: u64 = 0xf1f2_f3f4_f5f6_f7f8;

/// What the function makes of a frame with that much room behind it, and what the packet says of itself then.
fn run(frame: &[u8], room: usize, times: (u64, u64)) -> Option<(Vec<u8>, Headers)> {
    let headers = parse(frame).unwrap();
    let mut buffer = [frame, &vec![0xa5; room]].concat();
    let meta = Meta::new(times.0, 2, 3, 0, &headers);
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
    let mut function = Timestamp::default();
    assert!(function.needs_time());
    function.set_time(times.1);
    let verdict = function.process(&mut packet, &mut Discard);
    let out = (packet.bytes().to_vec(), *packet.headers());
    (verdict == Verdict::Forward).then_some(out)
}

/// `frame` had valid checksums, or no UDP checksum.
fn reference(frame: &[u8], headers: &Headers, times: (u64, u64)) -> Option<Vec<u8>> {
    let (l3, l4, end) = (
        usize::from(headers.l3),
        usize::from(headers.l4),
        usize::from(headers.end),
    );
    if !headers.flags.has_ports() || headers.protocol != UDP || end + STAMPS_LEN - l3 > MTU {
        return None;
    }
    let mut out = frame[..end].to_vec();
    out.extend(times.0.to_be_bytes());
    out.extend(times.1.to_be_bytes());
    let new_end = out.len();
    out.extend(frame.get(new_end..).unwrap_or_default());
    let mut set = |at: usize, value: u16| out[at..at + 2].copy_from_slice(&value.to_be_bytes());
    set(l4 + 4, (new_end - l4) as u16);
    if headers.flags.is_ipv6() {
        set(l3 + 4, (new_end - l3 - 40) as u16);
    } else {
        set(l3 + 2, (new_end - l3) as u16);
        set(l3 + 10, 0);
        let header = checksum::checksum(&out[l3..l4]);
        out[l3 + 10..l3 + 12].copy_from_slice(&header.to_be_bytes());
    }
    if out[l4 + 6..l4 + 8] != [0, 0] {
        let headers = Headers {
            end: new_end as u16,
            ..*headers
        };
        let checksum = checksum::l4_checksum(&out, &headers)?;
        out[l4 + 6..l4 + 8].copy_from_slice(&checksum.to_be_bytes());
    }
    Some(out)
}

fn ip_checksum_is_valid(frame: &[u8], headers: &Headers) -> bool {
    let header = &frame[headers.l3.into()..headers.l4.into()];
    headers.flags.is_ipv6() || checksum::checksum(header) == 0
}

#[test]
fn every_fixture_comes_out_as_the_reference_says() {
    let mut stamped = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        let known = !fixtures::WRONG_CHECKSUM.contains(&fixture.name)
            && fixture.name != "udp-v4-surplus"
            && ip_checksum_is_valid(&fixture.frame, &headers);
        if known {
            let times = (RECEIVED_NS, SENT_NS);
            let out = run(&fixture.frame, 64, times).map(|out| out.0);
            stamped += u32::from(out.is_some());
            let expected = reference(&fixture.frame, &headers, times);
            assert_eq!(out, expected, "{}", fixture.name);
        }
    }
    assert!(stamped > 8, "only {stamped} fixtures were stamped");
}

#[test]
fn wrong_checksums_stay_wrong() {
    let fixture = fixtures::named("udp-v4-checksum-wrong");
    let (out, headers) = run(&fixture.frame, 16, (1, 2)).unwrap();
    assert_eq!(checksum::l4_is_valid(&out, &headers), Some(false));
    let mut frame = build::udp_v4(10);
    frame[24] ^= 0x10;
    let (out, headers) = run(&frame, 16, (1, 2)).unwrap();
    assert!(!ip_checksum_is_valid(&out, &headers));
}

#[test]
fn padding_is_used_up_before_the_frame_grows() {
    // 4 bytes of payload in a frame of 60: 14 of padding, 2 are missing.
    let padded = fixtures::named("udp-v4-padded");
    assert!(run(&padded.frame, 1, (1, 2)).is_none());
    let (out, headers) = run(&padded.frame, 2, (1, 2)).unwrap();
    assert_eq!((out.len(), headers.end), (62, 62));
    // More padding than that stays behind the datagram.
    let frame = build::padded(build::udp_v4(4), 100);
    let (out, headers) = run(&frame, 0, (1, 2)).unwrap();
    assert_eq!((out.len(), headers.end), (100, 62));
    assert_eq!(out[62..], frame[62..]);
}

#[test]
fn what_cannot_grow_is_dropped() {
    let longest = MTU - STAMPS_LEN - 28;
    assert!(run(&build::udp_v4(longest), 16, (1, 2)).is_some());
    assert!(run(&build::udp_v4(longest + 1), 16, (1, 2)).is_none());
    assert!(run(&build::udp_v6(longest - 20), 16, (1, 2)).is_some());
    assert!(run(&build::udp_v6(longest - 19), 16, (1, 2)).is_none());
    assert!(run(&build::udp_v4(9), 15, (1, 2)).is_none(), "no room");
    for name in ["udp-v4-surplus", "tcp-v4", "icmp"] {
        let frame = fixtures::named(name).frame;
        assert!(run(&frame, 16, (1, 2)).is_none(), "{name}");
    }
    for fixture in fixtures::all() {
        if let Ok(headers) = fixture.expected
            && headers.flags.is_fragment()
        {
            assert!(
                run(&fixture.frame, 64, (1, 2)).is_none(),
                "{}",
                fixture.name
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_come_out_as_the_reference_says(
        (source, destination) in common::ends::ends(),
        payload in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..1500),
        tags in 0..3_usize,
        has_checksum: bool,
        times in prop_oneof![Just((0, 0)), Just((u64::MAX, u64::MAX)), any::<(u64, u64)>()],
    ) {
        let mut frame = build::udp(source, destination, &payload);
        if !has_checksum {
            let l4 = usize::from(parse(&frame).unwrap().l4);
            frame[l4 + 6..l4 + 8].fill(0);
        }
        let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
        let headers = parse(&frame).unwrap();
        let out = run(&frame, 16, times);
        prop_assert_eq!(
            out.as_ref().map(|out| out.0.clone()),
            reference(&frame, &headers, times)
        );
        if let Some((out, found)) = out {
            prop_assert_eq!(found, parse(&out).unwrap());
            prop_assert_eq!(checksum::l4_is_valid(&out, &found), Some(true));
            prop_assert!(ip_checksum_is_valid(&out, &found));
        }
    }
}
