//! The shaper of a chain in a plan.

use myelin_spec::Shaping;
use serde::{Deserialize, Serialize};

/// The place of a shaper.
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
    /// Its place.
    pub place: ShaperPlace,
    /// The profile there: the agreed one with the packets and bytes that functions before it add,
    /// and the limits of its queue.
    #[serde(flatten)]
    pub shaping: Shaping,
    /// Number of functions before it.
    #[serde(skip)]
    pub(crate) behind: usize,
}
