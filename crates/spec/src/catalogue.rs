//! The kinds of service functions, as data.
//!
//! Everything that is said of a kind in general is said here: the planner places by it, `myelin functions` prints it,
//! and the chain reader takes the configuration keys from it. A new kind is an entry here, a variant of
//! [`FunctionConfig`](crate::FunctionConfig) and a reader of its values.

mod aes;
mod compression;
mod dpi;
mod lossy_link;
mod mtu;
mod rlnc;

use serde::Serialize;

use crate::function::Space;
use crate::words::word_enum;

pub use aes::{AES_DECRYPT, AES_ENCRYPT};
pub use compression::{COMPRESS, DECOMPRESS};
pub use dpi::{DPI, MIRROR_KEYS, PATTERN_KEYS};
pub use lossy_link::LOSSY_LINK;
pub use rlnc::{RLNC_DECODE, RLNC_ENCODE, RLNC_RECODE};

word_enum! {
    /// CALVIN's classes of functions (section III-B).
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Class {
        /// Receive, hold, send: what every function does.
        Elementary = "elementary",
        /// Light work, mostly on headers, with no need of a run-time environment.
        Basic = "basic",
        /// Compute-intensive work on payloads that wants SIMD or a run-time environment.
        Advanced = "advanced",
    }
}

word_enum! {
    /// The part of a packet that a function reads or writes.
    pub enum Touches {
        /// No part.
        Nothing = "nothing",
        /// Headers.
        Header = "header",
        /// The payload.
        Payload = "payload",
        /// Both, for all that is known.
        HeaderAndPayload = "header-and-payload",
    }
}

word_enum! {
    /// What a function remembers from packet to packet.
    pub enum State {
        /// Nothing.
        None = "none",
        /// Something per function instance.
        PerInstance = "per-instance",
        /// Something per flow.
        PerFlow = "per-flow",
        /// Nobody knows: it is a black box.
        Unknown = "unknown",
    }
}

/// A kind of service function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kind {
    /// Its name in chain files.
    pub name: &'static str,
    /// CALVIN's class.
    pub class: Class,
    /// Default cost in the kernel; `None` when the kind does not exist there.
    pub kernel: Option<DefaultCost>,
    /// Default cost in user space; `None` when the kind does not exist there.
    pub user: Option<DefaultCost>,
    /// What it works on.
    pub touches: Touches,
    /// What it remembers.
    pub state: State,
    /// Whether traffic must not get past it when it fails: chains that hold such a kind drop by default.
    pub guards: bool,
    /// The keys of its configuration.
    pub config: &'static [ConfigKey],
    /// What it does.
    pub description: &'static str,
    /// An element of `spec.functions`.
    pub example: &'static str,
}

impl Kind {
    /// The spaces it exists in.
    pub fn spaces(&self) -> impl Iterator<Item = Space> + use<> {
        let user = self.user.map(|_| Space::User);
        self.kernel.map(|_| Space::Kernel).into_iter().chain(user)
    }

    /// Whether nothing is known of what it does, what it remembers and what it costs.
    pub fn is_black_box(&self) -> bool {
        self.state == State::Unknown
    }

    /// Its default cost in `space`.
    pub fn default_cost(&self, space: Space) -> Option<DefaultCost> {
        match space {
            Space::Kernel => self.kernel,
            Space::User => self.user,
        }
    }
}

/// What a function costs before this machine was measured: means on a two-core virtual machine (AMD EPYC, about 3 GHz,
/// Linux 6.18), of chains of nine against one by `BPF_PROG_TEST_RUN`, and of batches of one packet in user space.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DefaultCost {
    /// For each packet, ns.
    pub per_packet_ns: f64,
    /// For each byte of its frame, ns.
    pub per_byte_ns: f64,
}

