//! What a shaper holds a chain's departing packets to.

use myelin_packet::traffic::{Bucket, Profile};
use serde::{Deserialize, Serialize};

/// Rate and burst of packets or of bits, as plain numbers: they travel between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limit {
    /// A second.
    pub rate: u64,
    /// At once.
    pub burst: u64,
}

impl From<Bucket> for Limit {
    fn from(bucket: Bucket) -> Self {
        Self {
            rate: bucket.rate(),
            burst: bucket.burst(),
        }
    }
}

/// A shaper's profile, and the bounds of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shaping {
    /// Limit of packets.
    pub packets: Option<Limit>,
    /// Limit of bits, of frames with their Ethernet header, without check sequence.
    pub bits: Option<Limit>,
    /// Packets that may wait.
    pub queue: u32,
    /// How long a packet may wait, ns.
    pub delay_ns: u64,
    /// By how much a departure may be late and be made good, ns: in any time t as much leaves as
    /// the profile allows in t and this together. With 0, a late departure delays all later ones.
    #[serde(default)]
    pub tolerance_ns: u64,
}

impl Shaping {
    /// Holds to `profile`, with a queue of so many packets for so long.
    pub fn new(profile: &Profile, queue: u32, delay_ns: u64) -> Self {
        Self {
            packets: profile.packets.map(Limit::from),
            bits: profile.bits.map(Limit::from),
            queue,
            delay_ns,
            tolerance_ns: 0,
        }
    }

    /// As buckets. A limit that no bucket can have, which only a foreign process could send, limits
    /// nothing.
    pub fn profile(&self) -> Profile {
        let bucket = |limit: Option<Limit>| Bucket::new(limit?.rate, limit?.burst).ok();
        Profile {
            packets: bucket(self.packets),
            bits: bucket(self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_comes_back() {
        let profile = Profile {
            packets: Bucket::new(20_000, 4).ok(),
            bits: Bucket::new(1_000_000, 12_112).ok(),
        };
        assert_eq!(Shaping::new(&profile, 64, 1000).profile(), profile);
        let none = Shaping::new(&Profile::default(), 64, 1000);
        assert!(none.profile().is_unlimited());
    }
}
