//! `aes-encrypt` and `aes-decrypt`.

use super::mtu::mtu;
use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};
use crate::aes::{MAX_MTU, MAX_REPLAY_WINDOW, MAX_SESSIONS};

const KEY_FILE: ConfigKey = ConfigKey {
    key: "keyFile",
    value: ValueType::SecretFile,
    required: true,
    default: None,
    doc: "a file of at most 16 keys, one a line: 32 or 64 hexadecimal digits, as `openssl rand -hex 32` prints them; AES-256 needs \
          64. The first one encrypts, each of them decrypts. Nobody but its owner may have access to it. \
          `/dev/urandom` stands for one random key, the same for all functions of the chain file and another one at each `up`",
};

const CIPHER: ConfigKey = ConfigKey {
    key: "cipher",
    value: ValueType::Choice(&["aes-128-gcm", "aes-256-gcm", "aes-128-ctr", "aes-256-ctr"]),
    required: false,
    default: Some("aes-128-gcm"),
    doc: "the cipher, the same on both sides; `ctr` authenticates nothing: whoever is on the way can change what it likes, bit by \
          bit, and no replay is recognised for sure",
};

/// Measured with `aes-128-gcm` on an Intel Xeon that has VAES and AVX-512; without them the bytes cost several times as much.
const COST: DefaultCost = DefaultCost {
    per_packet_ns: 105.0,
    per_byte_ns: 0.09,
};

/// `aes-encrypt`.
pub static AES_ENCRYPT: Kind = Kind {
    name: "aes-encrypt",
    class: Class::Advanced,
    kernel: None,
    user: Some(COST),
    touches: Touches::Payload,
    state: State::PerInstance,
    guards: true,
    config: &[
        KEY_FILE,
        CIPHER,
        mtu(
            MAX_MTU,
            "the longest IP packet that may leave, bytes; encryption adds 44 bytes (28 with `ctr`), and a packet that would \
             become longer is dropped",
        ),
    ],
    description: "Encrypts and authenticates the UDP payload (AES-GCM), in place, and appends what `aes-decrypt` needs. Drops \
                  what it cannot encrypt: fragments, other protocols, and packets that would become longer than the MTU.",
    example: "{ name: cipher, kind: aes-encrypt, config: { keyFile: tactile.key } }",
};

/// `aes-decrypt`.
pub static AES_DECRYPT: Kind = Kind {
    name: "aes-decrypt",
    class: Class::Advanced,
    kernel: None,
    user: Some(COST),
    touches: Touches::Payload,
    state: State::PerInstance,
    guards: true,
    config: &[
        KEY_FILE,
        CIPHER,
        ConfigKey {
            key: "replayWindow",
            value: ValueType::Integer {
                min: 0,
                max: MAX_REPLAY_WINDOW as u64,
            },
            required: false,
            default: Some("1024"),
            doc: "how many packets one may come late and still be accepted; 0 accepts every packet as often as it comes",
        },
        ConfigKey {
            key: "sessions",
            value: ValueType::Integer {
                min: 1,
                max: MAX_SESSIONS as u64,
            },
            required: false,
            default: Some("16"),
            doc: "encrypters that may be live at once: each start of one begins a session, and one that was used within 10 s is never put \
                  out for another",
        },
    ],
    description: "Decrypts what `aes-encrypt` encrypted. Drops and counts what is not genuine: another key, changed on the way, \
                  seen before, too late, cut short, or not encrypted at all.",
    example: "{ name: clear, kind: aes-decrypt, config: { keyFile: tactile.key } }",
};
