//! `aes-encrypt` and `aes-decrypt`: against a plain reference of the whole wire format, and against bad input.

#[path = "aes/bad_input.rs"]
mod bad_input;
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

use myelin_functions::{Discard, Function, Packet, Verdict, instantiate};
use myelin_packet::{Headers, Meta, checksum, parse};
use myelin_spec::{AesDecryptConfig, AesEncryptConfig, Cipher, FunctionConfig, SecretKey};

const CIPHERS: [Cipher; 4] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::Aes128Ctr,
    Cipher::Aes256Ctr,
];

/// Room behind a frame: more than a trailer and a tag.
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
    decrypt_config_of(cipher, keys, 3)
}

fn decrypt_config_of(cipher: Cipher, keys: &[u8], sessions: u16) -> FunctionConfig {
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

/// What the function makes of a frame that came at `stamp_ns`, with that much room behind it.
fn run_stamped(
    function: &mut dyn Function,
    frame: &[u8],
    room: usize,
    stamp_ns: u64,
) -> Option<Vec<u8>> {
    let headers = parse(frame).unwrap();
    let mut buffer = [&[0x5a; 8], frame, &vec![0xa5; room]].concat();
    let meta = Meta::new(stamp_ns, 2, 3, 0, &headers);
    let mut packet = Packet::new(&mut buffer, 8, frame.len(), meta, 0).unwrap();
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then(|| {
        assert_eq!(packet.headers(), &parse(packet.bytes()).unwrap());
        packet.bytes().to_vec()
    })
}

fn run_with_room(function: &mut dyn Function, frame: &[u8], room: usize) -> Option<Vec<u8>> {
    run_stamped(function, frame, room, 1)
}

/// As [`run`], at that time.
fn run_at(function: &mut dyn Function, frame: &[u8], stamp_ns: u64) -> Option<Vec<u8>> {
    run_stamped(function, frame, ROOM, stamp_ns)
}

fn run(function: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    run_with_room(function, frame, ROOM)
}

fn counter(function: &dyn Function, name: &str) -> u64 {
    let mut found = None;
    function.read_counters(&mut |counter, value| {
        if counter == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("no counter `{name}`"))
}

/// All that was dropped.
fn drops(function: &dyn Function) -> u64 {
    let mut sum = 0;
    function.read_counters(&mut |counter, value| {
        if !["sessions-begun", "sessions-forgotten"].contains(&counter) {
            sum += value;
        }
    });
    sum
}

/// Asserts that `function` drops `frame` and counts it under that name and no other.
#[track_caller]
fn assert_refused(function: &mut dyn Function, frame: &[u8], reason: &str) {
    let before = (counter(function, reason), drops(function));
    assert_eq!(run(function, frame), None, "{reason}");
    let after = (counter(function, reason), drops(function));
    assert_eq!(after, (before.0 + 1, before.1 + 1), "{reason}");
}

fn payload_of<'f>(frame: &'f [u8], headers: &Headers) -> &'f [u8] {
    &frame[headers.payload.into()..headers.end.into()]
}

/// Asserts that lengths and checksums are right and that nothing follows the IP packet.
#[track_caller]
fn assert_valid(frame: &[u8]) {
    let headers = parse(frame).unwrap();
    assert_eq!(usize::from(headers.end), frame.len(), "bytes behind it");
    assert_eq!(checksum::l4_is_valid(frame, &headers), Some(true));
    let header = &frame[headers.l3.into()..headers.l4.into()];
    assert!(headers.flags.is_ipv6() || checksum::checksum(header) == 0);
}
