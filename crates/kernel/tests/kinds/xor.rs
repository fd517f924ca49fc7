//! Compares `xor` with a plain reference: each byte separately, then a new checksum.

use myelin_packet::fixtures::{self, build};
use myelin_packet::{checksum, parse};
use myelin_spec::{FunctionConfig, XorConfig};
use proptest::prelude::*;

use crate::common;
use crate::space::{Kernel, Spaces, USER, edge_case_bytes, ends, fix_l4, on_fixtures};

/// Longest payload that the kernel transforms, bytes.
const LONGEST_IN_KERNEL: usize = 1500;

fn xor(key: u8) -> FunctionConfig {
    FunctionConfig::Xor(XorConfig { key })
}

/// Returns the transformed frame. `frame` has a valid checksum, or no checksum.
fn reference(frame: &[u8], key: u8) -> Option<Vec<u8>> {
    let headers = parse(frame).unwrap();
    let mut frame = frame.to_vec();
    for byte in &mut frame[headers.payload.into()..headers.end.into()] {
        *byte ^= key;
    }
    fix_l4(&mut frame, &headers)?;
    Some(frame)
}

#[test]
fn every_fixture_matches_the_reference() {
    on_fixtures(|spaces, fixtures| {
        for keys in [&[0][..], &[1], &[0x5a], &[0x80], &[0xff], &[0x5a, 0xa5]] {
            let mut functions: Vec<_> = keys.iter().map(|key| xor(*key)).collect();
            functions.insert(1, FunctionConfig::Forward);
            let chains = spaces.load(&functions);
            let key = keys.iter().fold(0, |all, key| all ^ key);
            for fixture in fixtures {
                let case = format!("{} with key {key}", fixture.name);
                if fixtures::WRONG_CHECKSUM.contains(&fixture.name) {
                    let out = chains.run(&fixture.frame, 1).expect(&case);
                    let headers = fixture.expected.unwrap();
                    let end = usize::from(headers.end);
                    let payload = usize::from(headers.payload)..end;
                    let expected = reference(&fixture.frame, key).unwrap();
                    assert_eq!(out[payload.clone()], expected[payload], "{case}");
                    assert_eq!(checksum::l4_is_valid(&out, &headers), Some(false), "{case}");
                } else {
                    let expected = reference(&fixture.frame, key);
                    chains.expect(&fixture.frame, expected.as_deref(), &case);
                }
            }
        }
    });
}

#[test]
fn a_packet_that_xor_cannot_transform_is_dropped_unchanged() {
    on_fixtures(|spaces, fixtures| {
        let chains = spaces.load(&[xor(1)]);
        let mut dropped = 0;
        for fixture in fixtures {
            if !fixture.expected.unwrap().flags.has_ports() {
                for (space, outcome) in chains.run_each(&fixture.frame, 1) {
                    let name = fixture.name;
                    assert!(!outcome.is_forwarded, "{space}: {name}");
                    assert_eq!(outcome.frame, fixture.frame, "{space}: {name}");
                }
                dropped += 1;
            }
        }
        assert!(dropped > 10);
    });
}

#[test]
fn only_the_kernel_drops_a_payload_above_its_limit() {
    let chains = Spaces::all().load(&[xor(1)]);
    let frame = build::udp_v4(LONGEST_IN_KERNEL + 1);
    for (space, outcome) in chains.run_each(&frame, 1) {
        assert_eq!(outcome.is_forwarded, space == USER, "{space}");
        assert!(outcome.is_forwarded || outcome.frame == frame, "{space}");
    }
}

#[test]
fn padding_and_surplus_stay_unchanged() {
    let chains = Spaces::all().load(&[xor(0xff)]);
    for name in [
        "udp-v4-padded",
        "udp-v6-padded",
        "tcp-v4-padded",
        "udp-v4-surplus",
    ] {
        let fixture = fixtures::named(name);
        let end = usize::from(fixture.expected.unwrap().end);
        let out = chains.run(&fixture.frame, 1).unwrap();
        assert_eq!(out[end..], fixture.frame[end..], "{name}");
    }
}

#[test]
fn payloads_of_every_length_match_the_reference() {
    let chains = Spaces::all().load(&[xor(0xc3)]);
    for (client, server) in [
        (build::client_v4(), build::server_v4()),
        (build::client_v6(), build::server_v6()),
    ] {
        for len in (0..200).chain(1400..=1472).chain([LONGEST_IN_KERNEL]) {
            for build in [build::udp, build::tcp] {
                let frame = build(client, server, &build::payload(len));
                let tagged = build::with_tags(frame.clone(), &[build::QINQ, build::VLAN]);
                for frame in [frame, tagged] {
                    let expected = reference(&frame, 0xc3);
                    chains.expect(&frame, expected.as_deref(), &format!("{len} bytes"));
                }
            }
        }
    }
    let chains = Spaces::user().load(&[xor(0xc3)]);
    for len in (2030..2070).chain([9000, 65_493]) {
        let frame = build::udp_v4(len);
        let expected = reference(&frame, 0xc3);
        chains.expect(&frame, expected.as_deref(), &format!("{len} bytes"));
    }
}

