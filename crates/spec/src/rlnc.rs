//! The configurations of `rlnc-encode`, `rlnc-recode` and `rlnc-decode`: random linear network coding.

use serde::{Deserialize, Serialize};

use crate::mtu::DEFAULT_MTU;
use crate::words::word_enum;

word_enum! {
    /// Which source packets a repair packet is made of.
    #[derive(Default)]
    pub enum RlncCode {
        /// The latest ones.
        #[default]
        Window = "window",
        /// Those of one block.
        Block = "block",
    }
}

word_enum! {
    /// In which order a decoder delivers.
    #[derive(Default)]
    pub enum RlncDelivery {
        /// Each packet when it comes or is worked out.
        #[default]
        Immediate = "immediate",
        /// In the order in which the encoder had them.
        InOrder = "in-order",
    }
}

word_enum! {
    /// What a recoder does with coded packets that come.
    #[derive(Default)]
    pub enum RlncCoded {
        /// They go on, and recoded ones besides.
        #[default]
        Pass = "pass",
        /// A recoded one goes in place of each.
        Replace = "replace",
    }
}

/// Redundancies are kept in so many parts of one.
pub const REDUNDANCY_PARTS: u32 = 1_000_000;
/// Most coded packets for each source packet.
pub const MAX_REDUNDANCY: u32 = 4;
/// Most source packets in one coded packet.
pub const MAX_WINDOW: u8 = 64;
/// Longest IP packet that may be asked for, bytes: what a worker's frame holds beside its headroom.
pub const MAX_MTU: u16 = 1700;

/// Configuration of an `rlnc-encode` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RlncEncodeConfig {
    /// Window or block.
    pub code: RlncCode,
    /// Source packets of a window, 1 to [`MAX_WINDOW`].
    pub window: u8,
    /// Source packets of a block, 1 to [`MAX_WINDOW`].
    pub block: u8,
    /// Repair packets for each source packet, in parts of [`REDUNDANCY_PARTS`].
    pub redundancy: u32,
    /// Density threshold, 0 to 15: a coefficient is not zero with probability (density + 1) / 16.
    pub density: u8,
    /// How long after the last source packet those without a repair packet get one, ns.
    pub flush_ns: u64,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
}

impl Default for RlncEncodeConfig {
    fn default() -> Self {
        Self {
            code: RlncCode::Window,
            window: 8,
            block: 32,
            redundancy: REDUNDANCY_PARTS / 4,
            density: 15,
            flush_ns: 1_000_000,
            mtu: DEFAULT_MTU,
        }
    }
}

impl RlncEncodeConfig {
    /// The part that the state depends on.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            code: self.code,
            window: self.window,
            block: self.block,
            ..Self::default()
        }
    }
}

/// Configuration of an `rlnc-recode` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RlncRecodeConfig {
    /// Packets that are combined, 1 to [`MAX_WINDOW`].
    pub window: u8,
    /// Recoded packets for each source packet, in parts of [`REDUNDANCY_PARTS`].
    pub redundancy: u32,
    /// What becomes of coded packets that come.
    pub coded: RlncCoded,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
}

impl Default for RlncRecodeConfig {
    fn default() -> Self {
        Self {
            window: 8,
            redundancy: REDUNDANCY_PARTS / 4,
            coded: RlncCoded::Pass,
            mtu: DEFAULT_MTU,
        }
    }
}

impl RlncRecodeConfig {
    /// The part that the state depends on.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            window: self.window,
            ..Self::default()
        }
    }
}

/// Configuration of an `rlnc-decode` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RlncDecodeConfig {
    /// Order of delivery.
    pub delivery: RlncDelivery,
    /// In order: how long a packet waits for those before it at most, ns.
    pub timeout_ns: u64,
    /// Source packets it keeps; rounded up to a power of two.
    pub buffer: u16,
}

impl Default for RlncDecodeConfig {
    fn default() -> Self {
        Self {
            delivery: RlncDelivery::Immediate,
            timeout_ns: 10_000_000,
            buffer: 256,
        }
    }
}

impl RlncDecodeConfig {
    /// The part that the state depends on.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            buffer: self.buffer,
            ..Self::default()
        }
    }
}
