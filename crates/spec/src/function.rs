//! The service functions of a chain.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::FileLocation;
use crate::isolation::SandboxSpec;
use crate::keys::words::word_enum;
use crate::kinds::FunctionConfig;
use crate::kinds::catalogue::Kind;

word_enum! {
    /// The space of a function.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Space {
        /// In the kernel, as an eBPF program.
        Kernel = "kernel",
        /// In user space, in a worker process.
        User = "user",
    }
}

/// A service function: one element of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionSpec {
    /// A DNS label of at most 32 characters, unique in the chain.
    pub name: String,
    /// The kind and its configuration.
    pub config: FunctionConfig,
    /// The function of the reverse chain whose work this function undoes (`reverseOf`). This
    /// function takes the configuration, state and space of that function.
    pub reverse_of: Option<String>,
    /// Whether this function shares its state with a function of the reverse chain.
    pub paired: bool,
    /// The pinned space; with `None`, the planner chooses.
    pub space: Option<Space>,
    /// The sandbox of the function, and its limits.
    pub sandbox: SandboxSpec,
    /// The node of a topology that runs the function; with `None`, the placement chooses.
    #[serde(default)]
    pub node: Option<String>,
    /// The group of functions of which no two run on one node; `None`: no group.
    #[serde(default)]
    pub anti_affinity: Option<String>,
    /// The number of instances on nodes of a topology, of which each flow passes one; `None`: one
    /// instance.
    #[serde(default)]
    pub replicas: Option<u8>,
    /// The function's location in the chain file.
    pub place: FileLocation,
}

impl FunctionSpec {
    /// Returns the description of the function's kind.
    pub fn kind(&self) -> &'static Kind {
        self.config.kind()
    }

    /// Returns the space that the function must run in: the pinned space, or user space if the
    /// sandbox or the limits need a process.
    pub fn required_space(&self) -> Option<Space> {
        let needs_process = self.sandbox.requested_at.is_some();
        self.space.or(needs_process.then_some(Space::User))
    }
}

/// The key of a state: the function that the state belongs to, and the chain of that function.
///
/// State belongs to a function, not to a generation, so state survives a live change. A function
/// with `reverseOf` uses the state of the function that `reverseOf` names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateKey {
    /// Name of the chain.
    pub chain: String,
    /// Name of the function in the chain.
    pub function: String,
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.chain, self.function)
    }
}

word_enum! {
    /// The side of a state that a function works on.
    #[derive(Default)]
    pub enum Side {
        /// The chain's own traffic.
        #[default]
        Forward = "forward",
        /// The replies: the function undoes the work of the function that `reverseOf` names.
        Reply = "reply",
    }
}

/// A function as one generation of a chain runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionInstance {
    /// The kind and its configuration.
    pub config: FunctionConfig,
    /// The key of the function's state; `None` for a private state.
    pub state: Option<StateKey>,
    /// The side of the state that the function works on.
    pub side: Side,
}

impl FunctionInstance {
    /// Tells a router without the key `mtu` the longest IP packet of the egress interface, bytes.
    #[must_use]
    pub fn behind_mtu(mut self, egress: Option<u32>) -> Self {
        if let FunctionConfig::Router(config) = &mut self.config {
            config.mtu = config.mtu.or(egress);
        }
        self
    }
}

/// Creates an instance with a private state.
impl From<FunctionConfig> for FunctionInstance {
    fn from(config: FunctionConfig) -> Self {
        Self {
            config,
            state: None,
            side: Side::Forward,
        }
    }
}
