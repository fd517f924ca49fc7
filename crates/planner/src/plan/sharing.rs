//! How a chain's worker shares its core.

use myelin_spec::SharingPolicy;
use serde::{Deserialize, Serialize};

/// The turns of a chain's worker on its core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharingPlan {
    /// The policy that chooses the next worker.
    pub policy: SharingPolicy,
    /// Longest turn of one of the chain's processes while others have packets, ns, at the predicted
    /// cost of a packet; absent if it depends on the deadlines of packets.
    pub longest_turn_ns: Option<u64>,
    /// The reason for this length.
    pub why: String,
}
