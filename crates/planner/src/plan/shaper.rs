//! What shapes a chain's traffic, as `plan` shows it.

use myelin_spec::Shaping;
use serde::{Deserialize, Serialize};

/// Who shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ShaperPlace {
    /// The worker of the last user functions, at their exit.
    Worker,
    /// The queueing discipline of the egress interface.
    Qdisc,
}

/// The shaper of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShaperPlan {
    /// Who shapes.
    pub place: ShaperPlace,
    /// The profile there: the agreed one with what the functions before it add, and the bounds of the queue.
    #[serde(flatten)]
    pub shaping: Shaping,
    /// How many functions stand before it.
    #[serde(skip)]
    pub(crate) behind: usize,
}
