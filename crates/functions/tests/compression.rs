//! Compares `compress` and `decompress` with the libraries' one-shot calls and newly built packets,
//! and tests both in sequence.

mod common;
#[path = "common/telemetry.rs"]
mod telemetry;

use common::{counters, payload_of, run_with_room};
use myelin_functions::compression::{
    Header, MARKER_LEN, PayloadForm, dictionary_id, is_marked, payload_form,
};
use myelin_functions::{Function, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{checksum, parse};
use myelin_spec::{
    CompressConfig, CompressionAlgorithm, DecompressConfig, Dictionary, FunctionConfig,
};
use proptest::prelude::*;
use telemetry::{random, telemetry};

const ALGORITHMS: [CompressionAlgorithm; 2] =
    [CompressionAlgorithm::Lz4, CompressionAlgorithm::Zstd];
/// The marker of a stored payload.
const STORED: [u8; MARKER_LEN] = [0xf5, 0x4d, 0x59, 0xb8];

fn dictionary() -> Dictionary {
    Dictionary::new(telemetry(4096, 99))
}

fn compress(algorithm: CompressionAlgorithm, dictionary: Option<Dictionary>) -> Box<dyn Function> {
    let config = CompressConfig {
        algorithm,
        dictionary,
        ..CompressConfig::default()
    };
    instantiate(&FunctionConfig::Compress(config)).unwrap()
}

fn decompress(dictionary: Option<Dictionary>) -> Box<dyn Function> {
    let config = DecompressConfig {
        dictionary,
        ..DecompressConfig::default()
    };
    instantiate(&FunctionConfig::Decompress(config)).unwrap()
}

/// Returns pairs of `compress` and `decompress`. For each algorithm there is a pair without a
/// dictionary and a pair with one.
fn pairs() -> impl Iterator<Item = (Box<dyn Function>, Box<dyn Function>)> {
    let configs =
        ALGORITHMS.map(|algorithm| [None, Some(dictionary())].map(|dict| (algorithm, dict)));
    configs
        .into_iter()
        .flatten()
        .map(|(algorithm, dict)| (compress(algorithm, dict.clone()), decompress(dict)))
}

/// Like [`run_with_room`], with room for any result.
fn process(function: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    run_with_room(function, frame, 2048)
}

/// Returns the frame without its padding.
fn without_padding(frame: &[u8]) -> &[u8] {
    &frame[..parse(frame).unwrap().end.into()]
}

/// Decompresses a payload with the libraries' one-shot calls. For LZ4, uses another library than
/// the function.
fn decompress_one_shot(compressed: &[u8], dict: Option<&[u8]>) -> Vec<u8> {
    let header = match payload_form(compressed) {
        PayloadForm::Untouched => return compressed.to_vec(),
        PayloadForm::Stored => return compressed[MARKER_LEN..].to_vec(),
        PayloadForm::Compressed(header) => header,
        PayloadForm::Malformed => panic!("malformed: {compressed:02x?}"),
    };
    assert_eq!(header.dictionary, dict.map(dictionary_id));
    let block = &compressed[Header::len(dict.is_some())..];
    let length = usize::from(header.length);
    match header.algorithm {
        CompressionAlgorithm::Lz4 => match dict {
            None => lz4_flex::block::decompress(block, length).unwrap(),
            Some(dict) => lz4_flex::block::decompress_with_dict(block, length, dict).unwrap(),
        },
        CompressionAlgorithm::Zstd => {
            let frame = [&[0x28, 0xb5, 0x2f, 0xfd], block].concat();
            let mut out = vec![0; length];
            let mut context = zstd_safe::DCtx::create();
            let dict = dict.unwrap_or_default();
            let written = context.decompress_using_dict(&mut out[..], &frame, dict);
            assert_eq!(written, Ok(length));
            out
        }
    }
}

/// Compresses a payload of any length in the format of `compress`, with the libraries' one-shot
/// calls. Its header contains `stated_len`.
fn compress_one_shot(
    algorithm: CompressionAlgorithm,
    payload: &[u8],
    stated_len: usize,
) -> Vec<u8> {
    let block = match algorithm {
        CompressionAlgorithm::Lz4 => lz4_flex::block::compress(payload),
        CompressionAlgorithm::Zstd => {
            let mut out = vec![0; zstd_safe::compress_bound(payload.len())];
            let written = zstd_safe::compress(&mut out[..], payload, 3).unwrap();
            out[4..written].to_vec()
        }
    };
    let header = Header {
        algorithm,
        length: stated_len as u16,
        dictionary: None,
    };
    let mut out = vec![0; Header::len(false)];
    header.write(&mut out).unwrap();
    out.extend(block);
    out
}

#[test]
fn payloads_of_every_length_round_trip() {
    let v4 = (build::client_v4(), build::server_v4());
    let v6 = (build::client_v6(), build::server_v6());
    for (number, (mut compress, mut decompress)) in pairs().enumerate() {
        let dict = (number % 2 == 1).then(dictionary);
        let dict = dict.as_ref().map(Dictionary::bytes);
        for (ends, longest) in [(v4, 1472), (v6, 1452)] {
            for len in 0..=longest {
                for sent in [telemetry(len, len as u64), random(len, len as u64)] {
                    let frame = build::udp(ends.0, ends.1, &sent);
                    let compressed = process(&mut *compress, &frame).unwrap();
                    assert!(compressed.len() <= frame.len());
                    assert_eq!(decompress_one_shot(payload_of(&compressed), dict), sent);
                    assert_eq!(
                        compressed,
                        build::udp(ends.0, ends.1, payload_of(&compressed))
                    );
                    assert_eq!(process(&mut *decompress, &compressed), Some(frame));
                }
            }
        }
        let (before, after) = (counters(&*compress), counters(&*decompress));
        assert!(before["compressed"] > 2500, "{before:?}");
        assert!(before["bytes-out"] < before["bytes-in"] * 3 / 4);
        assert_eq!(before["compressed"], after["decompressed"]);
        assert_eq!(before["untouched"], after["untouched"]);
        assert_eq!(before["bytes-in"], after["bytes-out"]);
        assert_eq!(before["bytes-out"], after["bytes-in"]);
    }
}

#[test]
fn every_fixture_round_trips() {
    for (mut compress, mut decompress) in pairs() {
        for fixture in fixtures::all() {
            if fixture.expected.is_ok() {
                let compressed = process(&mut *compress, &fixture.frame).unwrap();
                let back = process(&mut *decompress, &compressed).unwrap();
                let expected = without_padding(&fixture.frame);
                assert_eq!(without_padding(&back), expected, "{}", fixture.name);
            }
        }
        assert!(counters(&*compress)["other"] > 10);
        assert_eq!(
            counters(&*compress)["other"],
            counters(&*decompress)["other"]
        );
    }
}

#[test]
fn packets_without_a_complete_datagram_pass_unchanged_and_are_counted() {
    let text = telemetry(600, 1);
    let tcp = build::tcp(build::client_v4(), build::server_v4(), &text);
    let fragment = build::ipv4_fragment(17, &text, 0, true);
    let surplus = fixtures::named("udp-v4-surplus").frame;
    let (mut compress, mut decompress) = pairs().next().unwrap();
    for frame in [tcp, fragment, surplus] {
        assert_eq!(process(&mut *compress, &frame).as_ref(), Some(&frame));
        assert_eq!(process(&mut *decompress, &frame).as_ref(), Some(&frame));
    }
    for counters in [counters(&*compress), counters(&*decompress)] {
        assert_eq!((counters["other"], counters["bytes-in"]), (3, 0));
    }
}

#[test]
fn a_payload_that_begins_like_a_marker_is_stored_and_must_fit() {
    let (mut compress, mut decompress) = pairs().next().unwrap();
    for last in 0xb8..=0xbf {
        let marked = |len: usize| [&STORED[..3], &[last], &random(len - 4, 1)].concat();
        let frame = build::udp(build::client_v4(), build::server_v4(), &marked(1468));
        let stored = process(&mut *compress, &frame).unwrap();
        assert_eq!(
            payload_of(&stored),
            [&STORED[..], payload_of(&frame)].concat()
        );
        assert_eq!(process(&mut *decompress, &stored), Some(frame.clone()));
        assert_eq!(run_with_room(&mut *compress, &frame, 3), None, "no room");
        let longer = build::udp(build::client_v4(), build::server_v4(), &marked(1469));
        assert_eq!(process(&mut *compress, &longer), None, "too long");
    }
    let counters = counters(&*compress);
    assert_eq!((counters["stored"], counters["too-long"]), (8, 16));
    // The values next to the markers are not markers.
    for last in [0xb7, 0xc0] {
        let sent = [&STORED[..3], &[last], &random(100, 1)].concat();
        let frame = build::udp(build::client_v4(), build::server_v4(), &sent);
        assert_eq!(process(&mut *compress, &frame), Some(frame));
    }
}

#[test]
fn padding_is_removed_and_overwritten() {
    let (mut compress, mut decompress) = pairs().next().unwrap();
    let frame = build::udp(build::client_v4(), build::server_v4(), &[7; 300]);
    let padded = build::pad_frame(frame.clone(), 380);
    let compressed = process(&mut *compress, &padded).unwrap();
    assert_eq!(compressed, process(&mut *compress, &frame).unwrap());
    assert!(compressed.len() < 80);
    let missing = frame.len() - compressed.len();
    assert_eq!(
        run_with_room(&mut *decompress, &compressed, missing - 1),
        None
    );
    let padded = build::pad_frame(compressed.clone(), compressed.len() + 10);
    for (frame_in, room) in [(&compressed, missing), (&padded, missing - 10)] {
        assert_eq!(
            run_with_room(&mut *decompress, frame_in, room),
            Some(frame.clone())
        );
    }
    assert_eq!(counters(&*decompress)["too-long"], 1);
}

#[test]
fn wrong_checksums_stay_wrong_and_absent_ones_stay_absent() {
    for (mut compress, mut decompress) in pairs() {
        for checksum in [[0, 0], [0x12, 0x34]] {
            let mut frame = build::udp(build::client_v4(), build::server_v4(), &[7; 301]);
            frame[24] ^= 1; // the IP header checksum
            frame[40..42].copy_from_slice(&checksum);
            let compressed = process(&mut *compress, &frame).unwrap();
            let headers = parse(&compressed).unwrap();
            assert_eq!(
                checksum::l4_is_valid(&compressed, &headers),
                Some(checksum == [0, 0])
            );
            assert_ne!(checksum::checksum(&compressed[14..34]), 0);
            assert_eq!(process(&mut *decompress, &compressed), Some(frame));
        }
    }
}

#[test]
fn damage_in_transit_leaves_a_wrong_checksum() {
    let (mut compress, mut decompress) = pairs().next().unwrap();
    let frame = build::udp(build::client_v4(), build::server_v4(), &telemetry(700, 5));
    let compressed = process(&mut *compress, &frame).unwrap();
    let mut forwarded = 0;
    for at in 48..compressed.len() {
        let mut damaged = compressed.clone();
        damaged[at] ^= 0x10;
        if let Some(out) = process(&mut *decompress, &damaged) {
            forwarded += 1;
            assert_eq!(
                checksum::l4_is_valid(&out, &parse(&out).unwrap()),
                Some(false)
            );
        }
    }
    assert!(forwarded > 50, "{forwarded}");
}

#[test]
fn a_payload_that_would_be_too_long_is_not_decompressed() {
    let mut decompress = decompress(None);
    let packet = |payload: &[u8]| build::udp(build::client_v4(), build::server_v4(), payload);
    for algorithm in ALGORITHMS {
        let whole = compress_one_shot(algorithm, &[7; 1472], 1472);
        assert_eq!(
            process(&mut *decompress, &packet(&whole)),
            Some(packet(&[7; 1472]))
        );
        let longer = packet(&compress_one_shot(algorithm, &[7; 1473], 1473));
        assert_eq!(process(&mut *decompress, &longer), None);
        let bomb = packet(&compress_one_shot(algorithm, &vec![0; 65_000], 65_000));
        assert!(bomb.len() < 400);
        assert_eq!(process(&mut *decompress, &bomb), None);
        assert_eq!(
            counters(&*decompress)["too-long"],
            2 * (algorithm as u64 + 1)
        );
        // `decompress` detects a length in the header that is too small or too large.
        for (bytes, stated_len) in [(65_000, 1472), (1_000_000, 600), (600, 601)] {
            let false_length = packet(&compress_one_shot(algorithm, &vec![0; bytes], stated_len));
            if false_length.len() <= 1514 {
                assert_eq!(
                    process(&mut *decompress, &false_length),
                    None,
                    "{bytes}, stated {stated_len}"
                );
            }
        }
    }
    assert_eq!(counters(&*decompress)["malformed"], 5);
}

#[test]
fn another_dictionary_is_detected() {
    let frame = build::udp(build::client_v4(), build::server_v4(), &telemetry(700, 5));
    let other = Dictionary::new(telemetry(4096, 98));
    for algorithm in ALGORITHMS {
        let mut right = decompress(Some(dictionary()));
        for (with, without) in [
            (Some(dictionary()), Some(other.clone())),
            (None, Some(dictionary())),
        ] {
            let compressed = process(&mut *compress(algorithm, with.clone()), &frame).unwrap();
            let mut wrong = decompress(without);
            assert_eq!(process(&mut *wrong, &compressed), None);
            assert_eq!(counters(&*wrong)["wrong-dictionary"], 1);
            assert_eq!(
                process(&mut *decompress(with), &compressed),
                Some(frame.clone())
            );
        }
        let compressed = process(&mut *compress(algorithm, Some(dictionary())), &frame).unwrap();
        assert_eq!(process(&mut *decompress(None), &compressed), None);
        assert_eq!(process(&mut *right, &compressed), Some(frame.clone()));
    }
}

#[test]
fn a_dictionary_improves_compression_and_a_damaged_one_is_refused() {
    let frame = build::udp(build::client_v4(), build::server_v4(), &telemetry(200, 5));
    for algorithm in ALGORITHMS {
        let len = |dict| {
            process(&mut *compress(algorithm, dict), &frame)
                .unwrap()
                .len()
        };
        assert!(len(Some(dictionary())) + 40 < len(None), "{algorithm}");
    }
    // The dictionary has the magic number of `zstd --train` and invalid contents.
    let damaged = Some(Dictionary::new(
        [&[0x37, 0xa4, 0x30, 0xec][..], &[0xff; 60]].concat(),
    ));
    let config = CompressConfig {
        algorithm: CompressionAlgorithm::Zstd,
        dictionary: damaged.clone(),
        ..CompressConfig::default()
    };
    assert!(instantiate(&FunctionConfig::Compress(config)).is_err());
    let config = DecompressConfig {
        dictionary: damaged,
        ..DecompressConfig::default()
    };
    assert!(instantiate(&FunctionConfig::Decompress(config)).is_err());
}

#[test]
fn packets_beyond_the_mtu_are_not_compressed() {
    let (mut compress, mut decompress) = pairs().next().unwrap();
    let frame = build::udp(build::client_v4(), build::server_v4(), &[7; 1473]);
    assert_eq!(process(&mut *compress, &frame).as_ref(), Some(&frame));
    assert_eq!(process(&mut *decompress, &frame), Some(frame));
}

/// Generates payloads: random, repeated, with a marker in front, and in the format of `compress`.
fn any_payload() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..1400);
    let marked =
        (0xb8..=0xbf_u8, bytes()).prop_map(|(last, rest)| [&STORED[..3], &[last], &rest].concat());
    let repeated = (prop::collection::vec(any::<u8>(), 1..40), 1..35_usize)
        .prop_map(|(some, times)| some.repeat(times));
    let compressed = (any::<bool>(), repeated.clone(), any::<u16>(), any::<bool>()).prop_map(
        |(is_lz4, payload, stated_len, is_wrong)| {
            let stated_len = if is_wrong {
                stated_len.into()
            } else {
                payload.len()
            };
            compress_one_shot(ALGORITHMS[usize::from(is_lz4)], &payload, stated_len)
        },
    );
    let marked_repeated = repeated
        .clone()
        .prop_map(|rest| [&STORED[..], &rest].concat());
    prop_oneof![bytes(), marked, repeated, compressed, marked_repeated]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_payloads_round_trip(
        payloads in prop::collection::vec(any_payload(), 1..6),
        v6: bool,
        has_checksum: bool,
        tags in 0..3_usize,
        padding in 0..60_usize,
    ) {
        let ends = if v6 {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        for (mut compress, mut decompress) in pairs() {
            for payload in &payloads {
                let mut frame = build::udp(ends.0, ends.1, payload);
                if !has_checksum {
                    let l4 = usize::from(parse(&frame).unwrap().l4);
                    frame[l4 + 6..l4 + 8].fill(0);
                }
                let len = frame.len() + padding;
                let frame = build::with_tags(build::pad_frame(frame, len), &vec![build::VLAN; tags]);
                let compressed = process(&mut *compress, &frame).unwrap();
                prop_assert!(is_marked(payload_of(&compressed)) || compressed == frame);
                let back = process(&mut *decompress, &compressed).unwrap();
                prop_assert_eq!(without_padding(&back), without_padding(&frame));
            }
        }
    }

    #[test]
    fn decompress_accepts_any_bytes(
        payloads in prop::collection::vec(any_payload(), 1..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        with_dictionary: bool,
    ) {
        let dict = with_dictionary.then(dictionary);
        for algorithm in ALGORITHMS {
            let mut compress = compress(algorithm, dict.clone());
            let mut decompress = decompress(dict.clone());
            for payload in &payloads {
                let ends = (build::client_v6(), build::server_v6());
                let sent = process(&mut *compress, &build::udp(ends.0, ends.1, payload)).unwrap();
                for mut damaged in [payload_of(&sent).to_vec(), payload.clone()] {
                    for (at, byte) in &damage {
                        if !damaged.is_empty() {
                            let at = at.index(damaged.len());
                            damaged[at] ^= byte;
                        }
                    }
                    if let Some(out) = process(&mut *decompress, &build::udp(ends.0, ends.1, &damaged)) {
                        prop_assert!(out.len() <= 1514);
                        let headers = parse(&out).unwrap();
                        prop_assert_eq!(checksum::l4_is_valid(&out, &headers), Some(true));
                    }
                }
            }
        }
    }
}
