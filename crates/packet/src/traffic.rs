//! Traffic profiles (r, b) and the token bucket.
//!
//! A profile allows at most `r * t + b` in every interval of length `t` (Rathore et al. 2022,
//! section 4.2, after Turner 1986). A profile limits packets, bits, or both; each packet must
//! conform to all limits.
//!
//! [`TokenBucket`] decides on each packet, for a policer or a shaper. The front door's policer
//! implements the same in eBPF. A [`Level`] observes traffic and finds the smallest burst with
//! which all packets would have conformed. All arithmetic uses whole numbers, so no rounding error
//! grows over time. Time is an argument: nanoseconds of a clock. A bucket earns no credit while the
//! clock steps back.

mod profile;
mod token_bucket;

use bytemuck::{Pod, Zeroable};

pub use profile::{Bucket, Profile, ProfileError, Quantity};
pub use token_bucket::TokenBucket;

/// Credit of one packet or one bit. A rate of 1 a second earns a credit of 1 in each nanosecond, so
/// all credit is a whole number.
pub const CREDIT: u64 = 1_000_000_000;

/// Fill level of an observing bucket: every packet fills it, and the rate drains it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Level {
    /// Present level, in units of 1 / [`CREDIT`] of a packet or bit.
    pub now: u64,
    /// Highest level so far.
    pub most: u64,
}

impl Level {
    /// Returns the smallest burst with which all traffic would have conformed: packets or bits,
    /// rounded up.
    pub fn burst(&self) -> u64 {
        self.most.div_ceil(CREDIT)
    }
}
