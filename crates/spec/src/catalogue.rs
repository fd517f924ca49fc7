//! The kinds of service functions, as data.
//!
//! Everything that is said of a kind in general is said here: the planner places by it, `myelin functions` prints it,
//! and the chain reader takes the configuration keys from it. A new kind is a file here, a variant of
//! [`FunctionConfig`](crate::FunctionConfig) and a reader of its values.

mod aes;
mod compression;
mod dpi;
mod external;
mod firewall;
mod flow_tracker;
mod forward;
mod load_balancer;
mod lossy_link;
mod monitor;
mod mtu;
mod nat;
mod rlnc;
mod router;
mod timestamp;
mod xor;

use serde::Serialize;

use crate::function::Space;
use crate::words::word_enum;

pub use aes::{AES_DECRYPT, AES_ENCRYPT};
pub use compression::{COMPRESS, DECOMPRESS};
pub use dpi::{DPI, MIRROR_KEYS, PATTERN_KEYS};
pub use external::EXTERNAL;
pub use firewall::FIREWALL;
pub use flow_tracker::FLOW_TRACKER;
pub use forward::FORWARD;
pub use load_balancer::LOAD_BALANCER;
pub use lossy_link::LOSSY_LINK;
pub use monitor::MONITOR;
pub use nat::NAT;
pub use rlnc::{RLNC_DECODE, RLNC_ENCODE, RLNC_RECODE};
pub use router::ROUTER;
pub use timestamp::TIMESTAMP;
pub use xor::XOR;

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

/// The key by which a function is the reply side of one in the reverse chain; it stands alone.
pub const REVERSE_OF: ConfigKey = ConfigKey {
    key: "reverseOf",
    value: ValueType::Function,
    required: false,
    default: None,
    doc: "alone: this function undoes for the replies what that one does, a function of the chain that `spec.reverse` names; it has \
          that one's configuration and space, and shares its state",
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
