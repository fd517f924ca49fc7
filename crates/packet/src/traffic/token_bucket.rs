//! The bucket that decides.

use super::{Bucket, CREDIT, Profile};

/// A token bucket over a [`Profile`]: a packet conforms when every bucket has the credit for it,
/// and takes it from all of them or from none. Twin: `kernel/src/bpf/policer.h`.
///
/// Over any interval of length t it lets through at most `r * t + b`, and it never turns down a
/// packet for which that would leave room since the last packet that emptied it. It starts full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    packets: Fill,
    bits: Fill,
    /// Time of the latest packet, ns.
    last_ns: u64,
}

/// One bucket's state; a bucket that is not there is always full, and costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fill {
    /// Credit earned in a nanosecond.
    rate: u64,
    full: u64,
    /// After so long it is full whatever was in it; what is earned in less than that fits into 64
    /// bits.
    fill_ns: u64,
    credit: u64,
    /// Credit of one packet or bit: 0 where there is no bucket.
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

    /// What so many packets or bits cost.
    #[inline]
    fn cost(&self, count: u64) -> u64 {
        count.saturating_mul(self.each)
    }

    /// How long from the latest packet until there is credit for `cost`, ns; `None`: never.
    fn wait_ns(&self, cost: u64) -> Option<u64> {
        if cost > self.full {
            return None;
        }
        Some(cost.saturating_sub(self.credit).div_ceil(self.rate))
    }
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(profile: &Profile) -> Self {
        Self {
            packets: Fill::new(profile.packets),
            bits: Fill::new(profile.bits),
            last_ns: 0,
        }
    }

    /// Whether `packets` of together `bytes` conform at `now_ns`. If so, they are taken out of the
    /// bucket; they count one by one, but go or stay together, as the segments of one buffer do.
    #[inline]
    pub fn take(&mut self, now_ns: u64, packets: u64, bytes: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        let held = (self.packets.after(elapsed_ns), self.bits.after(elapsed_ns));
        let cost = self.cost(packets, bytes);
        let conform = held.0 >= cost.0 && held.1 >= cost.1;
        // What is turned down costs nothing, not even a write: the same is earned later.
        if conform {
            self.packets.credit = held.0 - cost.0;
            self.bits.credit = held.1 - cost.1;
            self.last_ns = self.last_ns.max(now_ns);
        }
        conform
    }

    /// From when on [`Self::take`] would take so much, ns: in the past if it would have already.
    /// `None`: never, since it is more than the burst.
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
