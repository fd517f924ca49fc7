//! Traffic profiles (r, b) and the token bucket.
//!
//! A profile allows at most `r * t + b` in every interval of length `t` (Rathore et al. 2022,
//! section 4.2, after Turner 1986). It is stated in packets, in bits, or in both at once, and then
//! both hold for each packet.
//!
//! [`TokenBucket`] decides packet by packet, as a policer or a shaper; the policer of the front
//! door is its twin in eBPF. A [`Level`] is what a bucket that only looks on tells: the least burst
//! with which the packets would have conformed. All reckoning is in whole numbers, so nothing is
//! lost to rounding however long a bucket lives. Time is an argument: nanoseconds of any clock that
//! does not go backwards; one that does is taken to stand.

mod profile;
mod token_bucket;

use bytemuck::{Pod, Zeroable};

pub use profile::{Bucket, Profile, ProfileError, Quantity};
pub use token_bucket::TokenBucket;

/// Credit of one packet, and of one bit. A rate of one a second then earns 1 of credit in each
/// nanosecond, so that all credit is a whole number.
pub const CREDIT: u64 = 1_000_000_000;

/// How full a bucket that only looks on got: every packet fills it, and the rate drains it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
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
