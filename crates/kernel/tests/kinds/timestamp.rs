//! Compares `timestamp` with a plain reference: a new datagram with new checksums.

use myelin_functions::timestamp::{MTU, STAMPS_LEN};
use myelin_packet::five_tuple::UDP;
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Headers, checksum, parse};
use myelin_spec::FunctionConfig;
use proptest::prelude::*;

use crate::common;
use crate::space::{
    Chains, Kernel, Spaces, USER, edge_case_bytes, ends, fix_l3, fix_l4, on_fixtures, user_time,
};

const STAMP_NS: u64 = 0x0102_0304_f5f6_f7f8;

fn load(spaces: &Spaces) -> Chains {
    spaces.load(&[FunctionConfig::Timestamp])
}

/// Returns the frame with the stamps; `None` if the function must drop the frame. `frame` has valid
/// checksums, or no UDP checksum.
fn reference(frame: &[u8], times: (u64, u64)) -> Option<Vec<u8>> {
    let headers = parse(frame).unwrap();
    let [l3, l4, end] = [headers.l3, headers.l4, headers.end].map(usize::from);
    let udp_end = headers
        .flags
        .has_ports()
        .then(|| l4 + usize::from(headers.end - headers.l4))?;
    let ip_end = l3 + ip_len(frame, &headers);
    if headers.protocol != UDP || udp_end != ip_end || ip_end - l3 + STAMPS_LEN > MTU {
        return None;
    }
    let mut out = frame[..end].to_vec();
    out.extend(times.0.to_be_bytes());
    out.extend(times.1.to_be_bytes());
    let new_end = out.len();
    out.extend(frame.get(new_end..).unwrap_or_default());
    let mut set = |at: usize, value: usize| {
        out[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    };
    set(l4 + 4, new_end - l4);
    if headers.flags.is_ipv6() {
        set(l3 + 4, new_end - l3 - 40);
    } else {
        set(l3 + 2, new_end - l3);
    }
    let headers = Headers {
        end: new_end as u16,
        ..headers
    };
    fix_l3(&mut out, &headers);
    fix_l4(&mut out, &headers)?;
    Some(out)
}

/// Returns the number of bytes from the IP header to the end of the IP packet.
fn ip_len(frame: &[u8], headers: &Headers) -> usize {
    let l3 = usize::from(headers.l3);
    let field = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    if headers.flags.is_ipv6() {
        40 + field(l3 + 4)
    } else {
        field(l3 + 2)
    }
}

/// Returns whether the checksums of the IPv4 header and of the segment are valid.
fn check_checksums(frame: &[u8]) -> (bool, Option<bool>) {
    let headers = parse(frame).unwrap();
    let header = &frame[headers.l3.into()..headers.l4.into()];
    let l3 = headers.flags.is_ipv6() || checksum::checksum(header) == 0;
    (l3, checksum::l4_is_valid(frame, &headers))
}

/// Sets the checksums to zero.
fn clear_checksums(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = parse(&frame).unwrap();
    let l3 = usize::from(headers.l3);
    if !headers.flags.is_ipv6() {
        frame[l3 + 10..l3 + 12].fill(0);
    }
    if let Some(field) = checksum::l4_offset(&headers) {
        frame[field..field + 2].fill(0);
    }
    frame
}

/// Checks the frame in each space, with the space's clock. Returns whether the spaces stamp the
/// frame. A wrong checksum must stay wrong.
#[track_caller]
fn assert_stamped(chains: &Chains, frame: &[u8], stamp_ns: u64, case: &str) -> bool {
    let mut is_stamped = false;
    for (space, outcome) in chains.run_each(frame, stamp_ns) {
        let Some(expected) = reference(frame, (0, 0)) else {
            assert!(!outcome.is_forwarded, "{space}: {case} was not dropped");
            continue;
        };
        is_stamped = true;
        let (out, end) = (outcome.frame, usize::from(parse(&expected).unwrap().end));
        assert!(outcome.is_forwarded, "{space}: {case} was dropped");
        assert_eq!(out.len(), expected.len(), "{space}: {case}");
        let stamps: [u8; STAMPS_LEN] = *out[..end].last_chunk().unwrap();
        let [received, sent] = [0, 8].map(|at| {
            let time = stamps[at..].first_chunk();
            u64::from_be_bytes(*time.unwrap())
        });
        assert!(
            space != USER || [received, sent] == [user_time(stamp_ns); 2],
            "{space}: {case}"
        );
        assert!(received <= sent, "{space}: {case}");
        let expected = reference(frame, (received, sent)).unwrap();
        let valid = check_checksums(frame);
        if valid.0 && valid.1 != Some(false) {
            assert_eq!(out, expected, "{space}: {case}");
        } else {
            let [out, expected] = [&out, &expected].map(|frame| clear_checksums(frame.clone()));
            assert_eq!(out, expected, "{space}: {case}");
        }
        assert_eq!(check_checksums(&out), valid, "{space}: {case}");
    }
    is_stamped
}

#[test]
fn every_fixture_matches_the_reference() {
    on_fixtures(|spaces, fixtures| {
        let chains = load(spaces);
        let stamped = |fixture: &&fixtures::Fixture| {
            assert_stamped(&chains, &fixture.frame, STAMP_NS, fixture.name)
        };
        let stamped = fixtures.iter().filter(stamped).count();
        assert!(stamped > 8, "only {stamped} fixtures were stamped");
    });
}

#[test]
fn wrong_checksums_stay_wrong() {
    let chains = load(&Spaces::all());
    let segment = fixtures::named("udp-v4-checksum-wrong").frame;
    let mut header = build::udp_v4(10);
    header[24] ^= 0x10;
    for (frame, valid) in [
        (segment, (true, Some(false))),
        (header, (false, Some(true))),
    ] {
        assert_eq!(check_checksums(&frame), valid);
        assert!(assert_stamped(
            &chains,
            &frame,
            STAMP_NS,
            "a wrong checksum"
        ));
    }
}

#[test]
fn padding_is_used_before_the_frame_grows() {
    // A frame of 60 bytes with 4 bytes of payload has 14 bytes of padding. The stamps need 2 bytes
    // more.
    let padded = fixtures::named("udp-v4-padded").frame;
    let [too_short, sufficient] =
        [1, 2].map(|tailroom| load(&Spaces::user_with_tailroom(tailroom)));
    too_short.expect(&padded, None, "a byte of tailroom is missing");
    assert!(assert_stamped(
        &sufficient,
        &padded,
        STAMP_NS,
        "just enough tailroom"
    ));
    let all = load(&Spaces::all());
    for (frame, len, end) in [
        (padded, 62, 62),
        (build::pad_frame(build::udp_v4(4), 100), 100, 62),
    ] {
        assert!(assert_stamped(&all, &frame, STAMP_NS, "a padded frame"));
        for (space, outcome) in all.run_each(&frame, STAMP_NS) {
            let headers = parse(&outcome.frame).unwrap();
            assert_eq!((outcome.frame.len(), headers.end), (len, end), "{space}");
            let rest = frame.get(end.into()..).unwrap_or_default();
            assert_eq!(&outcome.frame[end.into()..], rest, "{space}");
        }
    }
}

#[test]
fn a_packet_that_cannot_grow_is_dropped() {
    let longest = MTU - STAMPS_LEN - 28;
    let all = load(&Spaces::all());
    for (frame, is_forwarded) in [
        (build::udp_v4(longest), true),
        (build::udp_v4(longest + 1), false),
        (build::udp_v6(longest - 20), true),
        (build::udp_v6(longest - 19), false),
    ] {
        assert_eq!(
            assert_stamped(&all, &frame, STAMP_NS, "at the MTU"),
            is_forwarded
        );
    }
    let segment = build::udp_segment(build::client_v4(), build::server_v4(), &[7; 64]);
    let first = build::ipv4_fragment(17, &segment[..48], 0, true);
    all.expect(&first, None, "a first fragment");
    for name in ["udp-v4-surplus", "tcp-v4", "icmp"] {
        all.expect(&fixtures::named(name).frame, None, name);
    }
    let tight = load(&Spaces::user_with_tailroom(15));
    tight.expect(&build::udp_v4(9), None, "too little tailroom");
}

#[test]
fn fragments_are_dropped() {
    on_fixtures(|spaces, fixtures| {
        let chains = load(spaces);
        for fixture in fixtures {
            if fixture.expected.unwrap().flags.is_fragment() {
                chains.expect(&fixture.frame, None, fixture.name);
            }
        }
    });
}

#[test]
fn payloads_of_every_length_match_the_reference() {
    let chains = load(&Spaces::all());
    for len in (0..70).chain(MTU - 80..MTU) {
        let padded = build::pad_frame(build::udp_v4(len), len + 50);
        for frame in [build::udp_v4(len), build::udp_v6(len), padded] {
            assert_stamped(&chains, &frame, STAMP_NS, &format!("{len} bytes"));
        }
    }
}

#[test]
fn random_packets_match_the_reference() {
    compare_with_the_reference(64, 150);
}

#[test]
#[ignore = "thorough: checks 956 random cases"]
fn many_random_packets_match_the_reference() {
    compare_with_the_reference(256, 700);
}

fn compare_with_the_reference(user_cases: u32, all_cases: u32) {
    for (spaces, cases, longest) in [
        (Spaces::user(), user_cases, 1500),
        (Spaces::all(), all_cases, 300),
    ] {
        let chains = load(&spaces);
        let held = prop::option::of(prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()]);
        let stamp = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
        let case = (ends(), edge_case_bytes(longest), 0..3_usize, held, stamp);
        common::for_all(
            cases,
            &case,
            |((from, to), payload, tags, held, stamp_ns)| {
                let mut frame = build::udp(from, to, &payload);
                if let Some(held) = held {
                    let field = checksum::l4_offset(&parse(&frame).unwrap()).unwrap();
                    frame[field..field + 2].copy_from_slice(&held.to_be_bytes());
                }
                let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
                assert_stamped(&chains, &frame, stamp_ns, "a random packet");
            },
        );
    }
}

#[test]
fn a_segmented_packet_is_dropped_and_counts_as_its_segments() {
    let Some(kernel) = Kernel::at_tcx() else {
        return;
    };
    let frame = build::udp_v4(1000);
    let outcome = kernel
        .load_chain(&[FunctionConfig::Timestamp])
        .run_one(&frame, 1, 4);
    assert_eq!((outcome.is_forwarded, outcome.frame), (false, frame));
}
