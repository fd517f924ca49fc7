//! `firewall`.

use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};

/// `firewall`.
pub static FIREWALL: Kind = Kind {
    name: "firewall",
    class: Class::Basic,
    kernel: Some(DefaultCost {
        per_packet_ns: 15.0,
        per_byte_ns: 0.0,
    }),
    user: Some(DefaultCost {
        per_packet_ns: 17.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::Header,
    state: State::None,
    guards: true,
    config: &[
        ConfigKey {
            key: "rules",
            value: ValueType::Rules,
            required: false,
            default: Some("[]"),
            doc: "rules, first match wins: { action: allow|deny, source: PREFIX, destination: PREFIX, protocol: \
                  udp|tcp|icmp|icmpv6|NUMBER, sourcePort: PORT|\"FROM-TO\", destinationPort: PORT|\"FROM-TO\" }; a field left out \
                  fits every packet; at most 1024 with those of rulesFile",
        },
        ConfigKey {
            key: "rulesFile",
            value: ValueType::File,
            required: false,
            default: None,
            doc: "a YAML file with a list of further rules, which come after those of `rules`",
        },
        ConfigKey {
            key: "default",
            value: ValueType::Choice(&["allow", "deny"]),
            required: false,
            default: Some("allow"),
            doc: "what happens to a packet that no rule matches",
        },
        ConfigKey {
            key: "fragments",
            value: ValueType::Choice(&["drop", "match"]),
            required: false,
            default: Some("drop"),
            doc: "fragments show no ports: when a rule names one, drop them, or match them as packets without ports",
        },
    ],
    description: "Lets packets pass or drops them by prefix, protocol and port; the cost hardly depends on the number of rules.",
    example: "{ name: edge-filter, kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }",
};
