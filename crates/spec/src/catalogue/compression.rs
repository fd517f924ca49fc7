//! `compress` and `decompress`.

use super::mtu::mtu;
use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};

const DICTIONARY: ConfigKey = ConfigKey {
    key: "dictionary",
    value: ValueType::File,
    required: false,
    default: None,
    doc: "a file of 8 bytes to 128 KiB that both sides have: any bytes that the traffic often holds, or what `zstd --train` made of \
          samples of it; packets name it by a hash, so that another one is noticed; LZ4 uses the last 64 KiB",
};

const MTU: ConfigKey = mtu(
    crate::compression::MAX_MTU,
    "the longest IP packet that it may make, bytes; what would be longer is dropped and counted",
);

/// `compress`. Its costs are those of lz4 on JSON: a kind has one cost, and zstd takes some ten times that.
pub static COMPRESS: Kind = Kind {
    name: "compress",
    class: Class::Advanced,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 35.0,
        per_byte_ns: 0.65,
    }),
    touches: Touches::Payload,
    state: State::None,
    guards: false,
    config: &[
        ConfigKey {
            key: "algorithm",
            value: ValueType::Choice(&["lz4", "zstd"]),
            required: false,
            default: Some("lz4"),
            doc: "lz4 is fast, zstd makes packets smaller and costs some ten times as much",
        },
        ConfigKey {
            key: "level",
            value: ValueType::Integer {
                min: 1,
                max: crate::compression::MAX_LEVEL as u64,
            },
            required: false,
            default: Some("1"),
            doc: "of zstd: more makes packets smaller and takes longer; of lz4, whose acceleration it is: more takes less time and \
                  leaves packets larger",
        },
        DICTIONARY,
        MTU,
    ],
    description: "Compresses each UDP payload by itself; a `decompress` further on gives it back. Packets that would get no \
                  smaller pass untouched, and so do fragments and other protocols; a payload that only looks compressed is \
                  marked, with 4 bytes more.",
    example: "{ name: squeeze, kind: compress, config: { algorithm: lz4 } }",
};

/// `decompress`. Its costs are those of lz4 on JSON.
pub static DECOMPRESS: Kind = Kind {
    name: "decompress",
    class: Class::Advanced,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 20.0,
        per_byte_ns: 0.15,
    }),
    touches: Touches::Payload,
    state: State::None,
    guards: true,
    config: &[DICTIONARY, MTU],
    description: "Gives UDP payloads that a `compress` made smaller back as they were; each packet says by which algorithm. Packets \
                  that were not compressed pass untouched. Drops what is damaged, too long, or made with another dictionary.",
    example: "{ name: restore, kind: decompress }",
};
