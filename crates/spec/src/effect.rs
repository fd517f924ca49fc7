//! The effect of a function on its chain's traffic, as data, so that planner, agent and reports
//! need no code for each kind.

use myelin_packet::FiveTuple;
use serde::{Deserialize, Serialize};

/// Shares of packets are stored in millionths.
pub const MILLIONTHS: u32 = crate::keys::MILLIONTHS;

/// The largest effect of a function on traffic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effect {
    /// Packets that the function creates.
    pub added_packets: AddedPackets,
    /// Bytes that the function adds to a packet.
    pub added_bytes: AddedBytes,
    /// Most held packets that the function sends at once when another packet arrives.
    pub released: u32,
    /// The longest time that the function holds a packet, ns; `None` if it holds no packet.
    pub held_ns: Option<u64>,
    /// Whether the function, in user space, answers the senders of packets.
    pub answers_senders: bool,
    /// The key that remains XORed with every byte of the payload.
    pub payload_key: u8,
    /// The function's cost in either space, in addition to the cost of its kind.
    pub busy: Cost,
    /// A warning for the user, to print after the function's name.
    pub caution: Option<String>,
    /// Packets that the function drops and that hosts need, each with such a warning.
    pub needed_drops: Vec<(FiveTuple, String)>,
}

/// A cost with a part for each packet and a part for each byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// For each packet, ns.
    pub per_packet_ns: f64,
    /// For each byte of the frame, ns.
    pub per_byte_ns: f64,
}

impl Cost {
    /// Creates a cost, ns a packet and ns a byte.
    pub const fn new(per_packet_ns: f64, per_byte_ns: f64) -> Self {
        Self {
            per_packet_ns,
            per_byte_ns,
        }
    }

    /// Returns the sum of two costs.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(
            self.per_packet_ns + other.per_packet_ns,
            self.per_byte_ns + other.per_byte_ns,
        )
    }

    /// Returns the cost of a frame of `bytes` bytes, ns.
    pub fn at_ns(&self, bytes: u64) -> f64 {
        self.per_packet_ns + self.per_byte_ns * bytes as f64
    }
}

/// Packets that a function creates: repair packets, copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddedPackets {
    /// Created packets for each packet that arrives, in [`MILLIONTHS`].
    pub parts: u32,
    /// The most arrivals whose created packets leave together; a timer may add one more.
    pub window: u8,
    /// Created packets that leave together at the end of a block.
    pub at_once: u64,
}

/// Bytes that a function adds to a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddedBytes {
    /// The most bytes that the function adds to one packet.
    pub bytes: u64,
    /// The longest IP packet that the function creates, bytes; it drops longer packets. A packet
    /// that the function does not change may be longer.
    pub mtu: u64,
}

impl AddedBytes {
    /// Creates the effect from the bytes and the longest packet.
    pub(crate) fn new(bytes: u64, mtu: u16) -> Self {
        Self {
            bytes,
            mtu: mtu.into(),
        }
    }
}
