//! From a traffic profile to the work that it brings.

use myelin_traffic::Profile;

use crate::calculus::{ArrivalCurve, LeakyBucket};

/// The shortest frame, bytes, without frame check sequence.
pub(super) const SHORTEST: u128 = 60;
/// The longest one on a link with an MTU of 1500 B, with a VLAN tag.
pub(super) const LONGEST: u128 = 1518;

/// What packets cost at a server, at worst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// For each packet, fs.
    pub packet_fs: u128,
    /// For each byte of the frame, fs.
    pub byte_fs: u128,
}

impl Work {
    /// Both together; at most what can be counted.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            packet_fs: self.packet_fs.saturating_add(other.packet_fs),
            byte_fs: self.byte_fs.saturating_add(other.byte_fs),
        }
    }

    /// The greater of each.
    pub(super) fn or_more(self, other: Self) -> Self {
        Self {
            packet_fs: self.packet_fs.max(other.packet_fs),
            byte_fs: self.byte_fs.max(other.byte_fs),
        }
    }

    /// Of the longest frame, fs.
    pub fn most_fs(&self) -> u128 {
        self.of(LONGEST)
    }

    /// Of a frame of so many bytes, fs.
    pub(super) fn of(&self, bytes: u128) -> u128 {
        self.packet_fs
            .saturating_add(self.byte_fs.saturating_mul(bytes))
    }
}

/// What the functions before a server make of a packet: at most `scale` packets in the long run, and `extra` more at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth {
    /// In parts of [`Growth::ONE`].
    pub(super) scale: u128,
    pub(super) extra: u128,
}

impl Growth {
    pub(super) const ONE: u128 = myelin_spec::rlnc::REDUNDANCY_PARTS as u128;
    /// As many as came in.
    pub(super) const NONE: Self = Self {
        scale: Self::ONE,
        extra: 0,
    };

    /// Behind a function that sends `redundancy` packets more for each, in parts of [`Growth::ONE`], those of `window` packets at once.
    pub(super) fn with_redundancy(self, redundancy: u32, window: u8) -> Self {
        let factor = Self::ONE + u128::from(redundancy);
        let grown = |amount: u128| (amount * factor).div_ceil(Self::ONE);
        // And one that the timer sends for those that have none yet.
        let at_once = (u128::from(window) * u128::from(redundancy)).div_ceil(Self::ONE) + 1;
        Self {
            scale: grown(self.scale),
            extra: grown(self.extra) + at_once,
        }
    }

    fn of(&self, bucket: LeakyBucket) -> Option<LeakyBucket> {
        let grown = |amount: u128| Some(amount.checked_mul(self.scale)?.div_ceil(Self::ONE));
        Some(LeakyBucket::new(grown(bucket.burst)?, grown(bucket.rate)?))
    }
}

/// The work that a profile brings to a server. `None` when anything may come, or more than can be counted.
///
/// A bucket of packets is one of work, each frame as long as can be; a bucket of bits is one of work, all frames as short as can be; and
/// with both, the first pays for packets and the second for bytes. All hold, so the least counts.
pub(super) fn curve(profile: &Profile, work: &Work, growth: &Growth) -> Option<ArrivalCurve> {
    let bucket = |bucket: myelin_traffic::Bucket| {
        LeakyBucket::new(u128::from(bucket.burst()), u128::from(bucket.rate()))
    };
    let times = |bucket: LeakyBucket, factor: u128, parts: u128| {
        let of = |amount: u128| Some(amount.checked_mul(factor)?.div_ceil(parts));
        Some(LeakyBucket::new(of(bucket.burst)?, of(bucket.rate)?))
    };
    let packets = profile.packets.map(bucket);
    let bits = profile.bits.map(bucket);
    let short_frames = work
        .packet_fs
        .checked_add(work.byte_fs.checked_mul(SHORTEST)?)?;
    let by_packets = packets.and_then(|packets| times(packets, work.most_fs(), 1));
    let by_bits = bits.and_then(|bits| times(bits, short_frames, 8 * SHORTEST));
    let by_both = packets.zip(bits).and_then(|(packets, bits)| {
        let (one, other) = (
            times(packets, work.packet_fs, 1)?,
            times(bits, work.byte_fs, 8)?,
        );
        Some(LeakyBucket::new(
            one.burst.checked_add(other.burst)?,
            one.rate.checked_add(other.rate)?,
        ))
    });
    let extra = growth.extra.checked_mul(work.most_fs())?;
    let grown = [by_packets, by_bits, by_both]
        .into_iter()
        .flatten()
        .map(|bucket| {
            let grown = growth.of(bucket)?;
            Some(LeakyBucket::new(
                grown.burst.checked_add(extra)?,
                grown.rate,
            ))
        })
        .collect::<Option<Vec<_>>>()?;
    ArrivalCurve::least_of(grown)
}

#[cfg(test)]
mod tests {
    use myelin_traffic::Bucket;
    use proptest::prelude::*;

    use super::*;

    fn profile(packets: Option<(u64, u64)>, bits: Option<(u64, u64)>) -> Profile {
        let bucket = |(rate, burst)| Bucket::new(rate, burst).unwrap();
        Profile {
            packets: packets.map(bucket),
            bits: bits.map(bucket),
        }
    }

    const WORK: Work = Work {
        packet_fs: 1_000_000,
        byte_fs: 1000,
    };

    #[test]
    fn without_a_profile_anything_may_come() {
        assert_eq!(curve(&profile(None, None), &WORK, &Growth::NONE), None);
    }

    #[test]
    fn what_makes_packets_brings_more_behind_it() {
        let profile = profile(Some((100, 10)), None);
        let plain = curve(&profile, &WORK, &Growth::NONE).unwrap().long();
        let quarter = Growth::NONE.with_redundancy(250_000, 8);
        assert_eq!((quarter.scale, quarter.extra), (1_250_000, 3));
        let grown = curve(&profile, &WORK, &quarter).unwrap().long();
        assert_eq!(grown.rate, plain.rate / 4 * 5);
        assert_eq!(grown.burst, plain.burst / 4 * 5 + 3 * WORK.most_fs());
    }

    #[test]
    fn figures_beyond_all_measure_have_no_curve() {
        let dear = Work {
            packet_fs: u128::MAX,
            byte_fs: 1,
        };
        assert_eq!(
            curve(&profile(Some((1, 2)), None), &dear, &Growth::NONE),
            None
        );
    }

    proptest! {
        /// Bursts of frames of any lengths that keep to the profile bring no more work than the curve has.
        #[test]
        fn no_burst_brings_more(
            frames in prop::collection::vec(60_u64..=1518, 1..60), some_packets: bool, some_bits: bool,
        ) {
            prop_assume!(some_packets || some_bits);
            let bits = frames.iter().sum::<u64>() * 8;
            let profile = profile(
                some_packets.then_some((1, frames.len() as u64)),
                some_bits.then_some((1, bits)),
            );
            let curve = curve(&profile, &WORK, &Growth::NONE).unwrap();
            let work = frames.len() as u128 * WORK.packet_fs + u128::from(bits / 8) * WORK.byte_fs;
            prop_assert!(work <= curve.at(0).unwrap());
            if some_packets && some_bits {
                prop_assert_eq!(work, curve.short().burst, "nothing is left to guess");
            }
        }
    }
}
