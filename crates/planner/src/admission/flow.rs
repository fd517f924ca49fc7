//! Converts a traffic profile to work. Theorem 1 of `docs/guarantees/proofs.md`.

use myelin_packet::traffic::Profile;
use myelin_spec::effect::MILLIONTHS;
use myelin_spec::{AddedBytes, AddedPackets};
use serde::{Deserialize, Serialize};

use crate::calculus::{ArrivalCurve, LeakyBucket};
use crate::frame::{self, SHORTEST};

/// Worst-case cost of packets at a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Cost of a packet, fs.
    pub packet_fs: u128,
    /// Cost of a byte of the frame, fs.
    pub byte_fs: u128,
}

impl Work {
    /// Returns the sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            packet_fs: self.packet_fs.saturating_add(other.packet_fs),
            byte_fs: self.byte_fs.saturating_add(other.byte_fs),
        }
    }

    /// Returns the greater packet cost and the greater byte cost.
    pub(super) fn max_of_each(self, other: Self) -> Self {
        Self {
            packet_fs: self.packet_fs.max(other.packet_fs),
            byte_fs: self.byte_fs.max(other.byte_fs),
        }
    }

    /// Returns the cost of a frame with this many bytes, fs.
    pub fn frame_fs(&self, bytes: u128) -> u128 {
        self.packet_fs
            .saturating_add(self.byte_fs.saturating_mul(bytes))
    }
}

/// The change of traffic by the functions before a server. In the long run, each packet becomes at
/// most `scale` packets. At most `extra` further packets leave at once. A packet grows by at most
/// `bytes`, up to the length `longest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// Packets for each arriving packet, in parts of [`Growth::ONE`].
    pub(super) scale: u128,
    pub(super) extra: u128,
    pub(super) bytes: u128,
    /// Longest frame, bytes.
    pub(super) longest: u128,
}

impl Growth {
    pub(super) const ONE: u128 = MILLIONTHS as u128;

    /// Creates the growth without a change, for frames of up to `longest` bytes.
    pub(crate) const fn none(longest: u64) -> Self {
        Self {
            scale: Self::ONE,
            extra: 0,
            bytes: 0,
            longest: longest as u128,
        }
    }

    /// Returns the length of the longest frame, bytes.
    pub(crate) const fn longest(&self) -> u128 {
        self.longest
    }

    /// Adds packets that a function sends at once.
    pub(crate) fn with_released(self, packets: u32) -> Self {
        Self {
            extra: self.extra + u128::from(packets),
            ..self
        }
    }

    /// Adds a function that creates packets.
    pub(crate) fn with_added_packets(self, added: AddedPackets) -> Self {
        let redundancy = u128::from(added.parts);
        let factor = Self::ONE + redundancy;
        let grown = |amount: u128| (amount * factor).div_ceil(Self::ONE);
        // The timer sends one more repair packet, for packets that no repair packet covers.
        let at_once = (u128::from(added.window) * redundancy).div_ceil(Self::ONE) + 1;
        Self {
            scale: grown(self.scale),
            extra: grown(self.extra) + at_once,
            ..self
        }
    }

    /// Adds a function that lengthens packets. Other packets keep their length.
    pub(crate) fn with_added_bytes(self, added: AddedBytes) -> Self {
        let bytes = u128::from(added.bytes);
        let max_frame = u128::from(frame::longest(added.mtu));
        Self {
            bytes: self.bytes + bytes,
            longest: (self.longest + bytes).min(max_frame).max(self.longest),
            ..self
        }
    }

    /// Returns the greatest length of a frame that arrived with this many bytes.
    fn max_bytes(&self, arrived: u128) -> u128 {
        (arrived + self.bytes).min(self.longest)
    }
}

