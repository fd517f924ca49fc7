//! Tests `aes-encrypt` and `aes-decrypt` against a plain reference of the wire format, and with
//! invalid input.

#[path = "aes/bad_input.rs"]
mod bad_input;
mod common;
#[path = "aes/identity.rs"]
mod identity;
#[path = "aes/live_change.rs"]
mod live_change;
#[path = "aes/plain_aes.rs"]
mod plain_aes;
#[path = "aes/replay.rs"]
mod replay;
#[path = "aes/standards.rs"]
mod standards;
#[path = "aes/wire_format.rs"]
mod wire_format;

use common::{assert_valid, payload_of, run_with_room};
use myelin_functions::{Function, instantiate};
use myelin_spec::{AesDecryptConfig, AesEncryptConfig, Cipher, FunctionConfig, SecretKey};

const CIPHERS: [Cipher; 4] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::Aes128Ctr,
    Cipher::Aes256Ctr,
];

/// Bytes of room after a frame. A trailer and a tag need less.
const ROOM: usize = 64;

fn key(seed: u8) -> SecretKey {
    SecretKey::new((0..32).map(|i| seed ^ (i * 7)).collect())
}

fn encrypt_config(cipher: Cipher, keys: &[u8]) -> FunctionConfig {
    FunctionConfig::AesEncrypt(AesEncryptConfig {
        cipher,
        keys: keys.iter().map(|seed| key(*seed)).collect(),
        mtu: 1500,
    })
}

fn decrypt_config(cipher: Cipher, keys: &[u8]) -> FunctionConfig {
    decrypt_config_with_sessions(cipher, keys, 3)
}

fn decrypt_config_with_sessions(cipher: Cipher, keys: &[u8], sessions: u16) -> FunctionConfig {
    FunctionConfig::AesDecrypt(AesDecryptConfig {
        cipher,
        keys: keys.iter().map(|seed| key(*seed)).collect(),
        replay_window: 64,
        sessions,
    })
}

fn encrypter(cipher: Cipher) -> Box<dyn Function> {
    instantiate(&encrypt_config(cipher, &[1])).unwrap()
}

fn decrypter(cipher: Cipher) -> Box<dyn Function> {
    instantiate(&decrypt_config(cipher, &[1])).unwrap()
}

/// Runs `function` on a frame with a stamp.
fn run_at(function: &mut dyn Function, frame: &[u8], stamp_ns: u64) -> Option<Vec<u8>> {
    common::run_stamped(function, frame, ROOM, stamp_ns)
}

fn run(function: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    run_with_room(function, frame, ROOM)
}

fn counter(function: &dyn Function, name: &str) -> u64 {
    common::counters(function)[name]
}

/// Returns the sum of all drop counters.
fn sum_drops(function: &dyn Function) -> u64 {
    let counters = common::counters(function).into_iter();
    let drops =
        counters.filter(|(name, _)| !["sessions-started", "sessions-evicted"].contains(name));
    drops.map(|(_, count)| count).sum()
}

/// Asserts that `function` drops `frame`, and counts the drop under `reason` and no other name.
#[track_caller]
fn assert_refused(function: &mut dyn Function, frame: &[u8], reason: &str) {
    let before = (counter(function, reason), sum_drops(function));
    assert_eq!(run(function, frame), None, "{reason}");
    let after = (counter(function, reason), sum_drops(function));
    assert_eq!(after, (before.0 + 1, before.1 + 1), "{reason}");
}
