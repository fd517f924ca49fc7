//! The token bucket of a policer or shaper.

use super::{Bucket, CREDIT, Profile};

/// A token bucket over a [`Profile`]. A packet conforms if every bucket has credit for it, and
/// takes credit from all buckets or from none. `kernel/src/bpf/policer.h` implements the same.
///
/// In any interval of length t, at most `r * t + b` conforms. It never refuses a packet that fits
/// this limit since the bucket was last empty. It starts full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    packets: Fill,
    bits: Fill,
    /// Time of the latest packet, ns.
    last_ns: u64,
}

/// State of one bucket. A missing bucket is always full and its cost is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fill {
    /// Credit earned per nanosecond.
    rate: u64,
    full: u64,
    /// After this time the bucket is full from any level. Credit earned in less time fits in 64
    /// bits.
    fill_ns: u64,
    credit: u64,
    /// Credit of one packet or bit; 0 without a bucket.
    each: u64,
}

impl Fill {
    fn new(bucket: Option<Bucket>) -> Self {
        match bucket {
            Some(bucket) => Self {
                rate: bucket.rate(),
                full: bucket.full(),
                fill_ns: bucket.fill_ns(),
                credit: bucket.full(),
                each: CREDIT,
            },
            None => Self {
                rate: 1,
                full: 0,
                fill_ns: 0,
                credit: 0,
                each: 0,
            },
        }
    }

    #[inline]
    fn after(&self, elapsed_ns: u64) -> u64 {
        if elapsed_ns >= self.fill_ns {
            return self.full;
        }
        (self.credit + elapsed_ns * self.rate).min(self.full)
    }

    /// Returns the cost of that many packets or bits.
    #[inline]
    fn cost(&self, count: u64) -> u64 {
        count.saturating_mul(self.each)
    }

    /// Returns the time from the latest packet until there is credit for `cost`, ns. `None` for
    /// never.
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
            packets: Fill::new(profile.packets),
            bits: Fill::new(profile.bits),
            last_ns: 0,
        }
    }

    /// Returns whether `packets` with `bytes` together conform at `now_ns`. If so, takes their
    /// credit. They count one by one but conform together or not at all, as the segments of one
    /// buffer do.
    #[inline]
    pub fn take(&mut self, now_ns: u64, packets: u64, bytes: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        let held = (self.packets.after(elapsed_ns), self.bits.after(elapsed_ns));
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

    /// Returns the time from which [`Self::take`] would accept this much, ns; in the past if it
    /// would already. `None` for never, because it exceeds the burst.
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