/// A key of a kind's configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigKey {
    /// Its name.
    pub key: &'static str,
    /// What its value is.
    #[serde(rename = "type")]
    pub value: ValueType,
    /// Whether it must be given.
    pub required: bool,
    /// Its value when it is not given, as it would be written.
    pub default: Option<&'static str>,
    /// What it is for.
    pub doc: &'static str,
}

/// What the value of a configuration key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    /// A whole number, decimal or hexadecimal.
    Integer {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// One of several words.
    Choice(&'static [&'static str]),
    /// A list of firewall rules.
    Rules,
    /// A list of routes.
    Routes,
    /// A list of backends.
    Backends,
    /// A list of addresses.
    Addresses,
    /// A port or a range of ports.
    Ports,
    /// A written time.
    Duration,
    /// A written percentage.
    Percent,
    /// A program and its arguments.
    Command,
    /// Variables and their values.
    Environment,
    /// The name of a function.
    Function,
    /// The path of a file, relative to the chain file's directory.
    File,
    /// The same of a file that holds secrets: nobody but its owner may have access to it.
    SecretFile,
    /// A list of patterns.
    Patterns,
    /// Where copies of packets go.
    Mirror,
    /// A decimal number from 0 on, with up to six decimals.
    Number {
        /// The greatest.
        max: u32,
    },
}

/// Keys of a firewall rule.
pub const RULE_KEYS: &[&str] = &[
    "action",
    "source",
    "destination",
    "protocol",
    "sourcePort",
    "destinationPort",
];

/// Keys of a route.
pub const ROUTE_KEYS: &[&str] = &["prefix", "mac", "sourceMac"];

/// Keys of a backend.
pub const BACKEND_KEYS: &[&str] = &["address", "weight", "mac"];

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

/// The bound of a table of flows.
const FLOWS: ConfigKey = ConfigKey {
    key: "flows",
    value: ValueType::Integer {
        min: 1,
        max: 1_048_576,
    },
    required: false,
    default: Some("4096"),
    doc: "flows it keeps at most; when one more comes the one that was used longest ago goes (in the kernel, one that was not used \
          of late), and this is counted",
};

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

/// The key by which a function is the reply side of one in the reverse chain; it stands alone.
pub const REVERSE_OF: ConfigKey = ConfigKey {
    key: "reverseOf",
    value: ValueType::Function,
    required: false,
    default: None,
    doc: "alone: this function undoes for the replies what that one does, a function of the chain that `spec.reverse` names; it has \
          that one's configuration and space, and shares its state",
};

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

/// Every kind.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    [
        &FORWARD,
        &XOR,
        &FIREWALL,
        &TIMESTAMP,
        &MONITOR,
        &FLOW_TRACKER,
        &ROUTER,
        &NAT,
        &LOAD_BALANCER,
        &EXTERNAL,
        &AES_ENCRYPT,
        &AES_DECRYPT,
        &DPI,
        &LOSSY_LINK,
        &COMPRESS,
        &DECOMPRESS,
        &RLNC_ENCODE,
        &RLNC_RECODE,
        &RLNC_DECODE,
    ]
    .into_iter()
}

/// The kind called `name`.
pub fn kind(name: &str) -> Option<&'static Kind> {
    kinds().find(|kind| kind.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_exists_somewhere_and_is_found_by_its_name() {
        for entry in kinds() {
            assert!(entry.spaces().next().is_some(), "{}", entry.name);
            assert_eq!(kind(entry.name), Some(entry));
            for space in entry.spaces() {
                assert!(entry.default_cost(space).is_some());
            }
        }
        assert_eq!(kind("rlnc"), None);
    }

    #[test]
    fn a_required_key_has_no_default() {
        for key in kinds().flat_map(|kind| kind.config) {
            assert!(!(key.required && key.default.is_some()), "{}", key.key);
            if let (ValueType::Choice(words), Some(default)) = (key.value, key.default) {
                assert!(words.contains(&default), "{}", key.key);
            }
        }
    }
}
