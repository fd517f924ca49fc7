//! Random linear network coding: `rlnc-encode`, `rlnc-recode`, `rlnc-decode`.
//!
//! The costs are those of the default configurations without loss, for each source packet, repair packets included, on a
//! Xeon with AVX-512 and GFNI: the least of `cargo bench -p myelin-functions --bench rlnc`, less those of `forward`.

use super::mtu::mtu;
use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};
use crate::rlnc::{MAX_MTU, MAX_REDUNDANCY, MAX_WINDOW};

const fn optional(
    key: &'static str,
    value: ValueType,
    default: &'static str,
    doc: &'static str,
) -> ConfigKey {
    ConfigKey {
        key,
        value,
        required: false,
        default: Some(default),
        doc,
    }
}

const PACKETS: ValueType = ValueType::Integer {
    min: 1,
    max: MAX_WINDOW as u64,
};

const REDUNDANCY: ValueType = ValueType::Number {
    max: MAX_REDUNDANCY,
};

const MTU: ConfigKey = mtu(
    MAX_MTU,
    "longest IP packet that may leave, bytes; what would be longer is dropped and counted",
);

/// `rlnc-encode`.
pub static RLNC_ENCODE: Kind = Kind {
    name: "rlnc-encode",
    class: Class::Advanced,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 85.0,
        per_byte_ns: 0.055,
    }),
    touches: Touches::HeaderAndPayload,
    state: State::PerInstance,
    guards: false,
    config: &[
        optional(
            "code",
            ValueType::Choice(&["window", "block"]),
            "window",
            "which source packets a repair packet is made of: the latest ones, or those of one block",
        ),
        optional(
            "window",
            PACKETS,
            "8",
            "source packets of a window, for code: window",
        ),
        optional(
            "block",
            PACKETS,
            "32",
            "source packets of a block, for code: block",
        ),
        optional(
            "redundancy",
            REDUNDANCY,
            "0.25",
            "repair packets for each source packet, with up to six decimals; 0.25 is one for four",
        ),
        optional(
            "density",
            ValueType::Integer { min: 0, max: 15 },
            "15",
            "density threshold (RFC 8681): a source packet of the window is in a repair packet with probability (density + 1) / 16",
        ),
        optional(
            "flush",
            ValueType::Duration,
            "1ms",
            "when no packet came for this long, those without a repair packet get one, and an incomplete block ends",
        ),
        MTU,
    ],
    description: "Numbers UDP packets and sends repair packets with them, combinations of the latest ones (random linear network \
                  coding, RFC 8681), from which an `rlnc-decode` works out packets that were lost on the way. Drops packets \
                  that are not UDP, fragments, and packets too long to be protected.",
    example: "{ name: coder, kind: rlnc-encode, config: { window: 8, redundancy: 0.25 } }",
};

/// `rlnc-recode`.
pub static RLNC_RECODE: Kind = Kind {
    name: "rlnc-recode",
    class: Class::Advanced,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 130.0,
        per_byte_ns: 0.06,
    }),
    touches: Touches::HeaderAndPayload,
    state: State::PerInstance,
    guards: false,
    config: &[
        optional(
            "window",
            PACKETS,
            "8",
            "packets, source and coded ones, that are combined: the latest that came",
        ),
        optional(
            "redundancy",
            REDUNDANCY,
            "0.25",
            "recoded packets for each source packet that comes, with up to six decimals",
        ),
        optional(
            "coded",
            ValueType::Choice(&["pass", "replace"]),
            "pass",
            "what becomes of coded packets that come: they go on, or a recoded one goes in the place of each",
        ),
        MTU,
    ],
    description: "Sends new combinations of the packets of an `rlnc-encode` that came, without decoding: redundancy for the next part \
                  of the way that also helps against what was lost before. Source packets go on unchanged. Drops \
                  packets that no `rlnc-encode` has sent.",
    example: "{ name: relay, kind: rlnc-recode, config: { redundancy: 0.25 } }",
};

/// `rlnc-decode`.
pub static RLNC_DECODE: Kind = Kind {
    name: "rlnc-decode",
    class: Class::Advanced,
    kernel: None,
    user: Some(DefaultCost {
        per_packet_ns: 80.0,
        per_byte_ns: 0.02,
    }),
    touches: Touches::HeaderAndPayload,
    state: State::PerInstance,
    guards: true,
    config: &[
        optional(
            "delivery",
            ValueType::Choice(&["immediate", "in-order"]),
            "immediate",
            "each packet goes on when it comes or is worked out, or waits for those before it",
        ),
        optional(
            "timeout",
            ValueType::Duration,
            "10ms",
            "with delivery: in-order, how long a packet waits at most",
        ),
        optional(
            "buffer",
            ValueType::Integer {
                min: 128,
                max: 4096,
            },
            "256",
            "source packets it keeps, rounded up to a power of two; 1.5 KiB each",
        ),
    ],
    description: "Gives on the packets of an `rlnc-encode` as they were before it, works out lost ones from repair packets, and takes \
                  those out. Drops packets that no `rlnc-encode` has sent, and duplicates.",
    example: "{ name: decoder, kind: rlnc-decode, config: { delivery: in-order } }",
};
