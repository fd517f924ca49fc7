//! `external`.

use super::{Class, ConfigKey, DefaultCost, Kind, State, Touches, ValueType};

/// `external`. Of the class that belongs into user space, since nothing is known of it but that it is a program.
pub static EXTERNAL: Kind = Kind {
    name: "external",
    class: Class::Advanced,
    kernel: None,
    // Nobody knows its cost: the planner says so, and leaves it out.
    user: Some(DefaultCost {
        per_packet_ns: 0.0,
        per_byte_ns: 0.0,
    }),
    touches: Touches::HeaderAndPayload,
    state: State::Unknown,
    guards: false,
    config: &[
        ConfigKey {
            key: "command",
            value: ValueType::Command,
            required: true,
            default: None,
            doc: "the program, by its whole path or by a name to be found in PATH, and its arguments; `{ingress}` and `{egress}` in \
                  them become the names of its interfaces, which it also finds in MYELIN_INGRESS and MYELIN_EGRESS, beside \
                  MYELIN_CHAIN and MYELIN_FUNCTION; it is root in a network namespace of its own, and must stay in the \
                  foreground",
        },
        ConfigKey {
            key: "environment",
            value: ValueType::Environment,
            required: false,
            default: None,
            doc: "further variables: { NAME: VALUE }",
        },
        ConfigKey {
            key: "startup",
            value: ValueType::Duration,
            required: false,
            default: Some("1s"),
            doc: "how long it may take until it is up, at most 60s: packets are led to it as soon as it has taken both of its interfaces \
                  (by a packet socket, a bridge, an XDP program or promiscuous mode), and in any case when this time is \
                  over; if it ends before, the chain does not come up",
        },
    ],
    description: "A black box: any program that takes packets from the interface `ingress` and sends them on at `egress`, in a network \
                  namespace of its own. Nothing is known of what it does; it is started, watched, limited and, when it \
                  ends, started again. Needs `mapping: distributed`, which is chosen by itself.",
    example: "{ name: bump, kind: external, config: { command: [bump-in-the-wire, \"{ingress}\", \"{egress}\"] } }",
};
