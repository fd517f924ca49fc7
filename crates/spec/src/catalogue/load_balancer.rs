//! `load-balancer`.

use super::{Class, ConfigKey, DefaultCost, Kind, REVERSE_OF, State, Touches, ValueType};

/// `load-balancer`.
pub static LOAD_BALANCER: Kind = Kind {
    name: "load-balancer",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 50.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 40.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Header,
    state: State::PerFlow,
    guards: false,
    config: &[
        ConfigKey {
            key: "backends",
            value: ValueType::Backends,
            required: true,
            default: None,
            doc: "where packets go, 512 at most, of one address family or both: { address: ADDRESS, weight: 1 to 100, mac: MAC }; \
                  `weight` (1) is the share of flows; `mac` becomes the frame's destination, which otherwise stays; with an \
                  empty list every packet is dropped",
        },
        ConfigKey {
            key: "timeout",
            value: ValueType::Duration,
            required: false,
            default: Some("300s"),
            doc: "how long a flow without packets stays with its backend",
        },
        ConfigKey {
            key: "flows",
            value: ValueType::Integer {
                min: 1024,
                max: 1_048_576,
            },
            required: false,
            default: Some("65536"),
            doc: "flows it keeps; when one more comes, it forgets one that has not been used for long",
        },
        REVERSE_OF,
    ],
    description: "Spreads UDP and TCP flows over backends by consistent hashing (Maglev), rewriting the destination address, and \
                  keeps each flow with its backend; in the reverse chain a `load-balancer` with `reverseOf` gives the \
                  answers their source back. Drops packets without ports, and answers of no living flow.",
    example: "{ name: spread, kind: load-balancer, config: { backends: [ { address: 10.0.0.11 }, { address: 10.0.0.12 } ] } }",
};
