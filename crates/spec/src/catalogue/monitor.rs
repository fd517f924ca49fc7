//! `monitor`.

use super::{Class, DefaultCost, FLOWS, Kind, State, Touches};

/// `monitor`.
pub static MONITOR: Kind = Kind {
    name: "monitor",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 30.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 25.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Header,
    state: State::PerFlow,
    guards: false,
    config: &[FLOWS],
    description: "Counts packets and bytes by five-tuple and hands every packet on unchanged; `myelin ps --flows` shows them.",
    example: "{ name: meter, kind: monitor, config: { flows: 4096 } }",
};
