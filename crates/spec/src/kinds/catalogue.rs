//! The descriptions of the function kinds, as data.
//!
//! Each kind has one description, in its file of [`super`]. The planner places functions by it,
//! `myelin functions` prints it, and the chain reader and the JSON Schema take the keys from it.

use myelin_packet::FlowState;
use serde::Serialize;

use super::{FunctionConfig, KINDS};
use crate::effect::{Cost, Effect};
use crate::function::Space;
use crate::keys::field::Fields;
use crate::keys::words::word_enum;
pub use crate::keys::{ConfigKey, ValueType, flatten};

word_enum! {
    /// CALVIN's classes of functions (section III-B).
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Class {
        /// Receives, stores and sends packets, like every function.
        Elementary = "elementary",
        /// Light work, mostly on headers, without a run-time environment.
        Basic = "basic",
        /// Compute-intensive work on payloads, with SIMD or a run-time environment.
        Advanced = "advanced",
    }
}

word_enum! {
    /// The part of a packet that a function reads or writes.
    pub enum PacketParts {
        /// No part.
        Nothing = "nothing",
        /// Headers.
        Header = "header",
        /// The payload.
        Payload = "payload",
        /// Headers and payload, or unknown.
        HeaderAndPayload = "header-and-payload",
    }
}

word_enum! {
    /// The state of a function between packets.
    pub enum State {
        /// No state.
        None = "none",
        /// State per function.
        PerInstance = "per-instance",
        /// State per flow.
        PerFlow = "per-flow",
        /// Unknown: a black box.
        Unknown = "unknown",
    }
}

word_enum! {
    /// What a kind does with IP fragments.
    pub enum FragmentSupport {
        /// Processes each fragment by its headers, as a packet without ports.
        ByHeaders = "by headers",
        /// Translates the first fragment like a whole packet, and later fragments like the first.
        /// Drops a later fragment whose first fragment has not come before it.
        RemembersFirst = "remembers the first",
        /// Needs the whole datagram: drops fragments, the first one included.
        WholeDatagram = "whole datagram",
    }
}

/// The role of a kind in an erasure code. Coded traffic has more packets than its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Encodes: the code begins here.
    Begins,
    /// Decodes: the code ends here. It drops repair packets, and restores lost packets.
    Ends,
}

/// A kind of service function.
#[derive(Debug, Clone, Serialize)]
pub struct Kind {
    /// Name in chain files.
    pub name: &'static str,
    /// CALVIN's class.
    pub class: Class,
    /// Cost in the kernel until `myelin calibrate` measures this machine; `None` if the kind does
    /// not exist in the kernel. Mean on a two-core virtual machine (AMD EPYC, about 3 GHz, Linux
    /// 6.18): chains of nine functions against one, by `BPF_PROG_TEST_RUN`.
    pub kernel: Option<Cost>,
    /// Cost in user space, with batches of one packet; `None` if the kind does not exist there.
    pub user: Option<Cost>,
    /// The part of a packet that the function reads or writes.
    pub works_on: PacketParts,
    /// Whether the kernel form takes super-packets (GSO) and packets whose checksum the sender left
    /// to the card.
    pub takes_super_packets: bool,
    /// Whether the user-space form takes both. Such a function changes neither payloads nor their
    /// lengths, and leaves a partial checksum partial.
    #[serde(skip)]
    pub user_takes_super_packets: bool,
    /// The state of the function between packets.
    pub state: State,
    /// What the function does with IP fragments, by default.
    pub fragments: FragmentSupport,
    /// Whether the chain drops packets by default while the function fails (fails closed).
    pub fails_closed: bool,
    /// The keys of the configuration.
    pub config: &'static [ConfigKey],
    /// The description for users. The first sentence is the summary.
    pub description: &'static str,
    /// An element of `spec.functions`, with the keys `name`, `kind`, `config` in this order.
    pub example: &'static str,
    /// The kinds of the example chain; empty if the example chain has this kind alone.
    #[serde(skip)]
    pub example_chain: &'static [&'static str],
    /// The counters besides packets in, out and dropped: name and meaning of each.
    #[serde(skip)]
    pub counters: &'static [(&'static str, &'static str)],
    /// The kind's role in an erasure code.
    #[serde(skip)]
    pub coding: Option<Coding>,
    /// Returns the constants of the kernel program, if the program needs no other data.
    #[serde(skip)]
    pub(crate) kernel_constants: Option<fn(&FunctionConfig) -> Vec<u64>>,
    /// Reads the configuration and logs its faults.
    #[serde(skip)]
    pub(crate) read: fn(&Fields<'_>) -> FunctionConfig,
    /// Returns the effect of a function with this configuration on traffic.
    #[serde(skip)]
    pub(crate) effect: fn(&FunctionConfig) -> Effect,
    /// Returns the lifetime of a flow after its last packet, ns; `None` if a flow ends only when
    /// the table is full. Takes whether the flow is TCP, and the flow's state.
    #[serde(skip)]
    pub(crate) flow_lifetime_ns: fn(&FunctionConfig, bool, Option<FlowState>) -> Option<u64>,
}

