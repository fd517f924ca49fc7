//! `timestamp`.

use super::{Class, DefaultCost, Kind, State, Touches};

/// `timestamp`. Basic, as `xor` is.
pub static TIMESTAMP: Kind = Kind {
    name: "timestamp",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 90.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 60.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Payload,
    state: State::None,
    guards: false,
    config: &[],
    description: "Appends 16 bytes to the UDP payload: when the packet passed the front door and when this function handled it, \
                  each as big-endian nanoseconds of CLOCK_MONOTONIC. Corrects lengths and checksums. Drops packets that \
                  are not UDP, fragments, and packets that would become longer than 1500 bytes.",
    example: "{ name: clock, kind: timestamp }",
};
