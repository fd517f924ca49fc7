//! Tests the state that the next generation of a chain inherits.

use myelin_functions::{Function, States};
use myelin_packet::fixtures::build;
use myelin_spec::{Cipher, FunctionConfig, FunctionInstance, Side, StateKey};

use super::{assert_refused, counter, decrypt_config, encrypt_config, run};

const GCM: Cipher = Cipher::Aes128Gcm;

fn deploy(states: &mut States, name: &str, config: FunctionConfig) -> Box<dyn Function> {
    let instance = FunctionInstance {
        config,
        state: Some(StateKey {
            chain: "tactile".to_owned(),
            function: name.to_owned(),
        }),
        side: Side::Forward,
    };
    states.instantiate(&instance).unwrap()
}

/// Returns salt and counter of an encrypted packet.
fn salt_and_counter(sealed: &[u8]) -> ([u8; 16], u64) {
    let trailer = &sealed[sealed.len() - 40..sealed.len() - 16];
    let (salt, counter) = trailer.split_first_chunk().unwrap();
    (*salt, u64::from_be_bytes(counter.try_into().unwrap()))
}

#[test]
fn an_encrypter_continues_its_numbers_while_its_key_stays() {
    let mut states = States::default();
    let frame = build::udp_v4(10);
    let mut old = deploy(&mut states, "sender", encrypt_config(GCM, &[1]));
    let (salt, _) = salt_and_counter(&run(&mut *old, &frame).unwrap());
    // An additional key after the first changes nothing. Both generations share one sequence of
    // numbers.
    let mut new = deploy(&mut states, "sender", encrypt_config(GCM, &[1, 2]));
    assert_eq!(
        salt_and_counter(&run(&mut *new, &frame).unwrap()),
        (salt, 1)
    );
    assert_eq!(
        salt_and_counter(&run(&mut *old, &frame).unwrap()),
        (salt, 2)
    );
    assert_refused(&mut *old, &build::udp_v4(1500), "too-long");
    assert_eq!(
        counter(&*new, "too-long"),
        1,
        "both generations share the counters"
    );
    let mut rotated = deploy(&mut states, "sender", encrypt_config(GCM, &[2, 1]));
    let (other, counter) = salt_and_counter(&run(&mut *rotated, &frame).unwrap());
    assert!(other != salt && counter == 0);
}

#[test]
fn key_exchange_loses_no_packet_and_accepts_no_replay() {
    let mut states = States::default();
    let frame = build::udp_v4(10);
    let mut sender = deploy(&mut states, "sender", encrypt_config(GCM, &[1]));
    let mut receiver = deploy(&mut states, "receiver", decrypt_config(GCM, &[1]));
    let early = run(&mut *sender, &frame).unwrap();
    assert!(run(&mut *receiver, &early).is_some());

    // The decrypter's key file changes first, then the encrypter's.
    let mut receiver = deploy(&mut states, "receiver", decrypt_config(GCM, &[2, 1]));
    let [still_old, late_old] = [(); 2].map(|()| run(&mut *sender, &frame).unwrap());
    let mut sender = deploy(&mut states, "sender", encrypt_config(GCM, &[2, 1]));
    let new = run(&mut *sender, &frame).unwrap();
    for sealed in [&new, &still_old] {
        assert!(run(&mut *receiver, sealed).is_some());
    }
    for sealed in [&early, &new, &still_old] {
        assert_refused(&mut *receiver, sealed, "replayed");
    }

    assert_eq!(counter(&*receiver, "replayed"), 3);

    // Without the key, the decrypter decrypts no packet, although it still has the session.
    let mut receiver = deploy(&mut states, "receiver", decrypt_config(GCM, &[2]));
    assert_refused(&mut *receiver, &early, "unknown-key");
    assert_refused(&mut *receiver, &new, "replayed");
    assert_eq!(
        counter(&*receiver, "replayed"),
        4,
        "both generations share the counters"
    );

    // The key file contains the key again. Packets that the decrypter decrypted before are still
    // replays.
    let mut receiver = deploy(&mut states, "receiver", decrypt_config(GCM, &[2, 1]));
    for sealed in [&early, &still_old] {
        assert_refused(&mut *receiver, sealed, "replayed");
    }
    assert!(run(&mut *receiver, &late_old).is_some());
    assert_refused(&mut *receiver, &late_old, "replayed");
    assert_eq!(counter(&*receiver, "sessions-started"), 2);
}
