//! The bucket that only looks on.

use super::{Bucket, CREDIT, Profile};

/// What one bucket of a [`Meter`] has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// What is in the bucket now, in units of 1 / [`CREDIT`] of a packet or bit.
    pub now: u64,
    /// The most that was ever in it.
    pub most: u64,
}

impl Level {
    /// The least burst with which everything would have conformed: packets or bits, rounded up.
    pub fn burst(&self) -> u64 {
        self.most.div_ceil(CREDIT)
    }
}

/// A meter of conformance: a leaky bucket that every packet fills and the profile's rate drains.
///
/// It never turns anything down, so how full it ever got is the largest of `A(s, t) - r * (t - s)` over all intervals:
/// the burst that the traffic really had. It shares no code with [`TokenBucket`](super::TokenBucket), which it is there
/// to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meter {
    packets: Option<Bucket>,
    bits: Option<Bucket>,
    packet_level: Level,
    bit_level: Level,
    last_ns: u64,
    seen: u64,
    above: u64,
}

impl Meter {
    /// An empty meter.
    pub fn new(profile: &Profile) -> Self {
        Self {
            packets: profile.packets,
            bits: profile.bits,
            packet_level: Level::default(),
            bit_level: Level::default(),
            last_ns: 0,
            seen: 0,
            above: 0,
        }
    }

    /// Counts one packet; whether the traffic so far conforms with it. What does not conform stays in the bucket, so
    /// all that follows too soon does not conform either.
    pub fn see(&mut self, now_ns: u64, bytes: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        let mut within = true;
        let parts = [
            (self.packets, &mut self.packet_level, 1),
            (self.bits, &mut self.bit_level, bytes.saturating_mul(8)),
        ];
        for (bucket, level, count) in parts {
            let Some(bucket) = bucket else { continue };
            let drained = level
                .now
                .saturating_sub(elapsed_ns.saturating_mul(bucket.rate()));
            level.now = drained.saturating_add(count.saturating_mul(CREDIT));
            level.most = level.most.max(level.now);
            within &= level.now <= bucket.full();
        }
        self.seen += 1;
        self.above += u64::from(!within);
        within
    }

    /// Packets seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Packets with which the traffic did not conform.
    pub fn above(&self) -> u64 {
        self.above
    }

    /// How full the bucket of packets got.
    pub fn packets(&self) -> Option<Level> {
        self.packets.map(|_| self.packet_level)
    }

    /// How full the bucket of bits got.
    pub fn bits(&self) -> Option<Level> {
        self.bits.map(|_| self.bit_level)
    }
}
