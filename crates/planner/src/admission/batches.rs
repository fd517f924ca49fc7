//! The longest stay in a server that works in batches.

use crate::calculus::{ArrivalCurve, LeakyBucket, RateLatency, after_delay, busy_period};

/// The returning work: none, because such a server holds no packet back.
const NOTHING: ArrivalCurve = ArrivalCurve::of(LeakyBucket::new(0, 0));

/// A server that works in batches: a port, or a worker with one port and no other worker on its
/// core.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchServer {
    /// The core; its latency is the stall and the wake-up.
    pub(super) core: RateLatency,
    /// Most packets in a batch.
    pub(super) packets: u16,
    /// Cost of a batch besides its packets, fs.
    pub(super) batch_fs: u128,
    /// Cost of the most expensive packet with its share of a full batch, fs.
    pub(super) max_packet_fs: u128,
    /// Work of turns in which packets leave a shaper after a wait, fs.
    pub(super) departures: LeakyBucket,
}

impl BatchServer {
    /// Returns the part of [`Self::max_stay_fs`] that does not depend on work, fs.
    pub(super) fn latency_fs(&self) -> Option<u128> {
        let batches_fs = self.batch_fs.checked_mul(2)?;
        self.core.latency_fs.checked_add(batches_fs)
    }

    /// Returns the longest stay of a packet, fs; `None` if there is no bound. `arrivals` has the
    /// work of each packet with its share of a full batch. Proof: `docs/guarantees/proofs.md`,
    /// theorem 5.
    pub(super) fn max_stay_fs(&self, arrivals: &ArrivalCurve) -> Option<u128> {
        if self.batch_fs == 0 {
            return busy_period(arrivals, &NOTHING, &self.core);
        }
        let full_fs = u128::from(self.packets).checked_mul(self.max_packet_fs)?;
        let back_fs = full_fs
            .checked_add(self.batch_fs)?
            .checked_add(self.core.latency_fs)?;
        let service = RateLatency::new(self.core.rate, self.latency_fs()?);
        let all = after_delay(arrivals, back_fs)?.plus(&ArrivalCurve::of(self.departures))?;
        busy_period(&all, &NOTHING, &service)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calculus::SECOND;

    /// Femtoseconds of a microsecond.
    const US: u128 = SECOND / 1_000_000;

    /// Returns the longest stay, us, in a worker that takes all waiting packets, at most `full`,
    /// and sends them together after processing the last of them. Packets arrive at `arrivals_us`.
    /// A batch costs `batch_us`, and each of its packets `packet_us`. `stall` is the time from
    /// which the core stalls once, and the length of the stall.
    fn simulate(
        arrivals_us: &[u128],
        full: usize,
        batch_us: u128,
        packet_us: u128,
        stall: (u128, u128),
    ) -> u128 {
        let (mut now, mut next, mut longest, mut has_stalled) = (0, 0, 0, false);
        while next < arrivals_us.len() {
            now = now.max(arrivals_us[next]);
            let waiting = arrivals_us[next..]
                .iter()
                .take_while(|at| **at <= now)
                .count();
            let batch = &arrivals_us[next..next + waiting.min(full)];
            now += batch_us + packet_us * batch.len() as u128;
            if !has_stalled && now >= stall.0 {
                now += stall.1;
                has_stalled = true;
            }
            longest = longest.max(batch.iter().map(|at| now - at).max().unwrap_or(0));
            next += batch.len();
        }
        longest
    }

    proptest! {
        /// Arrivals conform to the profile, and the core stalls once at any time.
        #[test]
        fn no_packet_exceeds_the_batch_bound(
            gaps in prop::collection::vec(prop_oneof![Just(0_u128), 0_u128..40], 1..300),
            burst in 1_u128..60, period in 5_u128..40, full in 1_usize..20, each in 0_u128..12, packet in 1_u128..4,
            stall in (0_u128..2000, 0_u128..100),
        ) {
            let mut arrivals_us: Vec<u128> = Vec::new();
            let mut at = 0;
            for gap in gaps {
                at += gap;
                // The bucket allows one packet in each `period`, after the `burst`.
                let earliest = |before: usize| {
                    let number = arrivals_us.len() - before + 1;
                    arrivals_us[before] + period * (number as u128).saturating_sub(burst)
                };
                at = (0..arrivals_us.len()).map(earliest).fold(at, u128::max);
                arrivals_us.push(at);
            }
            let share = (each * US).div_ceil(full as u128);
            let cost = packet * US + share;
            let all = ArrivalCurve::of(LeakyBucket::new(burst * cost, (cost * SECOND).div_ceil(period * US)));
            let server = BatchServer {
                core: RateLatency::core(stall.1 * US),
                packets: full as u16,
                batch_fs: each * US,
                max_packet_fs: cost,
                departures: LeakyBucket::new(0, 0),
            };
            if let Some(bound) = server.max_stay_fs(&all) {
                let longest = simulate(&arrivals_us, full, each, packet, stall) * US;
                prop_assert!(longest <= bound, "{} above {}", longest, bound);
            }
        }
    }

    #[test]
    fn burst_of_full_batches_nearly_meets_the_bound() {
        let arrivals_us = [0; 60];
        let longest = simulate(&arrivals_us, 20, 10, 1, (0, 0)) * US;
        assert_eq!(longest, 90 * US);
        let cost = US + US / 2;
        let server = BatchServer {
            core: RateLatency::core(0),
            packets: 20,
            batch_fs: 10 * US,
            max_packet_fs: cost,
            departures: LeakyBucket::new(0, 0),
        };
        let all = ArrivalCurve::of(LeakyBucket::new(60 * cost, 0));
        assert_eq!(server.max_stay_fs(&all), Some(longest + 20 * US));
    }
}
