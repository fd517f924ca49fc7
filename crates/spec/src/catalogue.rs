//! The kinds of service functions, as data.
//!
//! Everything that is said of a kind in general is said here: the planner places by it, `myelin functions` prints it,
//! and the chain reader takes the configuration keys from it. A new kind is an entry here, a variant of
//! [`FunctionConfig`](crate::FunctionConfig) and a reader of its values.

use serde::Serialize;

use crate::function::Space;
use crate::words::word_enum;

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
    /// The path of a file, relative to the chain file's directory.
    File,
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

/// Every kind.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    [&FORWARD, &XOR, &FIREWALL].into_iter()
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
