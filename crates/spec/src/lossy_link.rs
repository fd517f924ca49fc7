//! Configuration of a `lossy-link`.

use serde::{Deserialize, Serialize};

/// Most packets that a burst of losses may have in the mean.
pub const MAX_BURST: u32 = 1000;

/// Configuration of a `lossy-link` function: the model of Gilbert ("Capacity of a burst-noise channel", 1960) with a bad state that loses
/// everything and a good one that loses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossyLinkConfig {
    /// Share of packets that are lost, millionths.
    pub loss_ppm: u32,
    /// Packets in a row that are lost, in the mean; `None` for losses that know nothing of each other.
    pub burst: Option<u32>,
    /// What the random numbers start from; `None` for something else each time.
    pub seed: Option<u64>,
}