/// Returns the arrival curve of a profile's work at a server: the least of three buckets. Returns
/// `None` without a rate, or beyond 128 bits.
///
/// By packets: all frames are as long as possible. By bits: all frames are as short as possible. By
/// both: the packets have the cost of packets and added bytes, the bits have the cost of bytes.
/// Created packets are as long as possible.
pub(crate) fn work_curve(profile: &Profile, work: &Work, growth: &Growth) -> Option<ArrivalCurve> {
    let bucket = |bucket: myelin_packet::traffic::Bucket| {
        LeakyBucket::new(u128::from(bucket.burst()), u128::from(bucket.rate()))
    };
    let times = |bucket: LeakyBucket, factor: u128, parts: u128| {
        let scale = |amount: u128| Some(amount.checked_mul(factor)?.div_ceil(parts));
        Some(LeakyBucket::new(scale(bucket.burst)?, scale(bucket.rate)?))
    };
    let packets = profile.packets.map(bucket);
    let bits = profile.bits.map(bucket);
    let frame_fs = |bytes: u128| work.packet_fs.checked_add(work.byte_fs.checked_mul(bytes)?);
    let max_packet_fs = frame_fs(growth.longest)?;
    // In parts of `Growth::ONE`: a packet of this length, with its share of created packets.
    let created = (growth.scale - Growth::ONE).checked_mul(max_packet_fs)?;
    let with_created = |bytes: u128| {
        frame_fs(bytes)?
            .checked_mul(Growth::ONE)?
            .checked_add(created)
    };
    let (long, short) = (
        with_created(growth.longest)?,
        with_created(growth.max_bytes(SHORTEST.into()))?,
    );
    let longer = with_created(growth.bytes.min(growth.longest))?;
    let by_packets = packets.and_then(|packets| times(packets, long, Growth::ONE));
    let by_bits = bits.and_then(|bits| times(bits, short, 8 * u128::from(SHORTEST) * Growth::ONE));
    let by_both = packets.zip(bits).and_then(|(packets, bits)| {
        times(packets, longer, Growth::ONE)?.plus(&times(bits, work.byte_fs, 8)?)
    });
    let extra = LeakyBucket::new(growth.extra.checked_mul(max_packet_fs)?, 0);
    let buckets = [by_packets, by_bits, by_both].into_iter().flatten();
    let with_extra: Option<Vec<_>> = buckets.map(|bucket| bucket.plus(&extra)).collect();
    ArrivalCurve::least_of(with_extra?)
}

#[cfg(test)]
mod tests {
    use myelin_packet::traffic::Bucket;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{LONGEST, longest};

    fn profile(packets: Option<(u64, u64)>, bits: Option<(u64, u64)>) -> Profile {
        let bucket = |(rate, burst)| Bucket::new(rate, burst).unwrap();
        Profile {
            packets: packets.map(bucket),
            bits: bits.map(bucket),
        }
    }

    fn added(parts: u32, window: u8) -> AddedPackets {
        AddedPackets {
            parts,
            window,
            at_once: 0,
        }
    }

    const PLAIN: Growth = Growth::none(LONGEST);
    const WORK: Work = Work {
        packet_fs: 1_000_000,
        byte_fs: 1000,
    };

    #[test]
    fn profile_without_a_rate_has_no_curve() {
        assert_eq!(work_curve(&profile(None, None), &WORK, &PLAIN), None);
    }

    #[test]
    fn created_packets_add_work_behind_the_function() {
        let profile = profile(Some((100, 10)), None);
        let plain = work_curve(&profile, &WORK, &PLAIN).unwrap().long();
        let quarter = PLAIN.with_added_packets(added(250_000, 8));
        assert_eq!((quarter.scale, quarter.extra), (1_250_000, 3));
        let grown = work_curve(&profile, &WORK, &quarter).unwrap().long();
        assert_eq!(grown.rate, plain.rate / 4 * 5);
        assert_eq!(grown.burst, plain.burst / 4 * 5 + 3 * WORK.frame_fs(1518));
    }

