//! The kinds of service functions, as data.
//!
//! All that is said of a kind in general is in its description, a file of [`crate::kinds`]: the planner places by it, `myelin functions`
//! prints it, and the chain reader and the schema take the configuration from it.

use std::fmt;

use myelin_packet::FlowState;
use serde::Serialize;

use crate::FunctionConfig;
use crate::effect::Effect;
use crate::error::Report;
use crate::function::Space;
use crate::kinds::{KINDS, dpi, firewall, load_balancer, router};
use crate::read::field::Fields;
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

/// The part of a kind in an erasure code, whose packets are more than the packets that they carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// It begins the code.
    Begins,
    /// It ends the code: what it drops was used up, and what it makes was lost before.
    Ends,
}

/// A kind of service function.
#[derive(Debug, Clone, Serialize)]
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
    /// What it counts besides packets in, out and dropped: each counter and what it tells.
    #[serde(skip)]
    pub counters: &'static [(&'static str, &'static str)],
    /// Its part in an erasure code.
    #[serde(skip)]
    pub coding: Option<Coding>,
    /// The numbers that its program in the kernel works with, where these are all that it needs.
    #[serde(skip)]
    pub(crate) kernel_constants: Option<fn(&FunctionConfig) -> Vec<u64>>,
    /// Reads the configuration; what is wrong with it is reported.
    #[serde(skip)]
    pub(crate) read: fn(&Fields<'_>, &mut Report<'_>) -> FunctionConfig,
    /// What a function with this configuration does to traffic.
    #[serde(skip)]
    pub(crate) effect: fn(&FunctionConfig) -> Effect,
    /// How long a flow is kept after its last packet, ns, by whether it is of TCP and by its state; `None` for as long as there is room.
    #[serde(skip)]
    pub(crate) flow_lifetime_ns: fn(&FunctionConfig, bool, Option<FlowState>) -> Option<u64>,
}

/// By their names, which differ.
impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Kind {
    /// What a description leaves out: a kind that exists nowhere, has no keys, and hands packets on as they came.
    pub(crate) const BASE: Self = Self {
        name: "",
        class: Class::Elementary,
        kernel: None,
        user: None,
        touches: Touches::Nothing,
        state: State::None,
        guards: false,
        config: &[],
        description: "",
        example: "",
        counters: &[],
        coding: None,
        kernel_constants: None,
        read: |_, _| FunctionConfig::Forward,
        effect: |_| Effect::NONE,
        flow_lifetime_ns: |_, _, _| None,
    };

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct DefaultCost {
    /// For each packet, ns.
    pub per_packet_ns: f64,
    /// For each byte of its frame, ns.
    pub per_byte_ns: f64,
}

/// A default cost of so many ns a packet and a byte.
pub(crate) const fn cost(per_packet_ns: f64, per_byte_ns: f64) -> DefaultCost {
    DefaultCost {
        per_packet_ns,
        per_byte_ns,
    }
}

/// A key of a mapping in the chain file, such as a kind's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
    /// In errors: what an integer counts, or a value as an example where the default is none.
    #[serde(skip)]
    pub(crate) hint: Option<&'static str>,
}

impl ConfigKey {
    /// A key that need not be given and has no default.
    pub(crate) const fn new(value: ValueType) -> Self {
        Self {
            key: "",
            value,
            required: false,
            default: None,
            doc: "",
            hint: None,
        }
    }

    /// The same that must be given.
    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The same with a default.
    pub(crate) const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// The same with another example in errors.
    pub(crate) const fn like(mut self, example: &'static str) -> Self {
        self.hint = Some(example);
        self
    }

    /// The same under a name, with what it is for.
    pub(crate) const fn named(mut self, key: &'static str, doc: &'static str) -> Self {
        self.key = key;
        self.doc = doc.trim_ascii_start();
        self
    }
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
    /// A written share of processors.
    Cpu,
    /// A written amount of memory.
    Memory,
    /// A text of another form, which the key describes.
    Text,
    /// A text, or a list of texts, each as the key describes.
    TextOrList,
    /// A mapping with these keys.
    Map(&'static [ConfigKey]),
    /// A mapping with any keys.
    AnyMap,
    /// A text, or a mapping with these keys.
    TextOrMap(&'static [ConfigKey]),
    /// The functions of a chain.
    Functions,
}

/// What such a value looks like.
impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, keys) = match self {
            Self::Integer { min, max } => return write!(f, "{min} to {max}"),
            Self::Number { max } => return write!(f, "number, 0 to {max}"),
            Self::Choice(words) => return f.write_str(&words.join(" | ")),
            Self::Rules => ("list of rules: ", firewall::RULE_KEYS),
            Self::Backends => ("list of backends: ", load_balancer::BACKEND_KEYS),
            Self::Routes => ("list of routes: ", router::ROUTE_KEYS),
            Self::Patterns => ("list of patterns: ", dpi::PATTERN_KEYS),
            Self::Mirror => ("", dpi::MIRROR_KEYS),
            Self::Map(keys) | Self::TextOrMap(keys) => ("", *keys),
            Self::Addresses => ("list of addresses", NO_KEYS),
            Self::Ports => ("port or \"FROM-TO\"", NO_KEYS),
            Self::Duration => ("time", NO_KEYS),
            Self::Command => ("list: program, arguments", NO_KEYS),
            Self::Environment | Self::AnyMap => ("NAME: VALUE pairs", NO_KEYS),
            Self::Function => ("name of a function", NO_KEYS),
            Self::File => ("path of a file", NO_KEYS),
            Self::SecretFile => ("path of a file that only its owner has access to", NO_KEYS),
            Self::Percent => ("percentage, such as 5%", NO_KEYS),
            Self::Cpu => ("share of the processor, such as 0.5cores", NO_KEYS),
            Self::Memory => ("size, such as 256MiB", NO_KEYS),
            Self::Text | Self::TextOrList => ("text", NO_KEYS),
            Self::Functions => ("list of functions", NO_KEYS),
        };
        let names: Vec<_> = keys.iter().map(|key| key.key).collect();
        write!(f, "{words}{}", names.join(", "))
    }
}

const NO_KEYS: &[ConfigKey] = &[];

/// A written time.
pub(crate) const DURATION: ConfigKey = ConfigKey::new(ValueType::Duration);
/// A key of any text.
pub(crate) const TEXT: ConfigKey = ConfigKey::new(ValueType::Text);
/// The path of a file.
pub(crate) const FILE: ConfigKey = ConfigKey::new(ValueType::File);
/// Yes or no.
pub(crate) const BOOLEAN: ConfigKey = ConfigKey::new(ValueType::Choice(&["true", "false"]));

/// A whole number; `what` says in errors what it counts.
pub(crate) const fn integer(min: u64, max: u64, what: &'static str) -> ConfigKey {
    ConfigKey::new(ValueType::Integer { min, max }).like(what)
}

/// The bound of a table of flows.
pub(crate) const FLOWS: ConfigKey = integer(1, 1_048_576, "a number of flows").or("4096");

/// The key by which a function is the reply side of one in the reverse chain; it stands alone.
pub const REVERSE_OF: ConfigKey = ConfigKey::new(ValueType::Function).named(
    "reverseOf",
    "alone: this function undoes for the replies what that one does, a function of the chain that `spec.reverse` names; it has \
     that one's configuration and space, and shares its state",
);

/// Every kind.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().copied()
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
