//! The service functions of a chain.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::FileLocation;
use crate::isolation::SandboxSpec;
use crate::keys::words::word_enum;
use crate::kinds::FunctionConfig;
use crate::kinds::catalogue::Kind;

word_enum! {
    /// Where a function runs.
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
    /// The function of the reverse chain whose work it undoes (`reverseOf`). It has that one's configuration, uses its
    /// state, and stands in the same space.
    pub reverse_of: Option<String>,
    /// Whether it shares its state with a function of the reverse chain, as the one that undoes or the one that is undone.
    pub paired: bool,
    /// The space it is pinned to; `None` leaves the choice to the planner.
    pub space: Option<Space>,
    /// What it stands in, and with how much of the machine.
    pub sandbox: SandboxSpec,
    /// Where it stands in the chain file.
    pub place: FileLocation,
}

impl FunctionSpec {
    /// Its kind, from the catalogue.
    pub fn kind(&self) -> &'static Kind {
        self.config.kind()
    }

    /// The space it must stand in: the one it is pinned to, or user space when it asks for what only a process can have.
    pub fn required_space(&self) -> Option<Space> {
        let asks = self.sandbox.requested_at.is_some();
        self.space.or(asks.then_some(Space::User))
    }
}

/// Whose state a function uses: the function's name, and that of its chain.
///
/// State belongs to a function and not to a deployed form of its chain: it stays when the chain around the function is
/// changed, and a function that undoes another one's work uses that one's.
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
    /// Which side of a state a function works on.
    #[derive(Default)]
    pub enum Side {
        /// That of the chain's own traffic.
        #[default]
        Forward = "forward",
        /// That of the replies: it undoes what the function that owns the state does (`reverseOf`).
        Reply = "reply",
    }
}

/// A function as one generation of a chain runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionInstance {
    /// Its kind and configuration.
    pub config: FunctionConfig,
    /// Whose state it uses; `None` gives it one of its own that nobody else finds.
    pub state: Option<StateKey>,
    /// Which side of that state it works on.
    pub side: Side,
}

/// An instance with a state of its own.
impl From<FunctionConfig> for FunctionInstance {
    fn from(config: FunctionConfig) -> Self {
        Self {
            config,
            state: None,
            side: Side::Forward,
        }
    }
}
