//! The kinds of service functions, as data.
//!
//! All that is said of a kind in general is in its description, a file of [`super`]: the planner places by it, `myelin functions`
//! prints it, and the chain reader and the schema take the configuration from it.

use myelin_packet::FlowState;
use serde::Serialize;

use super::{FunctionConfig, KINDS};
use crate::effect::{Cost, Effect};
use crate::function::Space;
use crate::keys::field::Fields;
use crate::keys::words::word_enum;
pub use crate::keys::{ConfigKey, ValueType};

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
    /// What it costs in the kernel before this machine was measured; `None` when the kind does not exist there. A mean on a two-core virtual
    /// machine (AMD EPYC, about 3 GHz, Linux 6.18), of chains of nine against one by `BPF_PROG_TEST_RUN`.
    pub kernel: Option<Cost>,
    /// The same in user space, of batches of one packet.
    pub user: Option<Cost>,
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
    pub(crate) read: fn(&Fields<'_>) -> FunctionConfig,
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
    /// What a description leaves out: a kind that exists nowhere, has no keys, remembers nothing, guards nothing, and hands packets on
    /// as they came.
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
        read: |_| FunctionConfig::Forward,
        effect: |_| Effect::default(),
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
    pub fn default_cost(&self, space: Space) -> Option<Cost> {
        match space {
            Space::Kernel => self.kernel,
            Space::User => self.user,
        }
    }
}

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
