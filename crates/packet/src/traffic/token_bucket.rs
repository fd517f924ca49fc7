//! The token bucket of a policer or shaper.

use super::{Bucket, CREDIT, Profile};

/// A token bucket over a [`Profile`]. A packet conforms if every bucket has credit for it, and
/// takes credit from all buckets or from none. `kernel/src/bpf/policer.h` implements the same
/// algorithm.
///
/// In any interval of length t, at most `r * t + b` conforms. The bucket refuses a packet only if
/// that packet would exceed this limit in some interval. A new bucket is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    packets: BucketState,
    bits: BucketState,
    /// Time of the latest packet, ns.
    last_ns: u64,
}

/// State of one bucket. A missing bucket is always full and its cost is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BucketState {
    /// Credit earned per nanosecond.
    rate: u64,
    /// Credit of a full bucket.
    full: u64,
    /// After this time the bucket is full from any level. Credit earned in less time fits in 64
    /// bits.
    fill_ns: u64,
    credit: u64,
    /// Credit of one packet or bit; 0 without a bucket.
    unit_cost: u64,
}

impl BucketState {
    fn new(bucket: Option<Bucket>) -> Self {
        match bucket {
            Some(bucket) => Self {
                rate: bucket.rate(),
                full: bucket.full(),
                fill_ns: bucket.fill_ns(),
                credit: bucket.full(),
                unit_cost: CREDIT,
            },
            None => Self {
                rate: 1,
                full: 0,
                fill_ns: 0,
                credit: 0,
                unit_cost: 0,
            },
        }
    }

    #[inline]
    fn credit_after(&self, elapsed_ns: u64) -> u64 {
        if elapsed_ns >= self.fill_ns {
            return self.full;
        }
        (self.credit + elapsed_ns * self.rate).min(self.full)
    }

    /// Returns the credit that `count` packets or bits cost.
    #[inline]
    fn cost(&self, count: u64) -> u64 {
        count.saturating_mul(self.unit_cost)
    }

    /// Returns the time from the latest packet until there is credit for `cost`, ns. `None` if
    /// `cost` exceeds a full bucket.
    fn wait_ns(&self, cost: u64) -> Option<u64> {
        if cost > self.full {
            return None;
        }
        Some(cost.saturating_sub(self.credit).div_ceil(self.rate))
    }
}

impl TokenBucket {
    /// Makes a full bucket.
    pub fn new(profile: &Profile) -> Self {
        Self {
            packets: BucketState::new(profile.packets),
            bits: BucketState::new(profile.bits),
            last_ns: 0,
        }
    }

    /// Returns whether `packets` with `bytes` together conform at `now_ns`. If so, takes their
    /// credit. The packets conform together or not at all, like the segments of one buffer.
    #[inline]
    pub fn take(&mut self, now_ns: u64, packets: u64, bytes: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        let held = (
            self.packets.credit_after(elapsed_ns),
            self.bits.credit_after(elapsed_ns),
        );
        let cost = self.cost(packets, bytes);
        let conform = held.0 >= cost.0 && held.1 >= cost.1;
        // A refused packet costs nothing, not even a write: later calls earn the same credit.
        if conform {
            self.packets.credit = held.0 - cost.0;
            self.bits.credit = held.1 - cost.1;
            self.last_ns = self.last_ns.max(now_ns);
        }
        conform
    }

    /// Returns the earliest time at which [`Self::take`] accepts these packets, ns. The time may be
    /// in the past. `None` if the packets exceed the burst.
    pub fn eligible_ns(&self, packets: u64, bytes: u64) -> Option<u64> {
        let cost = self.cost(packets, bytes);
        let wait_ns = self
            .packets
            .wait_ns(cost.0)?
            .max(self.bits.wait_ns(cost.1)?);
        Some(self.last_ns.saturating_add(wait_ns))
    }

    #[inline]
    fn cost(&self, packets: u64, bytes: u64) -> (u64, u64) {
        (
            self.packets.cost(packets),
            self.bits.cost(bytes.saturating_mul(8)),
        )
    }
}
