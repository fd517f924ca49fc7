//! The effect of a function on its chain's traffic, as data. So planner, agent and reports need to
//! know no kind.

use serde::{Deserialize, Serialize};

/// Shares of packets are stored in millionths.
pub const MILLIONTHS: u32 = crate::keys::MILLIONTHS;

/// The largest effect of a function on traffic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effect {
    /// Packets that it creates.
    pub added_packets: AddedPackets,
    /// Bytes that it adds to a packet.
    pub added_bytes: AddedBytes,
    /// Most held packets that it sends at once when others arrive.
    pub released: u32,
    /// The longest time that it holds a packet, ns; `None` if it holds none.
    pub held_ns: Option<u64>,
    /// Whether it answers the senders of packets, in user space.
    pub answers_senders: bool,
    /// The key that remains XORed with every byte of the payload.
    pub payload_key: u8,
    /// Its cost in either space, in addition to its kind's.
    pub busy: Cost,
    /// A warning for the user, to print after the function's name.
    pub caution: Option<String>,
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

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(
            self.per_packet_ns + other.per_packet_ns,
            self.per_byte_ns + other.per_byte_ns,
        )
    }

    /// The cost of a frame of `bytes` bytes, ns.
    pub fn at_ns(&self, bytes: u64) -> f64 {
        self.per_packet_ns + self.per_byte_ns * bytes as f64
    }
}

/// Packets that a function creates: repair packets, copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddedPackets {
    /// For each packet that arrives, in [`MILLIONTHS`].
    pub parts: u32,
    /// The most arrivals whose created packets leave together; a timer may add one more.
    pub window: u8,
    /// Packets that leave together at the end of a run of packets.
    pub at_once: u64,
}

/// Bytes that a function adds to a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddedBytes {
    /// The most bytes.
    pub bytes: u64,
    /// The longest IP packet that it creates, bytes; it drops longer ones. A packet that it does
    /// not change may be longer.
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
