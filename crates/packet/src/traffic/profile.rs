//! A traffic profile.

use serde::{Deserialize, Serialize};

use super::CREDIT;

/// Rate and burst of one quantity: packets or bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Bucket {
    rate: u64,
    burst: u64,
}

/// A bucket as somebody wrote it.
#[derive(Deserialize)]
struct Written {
    rate: u64,
    burst: u64,
}

impl TryFrom<Written> for Bucket {
    type Error = ProfileError;

    fn try_from(Written { rate, burst }: Written) -> Result<Self, ProfileError> {
        Self::new(rate, burst)
    }
}

/// What a bucket counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Packets.
    Packets,
    /// Bits of frames, from the Ethernet header on; without preamble and frame check sequence.
    Bits,
}

/// A rate or a burst that no bucket can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A rate of zero, or above [`Bucket::MAX_RATE`].
    #[error("a rate of {0} is not in 1 to {most}, what a token bucket can count", most = Bucket::MAX_RATE)]
    Rate(u64),
    /// A burst of zero, or above [`Bucket::MAX_BURST`].
    #[error("a burst of {0} is not in 1 to {most}, what a token bucket can count", most = Bucket::MAX_BURST)]
    Burst(u64),
}

impl Bucket {
    /// The highest rate, a second: 10 Tbit/s.
    pub const MAX_RATE: u64 = 10_000_000_000_000;
    /// The largest burst: its credit, and what is earned on the way to it, fit into 64 bits.
    pub const MAX_BURST: u64 = 1 << 33;

    /// A bucket that earns `rate` a second and holds `burst`.
    pub const fn new(rate: u64, burst: u64) -> Result<Self, ProfileError> {
        if rate == 0 || rate > Self::MAX_RATE {
            return Err(ProfileError::Rate(rate));
        }
        if burst == 0 || burst > Self::MAX_BURST {
            return Err(ProfileError::Burst(burst));
        }
        Ok(Self { rate, burst })
    }

    /// What it earns in a second; its credit in a nanosecond.
    pub const fn rate(self) -> u64 {
        self.rate
    }

    /// What it holds.
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// The credit of a full bucket.
    pub const fn full(self) -> u64 {
        self.burst * CREDIT
    }

    /// How long an empty bucket takes to fill, ns, rounded up.
    pub const fn fill_ns(self) -> u64 {
        self.full().div_ceil(self.rate)
    }
}

/// What a chain may send: in packets, in bits, or in both at once. With neither it may send
/// anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The bucket of packets.
    pub packets: Option<Bucket>,
    /// The bucket of bits.
    pub bits: Option<Bucket>,
}

impl Profile {
    /// Whether everything conforms.
    pub fn is_unlimited(&self) -> bool {
        self.packets.is_none() && self.bits.is_none()
    }

    /// The buckets that there are.
    pub fn buckets(&self) -> impl Iterator<Item = (Quantity, Bucket)> {
        let packets = self.packets.map(|bucket| (Quantity::Packets, bucket));
        let bits = self.bits.map(|bucket| (Quantity::Bits, bucket));
        packets.into_iter().chain(bits)
    }
}
