//! Tests that decryption restores the encrypted packet.

use myelin_functions::{Batch, Discard, Packet};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Meta, checksum, parse};
use myelin_spec::Cipher;
use proptest::prelude::*;

use super::common::endpoints::endpoints;
use super::{CIPHERS, assert_valid, counter, decrypter, encrypter, run, sum_drops};

#[test]
fn payloads_of_every_length_round_trip() {
    for cipher in CIPHERS {
        let (mut sender, mut receiver) = (encrypter(cipher), decrypter(cipher));
        for len in 0..=1400 {
            for frame in [build::udp_v4(len), build::udp_v6(len)] {
                let sealed = run(&mut *sender, &frame).unwrap();
                assert_valid(&sealed);
                let opened = run(&mut *receiver, &sealed).unwrap();
                assert!(opened == frame, "{cipher}, {len} bytes");
            }
        }
    }
}

/// Includes IP options, extension headers and VLAN tags. Only padding is lost.
#[test]
fn every_udp_fixture_round_trips() {
    let (mut sender, mut receiver) = (encrypter(Cipher::Aes128Gcm), decrypter(Cipher::Aes128Gcm));
    let mut restored = 0;
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        if let Some(sealed) = run(&mut *sender, &fixture.frame) {
            let opened = run(&mut *receiver, &sealed).unwrap();
            let expected = &fixture.frame[..headers.end.into()];
            assert_eq!(opened, expected, "{}", fixture.name);
            restored += 1;
        }
    }
    assert!(restored > 8, "only {restored} fixtures");
    assert_eq!(sum_drops(&*receiver), 0);
}

#[test]
fn wrong_checksums_stay_wrong() {
    let frame = fixtures::named("udp-v4-checksum-wrong").frame;
    let sealed = run(&mut *encrypter(Cipher::Aes128Gcm), &frame).unwrap();
    let headers = parse(&sealed).unwrap();
    assert_eq!(checksum::l4_is_valid(&sealed, &headers), Some(false));
    let opened = run(&mut *decrypter(Cipher::Aes128Gcm), &sealed).unwrap();
    assert_eq!(opened, frame);
}

#[test]
fn batches_round_trip_and_count_drops() {
    let frames: Vec<_> = (0..20).map(|len| build::udp_v4(len * 60)).collect();
    let room = |frame: &Vec<u8>| [&frame[..], &[0; 64]].concat();
    let mut buffers: Vec<_> = frames.iter().map(room).collect();
    let (mut sender, mut receiver) = (encrypter(Cipher::Aes256Gcm), decrypter(Cipher::Aes256Gcm));
    let mut batch = Batch::with_capacity(20);
    for (buffer, frame) in buffers.iter_mut().zip(&frames) {
        let meta = Meta::new(0, 1, 1, 0, &parse(frame).unwrap());
        batch.push(Packet::new(buffer, 0, frame.len(), meta, 0).unwrap());
    }
    assert_eq!(sender.process_batch(&mut batch, &mut Discard), 0);
    assert!(
        batch
            .packets()
            .iter()
            .zip(&frames)
            .all(|(packet, frame)| packet.len() == frame.len() + 44)
    );
    assert_eq!(receiver.process_batch(&mut batch, &mut Discard), 0);
    let packets = batch.packets().iter().map(Packet::bytes);
    assert!(packets.eq(frames.iter().map(Vec::as_slice)));
    // An unencrypted packet cannot be decrypted.
    assert_eq!(receiver.process_batch(&mut batch, &mut Discard), 20);
    assert_eq!(sum_drops(&*receiver), 20);
    // A full buffer has no room for a trailer.
    let mut full = [build::udp_v4(100)];
    let headers = parse(&full[0]).unwrap();
    let (len, meta) = (full[0].len(), Meta::new(0, 1, 1, 0, &headers));
    let mut batch = Batch::with_capacity(1);
    batch.push(Packet::new(&mut full[0], 0, len, meta, 0).unwrap());
    assert_eq!(sender.process_batch(&mut batch, &mut Discard), 1);
    assert_eq!(counter(&*sender, "no-room"), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_packets_round_trip(
        (source, destination) in endpoints(),
        payload in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..1400),
        tags in 0..3_usize,
        padding in 0..100_usize,
        has_checksum: bool,
        cipher in prop::sample::select(&CIPHERS[..]),
    ) {
        let mut frame = build::udp(source, destination, &payload);
        if !has_checksum {
            let l4 = usize::from(parse(&frame).unwrap().l4);
            frame[l4 + 6..l4 + 8].fill(0);
        }
        let frame = build::with_tags(frame, &vec![build::VLAN; tags]);
        let padded = build::pad_frame(frame.clone(), frame.len() + padding);
        let sealed = run(&mut *encrypter(cipher), &padded).unwrap();
        assert_valid(&sealed);
        let udp = usize::from(parse(&sealed).unwrap().l4);
        prop_assert_eq!(sealed[udp + 6..udp + 8] != [0, 0], has_checksum);
        prop_assert_eq!(run(&mut *decrypter(cipher), &sealed), Some(frame));
    }
}
