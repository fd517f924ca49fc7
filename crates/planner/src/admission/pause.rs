//! How long a worker works without a pause, in batches.

use crate::calculus::{ArrivalCurve, LeakyBucket, RateLatency, after_delay, busy_period};

/// What is held back by a worker of which this is known.
const NOTHING: ArrivalCurve = ArrivalCurve::of(LeakyBucket::new(0, 0));

/// A worker that alone has its core and takes packets from one port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batches {
    /// The core: as long as it stands still and the worker takes to wake up.
    pub(super) core: RateLatency,
    /// Packets of a batch, at most.
    pub(super) packets: u16,
    /// What a batch takes besides its packets, fs.
    pub(super) each_fs: u128,
    /// The dearest packet, with its share of a full batch, fs.
    pub(super) dearest_fs: u128,
    /// Work of turns in which packets leave that waited for their time, fs.
    pub(super) departures: LeakyBucket,
}

impl Batches {
    /// The part of [`Self::longest`] that is no work, fs.
    pub(super) fn latency_fs(&self) -> Option<u128> {
        let batches_fs = self.each_fs.checked_mul(2)?;
        self.core.latency_fs.checked_add(batches_fs)
    }

    /// The longest that a packet stays there, fs, whatever came before or after it: work that is not there yet when its batch begins does not delay it. `all`:
    /// what comes, where each packet has its share of a full batch. `None`: the worker may work for ever.
    ///
    /// Let `i` be the last batch that was not full before the packet's own one, `j`. All that waited when `i` began was taken, so the packet came later; and the
    /// packets of the batches `i` to `j` came since the last batch before `i` began that was not full either, less those of full batches between, of which each
    /// takes less time than as many packets at their rates take to come. That is one batch at most, and a time that the core stands still: `back` below.
    /// What leaves its shapers meanwhile, and was waited for, is done besides.
    /// So what is done from the begin of `i` to the end of `j` is what may come in `back` and until `j` begins; and all batches but two are full, `i` and `j` itself.
    pub(super) fn longest(&self, all: &ArrivalCurve) -> Option<u128> {
        if self.each_fs == 0 {
            return busy_period(all, &NOTHING, &self.core);
        }
        let full_fs = u128::from(self.packets).checked_mul(self.dearest_fs)?;
        let back_fs = full_fs
            .checked_add(self.each_fs)?
            .checked_add(self.core.latency_fs)?;
        let service = RateLatency::new(self.core.rate, self.latency_fs()?);
        let all = after_delay(all, back_fs)?.plus(&ArrivalCurve::of(self.departures))?;
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

    /// A worker that takes what waits, a full batch at most, and sends it when the last of it is done; packets come at these times, us.
    fn simulate(came: &[u128], full: usize, each: u128, packet: u128, stall: (u128, u128)) -> u128 {
        let (mut now, mut next, mut longest, mut stood) = (0, 0, 0, false);
        while next < came.len() {
            now = now.max(came[next]);
            let waiting = came[next..].iter().take_while(|at| **at <= now).count();
            let batch = &came[next..next + waiting.min(full)];
            now += each + packet * batch.len() as u128;
            if !stood && now >= stall.0 {
                now += stall.1;
                stood = true;
            }
            longest = longest.max(batch.iter().map(|at| now - at).max().unwrap_or(0));
            next += batch.len();
        }
        longest
    }

    proptest! {
        /// Whatever keeps to the profile, and wherever the core stands still.
        #[test]
        fn no_packet_stays_longer(
            gaps in prop::collection::vec(prop_oneof![Just(0_u128), 0_u128..40], 1..300),
            burst in 1_u128..60, period in 5_u128..40, full in 1_usize..20, each in 0_u128..12, packet in 1_u128..4,
            stall in (0_u128..2000, 0_u128..100),
        ) {
            let mut came: Vec<u128> = Vec::new();
            let mut at = 0;
            for gap in gaps {
                at += gap;
                // Not before the bucket has it: each packet, and the `burst` before it, in `period` each.
                let earliest = |before: usize| {
                    let number = came.len() - before + 1;
                    came[before] + period * (number as u128).saturating_sub(burst)
                };
                at = (0..came.len()).map(earliest).fold(at, u128::max);
                came.push(at);
            }
            let share = (each * US).div_ceil(full as u128);
            let cost = packet * US + share;
            let all = ArrivalCurve::of(LeakyBucket::new(burst * cost, (cost * SECOND).div_ceil(period * US)));
            let batches = Batches {
                core: RateLatency::core(stall.1 * US),
                packets: full as u16,
                each_fs: each * US,
                dearest_fs: cost,
                departures: LeakyBucket::new(0, 0),
            };
            if let Some(bound) = batches.longest(&all) {
                let longest = simulate(&came, full, each, packet, stall) * US;
                prop_assert!(longest <= bound, "{} above {}", longest, bound);
            }
        }
    }

    #[test]
    fn a_burst_of_full_batches_is_met_nearly() {
        let came = [0; 60];
        let longest = simulate(&came, 20, 10, 1, (0, 0)) * US;
        assert_eq!(longest, 90 * US);
        let cost = US + US / 2;
        let batches = Batches {
            core: RateLatency::core(0),
            packets: 20,
            each_fs: 10 * US,
            dearest_fs: cost,
            departures: LeakyBucket::new(0, 0),
        };
        let all = ArrivalCurve::of(LeakyBucket::new(60 * cost, 0));
        assert_eq!(batches.longest(&all), Some(longest + 20 * US));
    }
}
