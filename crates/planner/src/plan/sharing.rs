//! How a chain's worker and black boxes share a core.

use myelin_spec::{SharingMechanism, SharingPolicy};
use serde::{Deserialize, Serialize};

/// The turns of a chain's worker or of one of its black boxes on their core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharingPlan {
    /// The policy that chooses the next worker.
    pub policy: SharingPolicy,
    /// How the core goes from one task to the next. `auto`: the workers hand it over. If the kernel
    /// refuses real-time priorities, `sharing.mechanism: auto` becomes `weights` at deployment.
    #[serde(default)]
    pub mechanism: SharingMechanism,
    /// Longest turn of one of the chain's processes while others have packets, ns, at the predicted
    /// cost of a packet; absent if it depends on the deadlines of packets, or on the unknown cost
    /// of a black box.
    pub longest_turn_ns: Option<u64>,
    /// The reason for this length.
    pub why: String,
}

/// The turns of a black box on its core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlackBoxSharing {
    /// The function.
    pub function: String,
    /// The core.
    pub core: u32,
    /// Measured cost of a packet of [`Plan::frame_bytes`](super::Plan::frame_bytes) in the program,
    /// ns, from which the policy starts; absent if `myelin calibrate` has not measured the program.
    #[serde(default)]
    pub cost_ns: Option<f64>,
    /// The turns.
    pub turns: SharingPlan,
}