/// Bytes of 0xff are the first to overflow the lanes of the sum.
#[test]
fn a_payload_of_ones_does_not_overflow_the_sum() {
    for (spaces, lens) in [
        (Spaces::all(), &[1472, LONGEST_IN_KERNEL][..]),
        (Spaces::user(), &[2048, 2049, 4096, 65_000]),
    ] {
        let chains = spaces.load(&[xor(0xff)]);
        for &len in lens {
            let frame = build::udp(build::client_v6(), build::server_v6(), &vec![0xff; len]);
            let expected = reference(&frame, 0xff);
            chains.expect(&frame, expected.as_deref(), &format!("{len} bytes"));
        }
    }
}

/// Tests checksums that become either zero of ones' complement.
#[test]
fn a_zero_checksum_equals_the_recomputed_checksum() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let (user, all) = (
        Spaces::user().load(&[xor(0x21)]),
        Spaces::all().load(&[xor(0x21)]),
    );
    let mut zeros = 0;
    for word in 0..=u16::MAX {
        for build in [build::udp, build::tcp] {
            let frame = build(client, server, &word.to_be_bytes());
            let expected = reference(&frame, 0x21).unwrap();
            let field = checksum::l4_offset(&parse(&frame).unwrap()).unwrap();
            let is_zero = [[0, 0], [0xff, 0xff]].contains(&[expected[field], expected[field + 1]]);
            zeros += u32::from(is_zero);
            // Kernel runs cost more, so run only the zero sums and some other sums in the kernel.
            let chains = if is_zero || word % 256 == 0 {
                &all
            } else {
                &user
            };
            chains.expect(&frame, Some(&expected), &format!("{word:#06x}"));
        }
    }
    assert!(zeros >= 2, "at least two checksums must become zero");
}

#[test]
fn random_packets_match_the_reference() {
    compare_with_the_reference(64, 300);
}

#[test]
#[ignore = "thorough: checks 1756 random cases"]
fn many_random_packets_match_the_reference() {
    compare_with_the_reference(256, 1500);
}

fn compare_with_the_reference(user_cases: u32, all_cases: u32) {
    for (spaces, cases, keys, longest) in [
        (Spaces::user(), user_cases, (0..=255).collect(), 2500),
        (Spaces::all(), all_cases, vec![0, 0x5a, 0xff], 300),
    ] {
        let chains: Vec<_> = keys
            .iter()
            .map(|key| (*key, spaces.load(&[xor(*key)])))
            .collect();
        let held = prop::option::of(prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()]);
        let key_index = any::<prop::sample::Index>();
        let case = (
            ends(),
            any::<bool>(),
            edge_case_bytes(longest),
            0..3_usize,
            held,
            key_index,
        );
        common::for_all(
            cases,
            &case,
            |((from, to), tcp, payload, tags, held, key_index)| {
                let (key, chains) = key_index.get(&chains);
                let frame = if tcp { build::tcp } else { build::udp }(from, to, &payload);
                let mut frame = build::with_tags(frame, &vec![build::VLAN; tags]);
                let headers = parse(&frame).unwrap();
                if let Some(held) = held {
                    let field = checksum::l4_offset(&headers).unwrap();
                    frame[field..field + 2].copy_from_slice(&held.to_be_bytes());
                }
                let valid = checksum::l4_is_valid(&frame, &headers);
                if valid != Some(false) {
                    let expected = reference(&frame, *key).unwrap();
                    chains.expect(&frame, Some(&expected), "the first run");
                    if held.is_none() {
                        chains.expect(&expected, Some(&frame), "the second run restores the frame");
                    }
                }
                let out = chains.run(&frame, 1).unwrap();
                assert_eq!(checksum::l4_is_valid(&out, &headers), valid);
            },
        );
    }
}

#[test]
fn a_segmented_packet_is_dropped_and_counts_as_its_segments() {
    let Some(kernel) = Kernel::at_tcx() else {
        return;
    };
    let frame = build::tcp_v4(1000);
    let outcome = kernel.load_chain(&[xor(1)]).run_one(&frame, 1, 4);
    assert_eq!((outcome.is_forwarded, &outcome.frame), (false, &frame));
    // `forward` ignores the payload.
    let outcome = kernel
        .load_chain(&[FunctionConfig::Forward])
        .run_one(&frame, 1, 4);
    assert_eq!((outcome.is_forwarded, outcome.frame), (true, frame));
}
