//! `xor`.

use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};

/// `xor`. Basic, though it works on the payload: it computes little and needs no run-time environment (CALVIN, section
/// IV-A).
pub static XOR: Kind = Kind {
    name: "xor",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 15.0,
        per_byte_ns: 0.05,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 9.0,
        per_byte_ns: 0.03,
    }),
    touches: Touches::Payload,
    state: State::None,
    guards: false,
    config: &[ConfigKey {
        key: "key",
        value: ValueType::Integer { min: 0, max: 255 },
        required: true,
        default: None,
        doc: "the byte that every byte of the payload is XORed with; 0x5a and 90 are the same",
    }],
    description: "XORs every byte of the UDP or TCP payload with one static key and corrects the checksum. Drops packets that \
                  have no such payload to find: fragments and other protocols.",
    example: "{ name: coder, kind: xor, config: { key: 0x5a } }",
};
