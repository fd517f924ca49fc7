//! The profile and the queue of a shaper.

use myelin_packet::traffic::{Bucket, Profile};
use serde::{Deserialize, Serialize};

/// Rate and burst of packets or of bits, as plain numbers for messages between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limit {
    /// Packets or bits a second.
    pub rate: u64,
    /// Packets or bits at once.
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
    /// Limit of bits. A frame counts with its Ethernet header, without check sequence.
    pub bits: Option<Limit>,
    /// The most packets that wait in the queue.
    pub queue: u32,
    /// The longest wait of a packet, ns.
    pub delay_ns: u64,
    /// The largest lateness of a departure that later departures compensate, T ns: in any time t
    /// the traffic is at most that of the profile in t + T. With 0, a late departure delays all
    /// later ones.
    #[serde(default)]
    pub tolerance_ns: u64,
}

impl Shaping {
    /// Creates the shaper of a profile. `queue` is the longest queue in packets, `delay_ns` the
    /// longest wait.
    pub fn new(profile: &Profile, queue: u32, delay_ns: u64) -> Self {
        Self {
            packets: profile.packets.map(Limit::from),
            bits: profile.bits.map(Limit::from),
            queue,
            delay_ns,
            tolerance_ns: 0,
        }
    }

    /// Returns the profile as token buckets. Ignores a limit that no bucket can have; only a
    /// foreign process could send such a limit.
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
    fn profile_round_trips_through_shaping() {
        let profile = Profile {
            packets: Bucket::new(20_000, 4).ok(),
            bits: Bucket::new(1_000_000, 12_112).ok(),
        };
        assert_eq!(Shaping::new(&profile, 64, 1000).profile(), profile);
        let none = Shaping::new(&Profile::default(), 64, 1000);
        assert!(none.profile().is_unlimited());
    }
}
