//! `nat`.

use super::{Class, ConfigKey, DefaultCost, Kind, REVERSE_OF, State, Touches, ValueType};

/// `nat`.
pub static NAT: Kind = Kind {
    name: "nat",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 45.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 50.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Header,
    state: State::PerFlow,
    guards: true,
    config: &[
        ConfigKey {
            key: "address",
            value: ValueType::Addresses,
            required: true,
            default: None,
            doc: "the external address, or a list of at most 16, IPv4, IPv6 or both; all flows of an inside address get the same one",
        },
        ConfigKey {
            key: "ports",
            value: ValueType::Ports,
            required: false,
            default: Some("1024-65535"),
            doc: "external ports, and identifiers of echoes; a flow keeps its own where that is in the range and free",
        },
        ConfigKey {
            key: "timeout",
            value: ValueType::Duration,
            required: false,
            default: Some("120s"),
            doc: "how long a UDP or ICMP mapping lives after the last packet from inside",
        },
        ConfigKey {
            key: "tcpTimeout",
            value: ValueType::Duration,
            required: false,
            default: Some("7440s"),
            doc: "the same for TCP; at most 240s after a SYN, and from a FIN or RST to the next SYN",
        },
        ConfigKey {
            key: "flows",
            value: ValueType::Integer {
                min: 1,
                max: crate::nat::MAX_FLOWS,
            },
            required: false,
            default: Some("16384"),
            doc: "mappings it keeps at most; when one more comes and none has expired, its packets are dropped and counted",
        },
        REVERSE_OF,
    ],
    description: "Gives UDP, TCP and ICMP echo packets an external source address and port (NAPT, RFC 3022 and 4787), of IPv4 and \
                  IPv6; in the reverse chain a `nat` with `reverseOf` gives the replies their destination back. Drops fragments, \
                  everything else that it cannot translate, and replies to no living mapping.",
    example: "{ name: masquerade, kind: nat, config: { address: 198.51.100.7 } }",
};
