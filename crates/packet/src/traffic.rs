//! Traffic profiles (r, b): token bucket and conformance meter.
//!
//! A profile allows at most `r * t + b` in every interval of length `t` (Rathore et al. 2022, section 4.2, after Turner
//! 1986). It is stated in packets, in bits, or in both at once, and then both hold for each packet.
//!
//! [`TokenBucket`] decides packet by packet, as a policer or a shaper; the policer of the front door is its twin in
//! eBPF. [`Meter`] only looks on: it tells the least burst with which the packets it saw would have conformed. All
//! reckoning is in whole numbers, so nothing is lost to rounding however long a bucket lives. Time is an argument:
//! nanoseconds of any clock that does not go backwards; one that does is taken to stand.

mod meter;
mod profile;
mod token_bucket;

pub use meter::{Level, Meter};
pub use profile::{Bucket, Profile, ProfileError, Quantity};
pub use token_bucket::TokenBucket;

/// Credit of one packet, and of one bit. A rate of one a second then earns 1 of credit in each nanosecond, so that all
/// credit is a whole number.
pub const CREDIT: u64 = 1_000_000_000;
