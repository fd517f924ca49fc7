//! Tests that the functions drop invalid packets and count them under the right name.

use myelin_functions::{Function, instantiate};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{checksum, parse};
use myelin_spec::{AesEncryptConfig, Cipher, FunctionConfig};
use proptest::prelude::*;

use super::{
    CIPHERS, assert_refused, counter, decrypt_config, decrypter, encrypt_config, encrypter, key,
    run, run_with_room,
};

const GCM: Cipher = Cipher::Aes128Gcm;

#[test]
fn each_side_has_its_documented_counters() {
    let names = |function: Box<dyn Function>| {
        let mut names = Vec::new();
        function.read_counters(&mut |name, _| names.push(name));
        names
    };
    let both = ["fragment", "not-udp", "surplus"];
    let of_encrypter = ["too-long", "no-room", "no-session", "sessions-started"];
    assert_eq!(names(encrypter(GCM)), [&both[..], &of_encrypter].concat());
    let of_decrypter = [
        "no-session",
        "too-short",
        "unknown-key",
        "not-authentic",
        "replayed",
        "too-old",
        "session-evicted",
        "sessions-full",
        "sessions-started",
        "sessions-evicted",
    ];
    assert_eq!(names(decrypter(GCM)), [&both[..], &of_decrypter].concat());
}

#[test]
fn both_sides_drop_packets_that_are_not_udp() {
    let fragments = fixtures::all().into_iter().filter(|fixture| {
        fixture
            .expected
            .is_ok_and(|headers| headers.flags.is_fragment())
    });
    let fragments: Vec<_> = fragments.map(|fixture| fixture.frame).collect();
    assert!(!fragments.is_empty());
    for function in [&mut encrypter(GCM), &mut decrypter(GCM)] {
        for frame in &fragments {
            assert_refused(&mut **function, frame, "fragment");
        }
        for name in ["tcp-v4", "icmp"] {
            assert_refused(&mut **function, &fixtures::named(name).frame, "not-udp");
        }
        let surplus = fixtures::named("udp-v4-surplus").frame;
        assert_refused(&mut **function, &surplus, "surplus");
    }
}

#[test]
fn packets_that_would_exceed_the_mtu_are_dropped() {
    for (cipher, overhead) in [(GCM, 44), (Cipher::Aes128Ctr, 28)] {
        let mut function = encrypter(cipher);
        let longest = 1500 - 28 - overhead;
        assert!(run(&mut *function, &build::udp_v4(longest)).is_some());
        assert_refused(&mut *function, &build::udp_v4(longest + 1), "too-long");
        assert!(run(&mut *function, &build::udp_v6(longest - 20)).is_some());
        assert_refused(&mut *function, &build::udp_v6(longest - 19), "too-long");
    }
    let config = AesEncryptConfig {
        cipher: GCM,
        keys: vec![key(1)],
        mtu: 600,
    };
    let mut small = instantiate(&FunctionConfig::AesEncrypt(config)).unwrap();
    assert!(run(&mut *small, &build::udp_v4(600 - 72)).is_some());
    assert_refused(&mut *small, &build::udp_v4(600 - 71), "too-long");
}

#[test]
fn packets_that_would_exceed_their_buffer_are_dropped() {
    let mut function = encrypter(GCM);
    assert!(run_with_room(&mut *function, &build::udp_v4(100), 43).is_none());
    assert_eq!(counter(&*function, "no-room"), 1);
    assert!(run_with_room(&mut *function, &build::udp_v4(100), 44).is_some());
    // Ethernet padding counts as room.
    let padded = build::pad_frame(build::udp_v4(1), 43 + 44);
    assert!(run_with_room(&mut *function, &padded, 0).is_some());
}

/// Changes bits of a frame and corrects the checksum, as an attacker would.
pub(super) fn change_bits(frame: &[u8], at: usize, mask: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] ^= mask;
    let headers = parse(&frame).unwrap();
    let field = checksum::l4_offset(&headers).unwrap();
    let right = checksum::l4_checksum(&frame, &headers).unwrap();
    frame[field..field + 2].copy_from_slice(&right.to_be_bytes());
    frame
}

