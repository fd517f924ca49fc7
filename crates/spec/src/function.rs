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
    /// Its name, unique in its chain; a DNS label of at most 32 characters.
    pub name: String,
    /// Its kind and configuration.
    pub config: FunctionConfig,
    /// The function of the reverse chain whose work it undoes (`reverseOf`). It takes that
    /// function's configuration, state and space.
    pub reverse_of: Option<String>,
    /// Whether it shares its state with a function of the reverse chain.
    pub paired: bool,
    /// The pinned space; with `None`, the planner chooses.
    pub space: Option<Space>,
    /// Its sandbox and its limits.
    pub sandbox: SandboxSpec,
    /// Its location in the chain file.
    pub place: FileLocation,
}

impl FunctionSpec {
    /// Its kind, from the catalogue.
    pub fn kind(&self) -> &'static Kind {
        self.config.kind()
    }

    /// The space that it must run in: the pinned one, or user space if its sandbox or its limits
    /// need a process.
    pub fn required_space(&self) -> Option<Space> {
        let needs_process = self.sandbox.requested_at.is_some();
        self.space.or(needs_process.then_some(Space::User))
    }
}

/// The owner of a state: a function and its chain.
///
/// State belongs to a function, not to a generation of its chain: it survives a live change. A
/// function with `reverseOf` uses the state of the function that it names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateKey {
    /// The chain.
    pub chain: String,
    /// The function in it.
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
        /// The replies: the function undoes the work of the state's owner (`reverseOf`).
        Reply = "reply",
    }
}

/// A function as one generation of a chain runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionInstance {
    /// Its kind and configuration.
    pub config: FunctionConfig,
    /// The owner of its state; `None` for a private state.
    pub state: Option<StateKey>,
    /// The side of the state that it works on.
    pub side: Side,
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
