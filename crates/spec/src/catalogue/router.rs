//! `router`.

use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};

/// `router`.
pub static ROUTER: Kind = Kind {
    name: "router",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 10.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 8.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Header,
    state: State::None,
    guards: false,
    config: &[
        ConfigKey {
            key: "routes",
            value: ValueType::Routes,
            required: false,
            default: Some("[]"),
            doc: "routes, the longest prefix wins: { prefix: PREFIX, mac: MAC, sourceMac: MAC }; `mac` is the next hop's Ethernet \
                  address and becomes the frame's destination, `sourceMac` its source; what is left out stays; at most 131072 with those of \
                  routesFile, of both address families",
        },
        ConfigKey {
            key: "routesFile",
            value: ValueType::File,
            required: false,
            default: None,
            doc: "a YAML file with a list of further routes",
        },
        ConfigKey {
            key: "addresses",
            value: ValueType::Addresses,
            required: false,
            default: Some("[]"),
            doc: "the router's own addresses, at most one of each family: a router in user space tells the sender of a packet \
                  whose time ran out (ICMP time exceeded) from the one of the packet's family; without it, it does not",
        },
        ConfigKey {
            key: "icmpRate",
            value: ValueType::Integer {
                min: 0,
                max: 1_000_000,
            },
            required: false,
            default: Some("100"),
            doc: "such messages a second at most; up to ten may go at once",
        },
    ],
    description: "Sends packets to the next hop of the longest prefix that holds their destination, and counts the time to live \
                  (hop limit) down. Drops packets without a route, and those whose time to live is used up; these \
                  senders are told from user space only.",
    example: "{ name: core, kind: router, config: { routes: [ { prefix: 0.0.0.0/0, mac: \"02:00:00:00:00:01\" } ] } }",
};