/// Compares the names, which are unique.
impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Kind {
    /// Defaults of a description: no space, no keys, no state, no effect on packets.
    pub(crate) const BASE: Self = Self {
        name: "",
        class: Class::Elementary,
        kernel: None,
        user: None,
        works_on: PacketParts::Nothing,
        takes_super_packets: false,
        user_takes_super_packets: false,
        state: State::None,
        fragments: FragmentSupport::ByHeaders,
        fails_closed: false,
        config: &[],
        description: "",
        example: "",
        example_chain: &[],
        counters: &[],
        coding: None,
        kernel_constants: None,
        read: |_| FunctionConfig::Forward,
        effect: |_| Effect::default(),
        flow_lifetime_ns: |_, _, _| None,
    };

    /// Returns the spaces that the kind can run in.
    pub fn spaces(&self) -> impl Iterator<Item = Space> + use<> {
        let user = self.user.map(|_| Space::User);
        self.kernel.map(|_| Space::Kernel).into_iter().chain(user)
    }

    /// Returns the first sentence of the description.
    pub fn summary(&self) -> &'static str {
        let end = self.description.find(". ");
        end.map_or(self.description, |end| &self.description[..=end])
    }

    /// Returns a small chain file with a function of this kind.
    pub fn chain_file(&self) -> String {
        let own = [self.name];
        let names = match self.example_chain {
            [] => &own,
            names => names,
        };
        // Writes each key of a function on its own line.
        let block = |kind: &Kind| {
            let keys = kind
                .example
                .strip_prefix("{ ")
                .and_then(|keys| keys.strip_suffix(" }"));
            let keys = keys.unwrap_or(kind.example);
            let keys = keys.replacen(", kind:", "\n      kind:", 1);
            format!(
                "    - {}\n",
                keys.replacen(", config:", "\n      config:", 1)
            )
        };
        let functions: String = names
            .iter()
            .filter_map(|name| kind(name))
            .map(block)
            .collect();
        format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: first }}\nspec:\n  \
             match: {{ protocol: udp, destination: 10.0.0.2, destinationPort: 9000 }}\n  \
             functions:\n{functions}  sla: {{ rate: 1kpps, burst: 8, latency: 50ms }}\n"
        )
    }

    /// Whether the kind's effect, state and cost are unknown.
    pub fn is_black_box(&self) -> bool {
        self.state == State::Unknown
    }

    /// Returns the default cost in `space`.
    pub fn default_cost(&self, space: Space) -> Option<Cost> {
        match space {
            Space::Kernel => self.kernel,
            Space::User => self.user,
        }
    }
}

/// Returns all kinds.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().copied()
}

/// Finds the kind called `name`.
pub fn kind(name: &str) -> Option<&'static Kind> {
    kinds().find(|kind| kind.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_space_and_is_found_by_name() {
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
    fn required_key_has_no_default() {
        for key in kinds().flat_map(|kind| kind.config) {
            assert!(!(key.required && key.default.is_some()), "{}", key.key);
            if let (ValueType::Choice(words), Some(default)) = (key.value, key.default) {
                assert!(words.contains(&default), "{}", key.key);
            }
        }
    }
}
