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
    /// Where the shaper is.
    pub place: ShaperPlace,
    /// The shaper's profile, and the limits of its queue. The profile is the agreed profile plus
    /// the packets and bytes that earlier functions add.
    #[serde(flatten)]
    pub shaping: Shaping,
    /// Number of functions before the shaper.
    #[serde(skip)]
    pub(crate) functions_before: usize,
}
