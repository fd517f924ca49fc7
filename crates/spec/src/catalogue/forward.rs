//! `forward`.

use super::{Class, DefaultCost, Kind, State, Touches};

/// `forward`.
pub static FORWARD: Kind = Kind {
    name: "forward",
    class: Class::Elementary,
    kernel: Some(DefaultCost {
        per_packet_ns: 1.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 0.5,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Nothing,
    state: State::None,
    guards: false,
    config: &[],
    description: "Hands packets on unchanged: the least a function can do, and so the baseline of every other.",
    example: "{ name: pass-on, kind: forward }",
};
