//! `xor` against a plain reference: every byte on its own, the checksum computed anew.

mod common;

use myelin_functions::Function;
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Headers, checksum};
use myelin_spec::{FunctionConfig, XorConfig};
use proptest::prelude::*;

fn xor(key: u8) -> Box<dyn Function> {
    common::function(&FunctionConfig::Xor(XorConfig { key }))
}

/// `frame` had a valid checksum, or none.
fn reference(frame: &[u8], headers: &Headers, key: u8) -> Option<Vec<u8>> {
    let field = checksum::l4_offset(headers)?;
    let mut frame = frame.to_vec();
    for byte in &mut frame[headers.payload.into()..headers.end.into()] {
        *byte ^= key;
    }
    if frame[field..field + 2] != [0, 0] || headers.protocol != 17 {
        let checksum = checksum::l4_checksum(&frame, headers)?;
        frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    Some(frame)
}

#[test]
fn every_fixture_comes_out_as_the_reference_says() {
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        if fixtures::WRONG_CHECKSUM.contains(&fixture.name) {
            continue;
        }
        for key in [0, 1, 0x5a, 0x80, 0xff] {
            let out = common::run(&mut *xor(key), &fixture.frame);
            assert_eq!(
                out,
                reference(&fixture.frame, &headers, key),
                "{} with key {key}",
                fixture.name
            );
        }
    }
}

#[test]
fn what_has_no_payload_to_transform_is_dropped() {
    let mut dropped = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        if !headers.flags.has_ports() {
            assert_eq!(
                common::run(&mut *xor(1), &fixture.frame),
                None,
                "{}",
                fixture.name
            );
            dropped += 1;
        }
    }
    assert!(dropped > 10);
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    let fixture = fixtures::named("udp-v4-checksum-wrong");
    let out = common::run(&mut *xor(0x5a), &fixture.frame).unwrap();
    assert_eq!(
        checksum::l4_is_valid(&out, &fixture.expected.unwrap()),
        Some(false)
    );
}

#[test]
fn padding_and_surplus_are_left_alone() {
    for name in [
        "udp-v4-padded",
        "udp-v6-padded",
        "tcp-v4-padded",
        "udp-v4-surplus",
    ] {
        let fixture = fixtures::named(name);
        let end = usize::from(fixture.expected.unwrap().end);
        let out = common::run(&mut *xor(0xff), &fixture.frame).unwrap();
        assert_eq!(out[end..], fixture.frame[end..], "{name}");
    }
}

#[test]
fn every_length_around_the_word_sizes_is_right() {
    for len in (0..100).chain(2030..2070).chain([9000, 65_493]) {
        let frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(len));
        let headers = myelin_packet::parse(&frame).unwrap();
        assert_eq!(
            common::run(&mut *xor(0xc3), &frame),
            reference(&frame, &headers, 0xc3),
            "{len} bytes"
        );
    }
}

/// The lanes of the sum would overflow first on these.
#[test]
fn all_bits_set_do_not_overflow_the_sum() {
    for len in [2048, 2049, 4096, 65_000] {
        let frame = build::udp(build::client_v6(), build::server_v6(), &vec![0xff; len]);
        let headers = myelin_packet::parse(&frame).unwrap();
        assert_eq!(
            common::run(&mut *xor(0xff), &frame),
            reference(&frame, &headers, 0xff),
            "{len} bytes"
        );
    }
}

/// Both zeros of ones' complement, as they come out of the update.
#[test]
fn a_checksum_that_becomes_zero_is_written_as_computed_anew() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let mut zeros = 0;
    for word in 0..=u16::MAX {
        for frame in [
            build::udp(client, server, &word.to_be_bytes()),
            build::tcp(client, server, &word.to_be_bytes()),
        ] {
            let headers = myelin_packet::parse(&frame).unwrap();
            let expected = reference(&frame, &headers, 0x21);
            let field = checksum::l4_offset(&headers).unwrap();
            zeros += u32::from([[0, 0], [0xff, 0xff]].contains(&[
                expected.as_ref().unwrap()[field],
                expected.as_ref().unwrap()[field + 1],
            ]));
            assert_eq!(
                common::run(&mut *xor(0x21), &frame),
                expected,
                "{word:#06x}"
            );
        }
    }
    assert!(zeros >= 2, "neither UDP nor TCP came to zero");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_come_out_as_the_reference_says(
        (source, destination) in common::ends::ends(),
        tcp: bool,
        payload in prop::collection::vec(any::<u8>(), 0..2500),
        tags in 0..3_usize,
        key: u8,
    ) {
        let frame = if tcp { build::tcp } else { build::udp }(source, destination, &payload);
        let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
        let headers = myelin_packet::parse(&frame).unwrap();
        let mut function = xor(key);
        let out = common::run(&mut *function, &frame).unwrap();
        prop_assert_eq!(&out, &reference(&frame, &headers, key).unwrap());
        prop_assert_eq!(checksum::l4_is_valid(&out, &headers), Some(true));
        prop_assert_eq!(common::run(&mut *function, &out), Some(frame), "twice gives it back");
    }
}
