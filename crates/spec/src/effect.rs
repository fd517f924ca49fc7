//! What a function does to a chain's traffic, as data: planner, agent and reports go by it, and know no kinds.

use serde::{Deserialize, Serialize};

/// Shares of packets are counted in so many parts of one.
pub const MILLIONTHS: u32 = crate::keys::MILLIONTHS;

/// What a function does to traffic, at most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effect {
    /// Packets that it makes beside those that come.
    pub added: AddedPackets,
    /// By how much it makes packets longer.
    pub growth: Growth,
    /// Packets that it may have kept and sends at once when others come.
    pub released: u32,
    /// For how long it may hold a packet back, ns; `None` where it does not.
    pub held_ns: Option<u64>,
    /// Whether it sends answers back to the senders of packets, in user space.
    pub answers_senders: bool,
    /// What it leaves on every byte of the payload, by exclusive or.
    pub payload_key: u8,
    /// What it costs in either space beside what its kind costs there.
    pub busy: Cost,
    /// What its user should know, as what follows its name in a sentence.
    pub caution: Option<String>,
}

/// A cost that grows with the frame.
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
    /// A cost of so many ns per packet and per byte.
    pub const fn new(per_packet_ns: f64, per_byte_ns: f64) -> Self {
        Self {
            per_packet_ns,
            per_byte_ns,
        }
    }

    /// Both, one after the other.
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

/// Packets that a function makes: repair packets, copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddedPackets {
    /// For each packet that comes, in [`MILLIONTHS`].
    pub parts: u32,
    /// Those made for so many packets may leave together, and one more that a timer sends.
    pub window: u8,
    /// Those that leave together where a run of packets ends, when the rates alone tell nothing of it.
    pub at_once: u64,
}

/// By how much a function makes a packet longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Growth {
    /// Bytes more, at most.
    pub bytes: u64,
    /// The longest IP packet that it makes, bytes: it drops what would be longer. One that it leaves alone may be longer than that.
    pub mtu: u64,
}

impl Growth {
    /// By so many bytes, up to so long a packet.
    pub(crate) fn by(bytes: u64, mtu: u16) -> Self {
        Self {
            bytes,
            mtu: mtu.into(),
        }
    }
}
