//! The times at which replayed packets arrive.

use myelin_spec::ReplayTimes;

/// Picoseconds of a nanosecond, because packets are parts of one apart.
const PS: u64 = 1000;

/// The times of packets since a start.
#[derive(Debug)]
pub(super) enum Times {
    /// All packets have arrived.
    Always,
    Even {
        gap_ps: u64,
    },
    Recorded {
        offsets_ns: Vec<u64>,
        period_ns: u64,
    },
}

impl From<ReplayTimes> for Times {
    fn from(times: ReplayTimes) -> Self {
        match times {
            ReplayTimes::Even(rate) => Self::Even {
                // Rounded up, so that the rate is at most the agreed one.
                gap_ps: (1_000_000_000 * PS).div_ceil(rate.max(1)),
            },
            ReplayTimes::Recorded {
                offsets_ns,
                period_ns,
            } if !offsets_ns.is_empty() => Self::Recorded {
                period_ns: period_ns.max(1),
                offsets_ns,
            },
            // Without times, a recording is endless too.
            ReplayTimes::Endless | ReplayTimes::Recorded { .. } => Self::Always,
        }
    }
}

impl Times {
    /// Returns the number of packets that have arrived in this time.
    pub(super) fn count(&self, time_ns: u64) -> u64 {
        match self {
            Self::Always => u64::MAX,
            Self::Even { gap_ps } => time_ns.saturating_mul(PS) / gap_ps,
            Self::Recorded {
                offsets_ns,
                period_ns,
            } => {
                let (rounds, rest) = (time_ns / period_ns, time_ns % period_ns);
                let arrived = offsets_ns.partition_point(|offset_ns| *offset_ns <= rest);
                rounds
                    .saturating_mul(offsets_ns.len() as u64)
                    .saturating_add(arrived as u64)
            }
        }
    }

    /// Returns the time at which a packet arrives, ns; packet 0 is the first.
    pub(super) fn time_ns(&self, packet: u64) -> u64 {
        match self {
            Self::Always => 0,
            Self::Even { gap_ps } => {
                let time_ps = u128::from(packet + 1) * u128::from(*gap_ps);
                u64::try_from(time_ps.div_ceil(u128::from(PS))).unwrap_or(u64::MAX)
            }
            Self::Recorded {
                offsets_ns,
                period_ns,
            } => {
                let frames = offsets_ns.len() as u64;
                let offset_ns = offsets_ns[(packet % frames) as usize];
                (packet / frames)
                    .saturating_mul(*period_ns)
                    .saturating_add(offset_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(times: &Times, packets: u64) {
        for packet in 0..packets {
            let time_ns = times.time_ns(packet);
            assert!(times.count(time_ns) > packet, "{times:?} {packet}");
            if let Some(before) = time_ns.checked_sub(1) {
                assert!(times.count(before) <= packet, "{times:?} {packet}");
            }
        }
    }

    proptest! {
        /// A packet has arrived at its time, and not before.
        #[test]
        fn counts_agree_with_times(
            rate in 1..100_000_000_u64,
            gaps in prop::collection::vec(0..5000_u64, 1..20),
        ) {
            check(&Times::from(ReplayTimes::Even(rate)), 50);
            let offsets_ns: Vec<u64> = gaps.iter().scan(0, |sum, gap| {
                *sum += gap;
                Some(*sum)
            }).collect();
            let period_ns = offsets_ns.last().unwrap() + 7;
            check(&Times::from(ReplayTimes::Recorded { offsets_ns, period_ns }), 50);
        }
    }

    #[test]
    fn a_clock_at_its_end_overflows_nothing() {
        let recorded = ReplayTimes::Recorded {
            offsets_ns: vec![0, 1],
            period_ns: 2,
        };
        for times in [
            ReplayTimes::Endless,
            ReplayTimes::Even(1),
            ReplayTimes::Even(u64::MAX),
            recorded,
        ] {
            let times = Times::from(times);
            assert!(times.count(u64::MAX) > 1000);
            times.time_ns(u64::MAX - 1);
        }
    }
}
