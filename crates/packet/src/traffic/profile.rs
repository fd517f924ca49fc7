//! A traffic profile.

use serde::{Deserialize, Serialize};

use super::CREDIT;

/// Rate and burst of one quantity: packets or bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "UncheckedBucket")]
pub struct Bucket {
    rate: u64,
    burst: u64,
}

/// A bucket of a file, before the range check.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Bucket"))]
struct UncheckedBucket {
    /// The rate per second.
    rate: u64,
    /// The burst.
    burst: u64,
}

impl TryFrom<UncheckedBucket> for Bucket {
    type Error = ProfileError;

    fn try_from(UncheckedBucket { rate, burst }: UncheckedBucket) -> Result<Self, ProfileError> {
        Self::new(rate, burst)
    }
}

/// The unit of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Packets.
    Packets,
    /// Bits of frames, from the Ethernet header on; without preamble and frame check sequence.
    Bits,
}

/// A rate or burst outside the range of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A rate of zero, or above [`Bucket::MAX_RATE`].
    #[error("a rate of {0} is not in 1 to {most}, the range of a token bucket", most = Bucket::MAX_RATE)]
    Rate(u64),
    /// A burst of zero, or above [`Bucket::MAX_BURST`].
    #[error("a burst of {0} is not in 1 to {most}, the range of a token bucket", most = Bucket::MAX_BURST)]
    Burst(u64),
}

impl Bucket {
    /// The highest rate per second: 10 Tbit/s.
    pub const MAX_RATE: u64 = 10_000_000_000_000;
    /// The largest burst: its credit, plus the credit earned in one fill time, fits in 64 bits.
    pub const MAX_BURST: u64 = 1 << 33;

    /// Makes a bucket with `rate` per second and `burst`.
    pub const fn new(rate: u64, burst: u64) -> Result<Self, ProfileError> {
        if rate == 0 || rate > Self::MAX_RATE {
            return Err(ProfileError::Rate(rate));
        }
        if burst == 0 || burst > Self::MAX_BURST {
            return Err(ProfileError::Burst(burst));
        }
        Ok(Self { rate, burst })
    }

    /// Returns the rate per second, which is the credit per nanosecond.
    pub const fn rate(self) -> u64 {
        self.rate
    }

    /// Returns the burst.
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// Returns the credit of a full bucket.
    pub const fn full(self) -> u64 {
        self.burst * CREDIT
    }

    /// Returns the time to fill an empty bucket, ns, rounded up.
    pub const fn fill_ns(self) -> u64 {
        self.full().div_ceil(self.rate)
    }
}

/// The profile of a chain: in packets, in bits, or in both. Without a bucket, all traffic conforms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Profile {
    /// The bucket of packets.
    pub packets: Option<Bucket>,
    /// The bucket of bits.
    pub bits: Option<Bucket>,
}

impl Profile {
    /// Returns whether all traffic conforms.
    pub fn is_unlimited(&self) -> bool {
        self.packets.is_none() && self.bits.is_none()
    }

    /// Returns the buckets of the profile.
    pub fn buckets(&self) -> impl Iterator<Item = (Quantity, Bucket)> {
        let packets = self.packets.map(|bucket| (Quantity::Packets, bucket));
        let bits = self.bits.map(|bucket| (Quantity::Bits, bucket));
        packets.into_iter().chain(bits)
    }
}