#[test]
fn the_tag_protects_each_bit_of_payload_trailer_and_tag() {
    for frame in [build::udp_v4(40), build::udp_v6(40)] {
        let sealed = run(&mut *encrypter(GCM), &frame).unwrap();
        let mut function = decrypter(GCM);
        let payload = usize::from(parse(&sealed).unwrap().payload);
        for at in payload..sealed.len() {
            for bit in 0..8 {
                let reason = match at - payload {
                    40..44 => "unknown-key",
                    _ => "not-authentic",
                };
                assert_refused(&mut *function, &change_bits(&sealed, at, 1 << bit), reason);
            }
        }
        assert_eq!(counter(&*function, "sessions-started"), 0);
        // Afterwards, the decrypter still accepts the packet, even with translated addresses.
        let translated = change_bits(&sealed, 33, 0xff);
        assert!(run(&mut *function, &translated).is_some());
    }
}

#[test]
fn another_key_or_cipher_decrypts_nothing() {
    let sealed = run(&mut *encrypter(GCM), &build::udp_v4(64)).unwrap();
    let mut other = instantiate(&decrypt_config(GCM, &[2, 3])).unwrap();
    assert_refused(&mut *other, &sealed, "unknown-key");
    assert_refused(&mut *decrypter(Cipher::Aes256Gcm), &sealed, "not-authentic");
}

#[test]
fn a_packet_passes_only_once_and_only_inside_the_window() {
    for cipher in CIPHERS {
        let (mut sender, mut receiver) = (encrypter(cipher), decrypter(cipher));
        let sealed: Vec<_> = (0..70)
            .map(|_| run(&mut *sender, &build::udp_v4(10)).unwrap())
            .collect();
        assert!(run(&mut *receiver, &sealed[5]).is_some());
        assert_refused(&mut *receiver, &sealed[5], "replayed");
        assert!(run(&mut *receiver, &sealed[69]).is_some());
        assert!(
            run(&mut *receiver, &sealed[6]).is_some(),
            "the oldest packet in the window"
        );
        assert_refused(&mut *receiver, &sealed[4], "too-old");
        assert_refused(&mut *receiver, &sealed[69], "replayed");
    }
}

#[test]
fn a_forged_packet_does_not_move_the_window() {
    let (mut sender, mut receiver) = (encrypter(GCM), decrypter(GCM));
    let [first, second] = [(); 2].map(|()| run(&mut *sender, &build::udp_v4(10)).unwrap());
    assert!(run(&mut *receiver, &first).is_some());
    // The change of its highest byte sets the counter far ahead.
    let forged = change_bits(&second, second.len() - 24, 0x01);
    assert_refused(&mut *receiver, &forged, "not-authentic");
    assert!(run(&mut *receiver, &second).is_some());
}

#[test]
fn too_short_packets_are_dropped() {
    for (cipher, overhead) in [(GCM, 44), (Cipher::Aes128Ctr, 28)] {
        let mut function = decrypter(cipher);
        for len in [0, 1, overhead - 1] {
            assert_refused(&mut *function, &build::udp_v4(len), "too-short");
        }
        assert_refused(&mut *function, &build::udp_v4(overhead), "unknown-key");
    }
}

#[test]
fn configurations_without_a_usable_key_are_refused() {
    for config in [encrypt_config(GCM, &[]), decrypt_config(GCM, &[])] {
        let error = instantiate(&config).err().unwrap().to_string();
        assert!(error.contains("no key"), "{error}");
    }
    let short = AesEncryptConfig {
        cipher: Cipher::Aes256Gcm,
        keys: vec![myelin_spec::SecretKey::new(vec![1; 16])],
        mtu: 1500,
    };
    let error = instantiate(&FunctionConfig::AesEncrypt(short))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("aes-256-gcm needs 32"),
        "{error}"
    );
    let twice = instantiate(&decrypt_config(GCM, &[1, 1])).err().unwrap();
    assert!(twice.to_string().contains("same identifier"), "{twice}");
}

fn assert_nothing_passes(function: &mut dyn Function, frame: &[u8]) {
    if parse(frame).is_ok() {
        assert_eq!(run(function, frame), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_were_not_encrypted_never_pass(
        mut payload in prop::collection::vec(any::<u8>(), 0..200),
        frame in prop::collection::vec(any::<u8>(), 14..200),
        has_known_key_id: bool,
    ) {
        let mut function = decrypter(GCM);
        assert_nothing_passes(&mut *function, &frame);
        if has_known_key_id && payload.len() >= 44 {
            let sealed = run(&mut *encrypter(GCM), &build::udp_v4(0)).unwrap();
            let at = payload.len() - 44;
            payload[at..at + 4].copy_from_slice(&sealed[42..46]);
        }
        let [v4, v6] = [
            (build::client_v4(), build::server_v4()),
            (build::client_v6(), build::server_v6()),
        ];
        for (source, destination) in [v4, v6] {
            assert_nothing_passes(&mut *function, &build::udp(source, destination, &payload));
        }
    }
}
