//! What the next generation of a chain goes on with.

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

/// Salt and counter.
fn number(sealed: &[u8]) -> ([u8; 16], u64) {
    let trailer = &sealed[sealed.len() - 40..sealed.len() - 16];
    let (salt, counter) = trailer.split_first_chunk().unwrap();
    (*salt, u64::from_be_bytes(counter.try_into().unwrap()))
}

#[test]
fn an_encrypter_goes_on_with_its_numbers_as_long_as_its_key_stays() {
    let mut states = States::default();
    let frame = build::udp_v4(10);
    let mut old = deploy(&mut states, "there", encrypt_config(GCM, &[1]));
    let (salt, _) = number(&run(&mut *old, &frame).unwrap());
    // A further key behind it changes nothing; both generations take numbers from one source.
    let mut new = deploy(&mut states, "there", encrypt_config(GCM, &[1, 2]));
    assert_eq!(number(&run(&mut *new, &frame).unwrap()), (salt, 1));
    assert_eq!(number(&run(&mut *old, &frame).unwrap()), (salt, 2));
    assert_refused(&mut *old, &build::udp_v4(1500), "too-long");
    assert_eq!(counter(&*new, "too-long"), 1, "counters begin anew");
    let mut rotated = deploy(&mut states, "there", encrypt_config(GCM, &[2, 1]));
    let (other, counter) = number(&run(&mut *rotated, &frame).unwrap());
    assert!(other != salt && counter == 0);
}

#[test]
fn keys_are_exchanged_without_loss_and_replays_stay_known() {
    let mut states = States::default();
    let frame = build::udp_v4(10);
    let mut there = deploy(&mut states, "there", encrypt_config(GCM, &[1]));
    let mut back = deploy(&mut states, "back", decrypt_config(GCM, &[1]));
    let early = run(&mut *there, &frame).unwrap();
    assert!(run(&mut *back, &early).is_some());

    // The decrypter's file first, then the encrypter's.
    let mut back = deploy(&mut states, "back", decrypt_config(GCM, &[2, 1]));
    let [still_old, late_old] = [(); 2].map(|()| run(&mut *there, &frame).unwrap());
    let mut there = deploy(&mut states, "there", encrypt_config(GCM, &[2, 1]));
    let new = run(&mut *there, &frame).unwrap();
    for sealed in [&new, &still_old] {
        assert!(run(&mut *back, sealed).is_some());
    }
    for sealed in [&early, &new, &still_old] {
        assert_refused(&mut *back, sealed, "replayed");
    }

    assert_eq!(counter(&*back, "replayed"), 3);

    // A key that is taken away opens nothing, though its session is still known.
    let mut back = deploy(&mut states, "back", decrypt_config(GCM, &[2]));
    assert_refused(&mut *back, &early, "unknown-key");
    assert_refused(&mut *back, &new, "replayed");
    assert_eq!(counter(&*back, "replayed"), 4, "counters begin anew");

    // It comes back: what it opened before stays opened.
    let mut back = deploy(&mut states, "back", decrypt_config(GCM, &[2, 1]));
    for sealed in [&early, &still_old] {
        assert_refused(&mut *back, sealed, "replayed");
    }
    assert!(run(&mut *back, &late_old).is_some());
    assert_refused(&mut *back, &late_old, "replayed");
    assert_eq!(counter(&*back, "sessions-begun"), 2);
}