    /// Frames of 60 B that become full frames cost all bytes of full frames, although the profile
    /// in bits has few bytes.
    #[test]
    fn longer_packets_add_bytes_behind_the_function() {
        let bits = profile(None, Some((480_000, 4800)));
        let with = |bytes, mtu| PLAIN.with_added_bytes(AddedBytes { bytes, mtu });
        let (stamped, unpacked) = (with(16, 1500), with(1500, 1500));
        let burst = |profile: &Profile, growth: &Growth| {
            work_curve(profile, &WORK, growth).unwrap().short().burst
        };
        assert_eq!(burst(&bits, &PLAIN), 10 * WORK.frame_fs(60));
        assert_eq!(burst(&bits, &stamped), 10 * WORK.frame_fs(76));
        assert_eq!(burst(&bits, &unpacked), 10 * WORK.frame_fs(1518));
        let both = profile(Some((1000, 5)), Some((480_000, 4800)));
        assert_eq!(burst(&both, &PLAIN), 5 * 1_000_000 + 600 * 1000);
        assert_eq!(burst(&both, &stamped), 5 * 1_016_000 + 600 * 1000);
        assert_eq!(burst(&both, &unpacked), 5 * WORK.frame_fs(1518));
        // No frame grows beyond the MTU, and no frame shrinks.
        assert_eq!(with(9000, 9000).longest, 9018);
        let jumbo = Growth::none(longest(9000));
        assert_eq!(
            jumbo
                .with_added_bytes(AddedBytes {
                    bytes: 16,
                    mtu: 1500
                })
                .longest,
            9018
        );
        assert_eq!(
            burst(&profile(Some((1, 1)), None), &jumbo),
            WORK.frame_fs(9018)
        );
    }

    #[test]
    fn figures_beyond_128_bits_have_no_curve() {
        let expensive = Work {
            packet_fs: u128::MAX,
            byte_fs: 1,
        };
        assert_eq!(
            work_curve(&profile(Some((1, 2)), None), &expensive, &PLAIN),
            None
        );
    }

    proptest! {
        /// Bursts of frames of any lengths within the profile bring no more work than the curve,
        /// for any functions that add packets or bytes.
        #[test]
        fn no_burst_brings_more_work_than_the_curve(
            frames in prop::collection::vec((60_u64..=1518, 0_u64..2000), 1..60), some_packets: bool, some_bits: bool,
            longer in 0_u64..2000, mtu in 576_u64..9000, redundancy in 0_u32..2_000_000, window in 1_u8..64,
        ) {
            prop_assume!(some_packets || some_bits);
            let bits = frames.iter().map(|(bytes, _)| bytes).sum::<u64>() * 8;
            let profile = profile(
                some_packets.then_some((1, frames.len() as u64)),
                some_bits.then_some((1, bits)),
            );
            let arrived = frames.len() as u128 * WORK.packet_fs + u128::from(bits / 8) * WORK.byte_fs;
            let plain = work_curve(&profile, &WORK, &PLAIN).unwrap();
            prop_assert!(arrived <= plain.at(0).unwrap());
            if some_packets && some_bits {
                prop_assert_eq!(arrived, plain.short().burst, "both limits give the exact work");
            }
            let growth = PLAIN.with_added_bytes(AddedBytes { bytes: longer, mtu }).with_added_packets(added(redundancy, window));
            let grown = work_curve(&profile, &WORK, &growth).unwrap();
            // Each frame grows up to the MTU; the function creates more packets.
            let own: u128 = frames.iter().map(|(bytes, more)| {
                let grown = (bytes + more.min(&longer)).min(longest(mtu)).max(*bytes);
                WORK.frame_fs(u128::from(grown))
            }).sum();
            let created = frames.len() as u64 * u64::from(redundancy) / 1_000_000;
            let created_fs = u128::from(created) * WORK.frame_fs(growth.longest);
            prop_assert!(own + created_fs <= grown.at(0).unwrap(), "{} and {} above {:?}", own, created_fs, grown);
        }
    }
}
