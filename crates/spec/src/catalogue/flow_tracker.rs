//! `flow-tracker`.

use super::{Class, ConfigKey, DefaultCost, FLOWS, Kind, REVERSE_OF, State, Touches, ValueType};

/// `flow-tracker`.
pub static FLOW_TRACKER: Kind = Kind {
    name: "flow-tracker",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 42.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 25.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Header,
    state: State::PerFlow,
    guards: true,
    config: &[
        FLOWS,
        ConfigKey {
            key: "invalid",
            value: ValueType::Choice(&["pass", "drop"]),
            required: false,
            default: Some("pass"),
            doc: "what happens to a TCP segment that belongs to no known connection and opens none; it is counted in any case",
        },
        ConfigKey {
            key: "timeout",
            value: ValueType::Duration,
            required: false,
            default: Some("120s"),
            doc: "how long a flow lives after its last packet",
        },
        ConfigKey {
            key: "tcpTimeout",
            value: ValueType::Duration,
            required: false,
            default: Some("7440s"),
            doc: "the same for an established TCP connection; at most 240s while it is opened or closed, and 10s once it is closed",
        },
        REVERSE_OF,
    ],
    description: "Follows each flow through new, established, closing and closed, and counts what both sides send; `myelin ps \
                  --flows` shows them. Sees one direction, unless a `flow-tracker` with `reverseOf` stands in the reverse chain.",
    example: "{ name: connections, kind: flow-tracker, config: { invalid: drop } }",
};
