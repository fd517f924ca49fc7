//! Tests that the decrypter accepts each packet at most once, whatever packets arrive in between,
//! and that it does not evict sessions in use.

use std::collections::BTreeSet;

use myelin_functions::{Function, instantiate};
use myelin_packet::fixtures::build;
use myelin_spec::Cipher;
use proptest::prelude::*;

use super::bad_input::change_bits;
use super::{
    assert_refused, counter, decrypt_config_with_sessions, decrypter, encrypter, run, run_at,
};

const GCM: Cipher = Cipher::Aes128Gcm;
/// After this time without packets, a session may be evicted.
const PAUSE_NS: u64 = 10_000_000_000;

fn decrypter_with_sessions(sessions: u16) -> Box<dyn Function> {
    instantiate(&decrypt_config_with_sessions(GCM, &[1], sessions)).unwrap()
}

/// Returns the packets of a session.
fn session(packets: usize) -> Vec<Vec<u8>> {
    let mut sender = encrypter(GCM);
    let frame = build::udp_v4(10);
    (0..packets)
        .map(|_| run(&mut *sender, &frame).unwrap())
        .collect()
}

/// The decrypter keeps three sessions. Forged salts evict none of them.
#[test]
fn only_packets_of_other_sessions_evict_a_session() {
    let mut receiver = decrypter(GCM);
    let first = session(1);
    let early = &first[0];
    assert!(run(&mut *receiver, early).is_some());
    for salt in 0..100 {
        let forged = change_bits(early, early.len() - 40 + salt % 16, 1 + salt as u8);
        assert_eq!(
            run_at(&mut *receiver, &forged, PAUSE_NS * salt as u64),
            None
        );
    }
    assert_eq!(counter(&*receiver, "not-authentic"), 100);
    assert_refused(&mut *receiver, early, "replayed");
    for _ in 0..3 {
        assert!(run(&mut *receiver, &session(1)[0]).is_some());
    }
    assert_eq!(counter(&*receiver, "sessions-evicted"), 1);
    assert_refused(&mut *receiver, early, "session-evicted");
}

#[test]
fn eviction_clears_the_replay_window() {
    let mut receiver = decrypter(GCM);
    for at in 1..=5 {
        for sealed in session(3) {
            assert!(run_at(&mut *receiver, &sealed, at * PAUSE_NS).is_some());
        }
    }
    assert_eq!(counter(&*receiver, "sessions-evicted"), 2);
}

/// The decrypter has one slot for two alternating sessions.
#[test]
fn alternating_sessions_accept_no_replay() {
    for pause_ns in [0, 1, PAUSE_NS] {
        let mut receiver = decrypter_with_sessions(1);
        let sealed = [session(1), session(1)].concat();
        let mut opened = [0; 2];
        for turn in 0..10 {
            let packet = turn as usize % 2;
            let done = run_at(&mut *receiver, &sealed[packet], turn * pause_ns);
            opened[packet] += u32::from(done.is_some());
        }
        let other = u32::from(pause_ns == PAUSE_NS);
        assert_eq!(opened, [1, other], "{pause_ns}");
    }
}

/// Between two packets of a session in use, an attacker replays as many old sessions as the
/// decrypter has slots.
#[test]
fn replayed_sessions_do_not_evict_a_session_in_use() {
    const SLOTS: u16 = 16;
    for pause_ns in [1, PAUSE_NS] {
        let mut receiver = decrypter_with_sessions(SLOTS);
        let live = session(2);
        let old: Vec<_> = (0..SLOTS).flat_map(|_| session(1)).collect();
        assert!(run_at(&mut *receiver, &live[0], PAUSE_NS).is_some());
        for sealed in &old {
            run_at(&mut *receiver, sealed, PAUSE_NS + pause_ns);
        }
        let in_use = pause_ns < PAUSE_NS;
        assert_eq!(counter(&*receiver, "sessions-full"), u64::from(in_use));
        let now = PAUSE_NS + pause_ns + 1;
        assert_eq!(run_at(&mut *receiver, &live[1], now).is_some(), in_use);
        // The decrypter accepts no packet again, now or later. It accepts only the refused packet,
        // when it has a free slot.
        for rounds in 0..40_u64 {
            let replayed = live[..1].iter().chain(&old[..old.len() - 1]);
            for sealed in replayed {
                let now = now + rounds * PAUSE_NS / 4;
                assert_eq!(run_at(&mut *receiver, sealed, now), None, "{rounds}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// The decrypter keeps three of six sessions. Time jumps ahead, and some stamps are missing or
    /// older.
    #[test]
    fn every_packet_is_decrypted_at_most_once(
        steps in prop::collection::vec((0..6_usize, 0..4_usize, 0..8_u64), 0..300),
    ) {
        let sessions: Vec<_> = (0..6).map(|_| session(4)).collect();
        let mut receiver = decrypter(GCM);
        let mut opened = BTreeSet::new();
        let mut now = 0;
        for (session, packet, jump) in steps {
            let stamp_ns = match jump {
                0 => 0,
                1 => now / 2,
                _ => {
                    now += (jump - 2) * PAUSE_NS / 4;
                    now
                }
            };
            if run_at(&mut *receiver, &sessions[session][packet], stamp_ns).is_some() {
                prop_assert!(opened.insert((session, packet)), "{} of {}", packet, session);
            }
        }
    }
}
