//! Leftover service when processes yield after a number of batches, also in a pipeline.

use super::{RateLatency, round_robin};

/// The longest time that a process keeps the core before it yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Batches that the process handles before it yields.
    pub batches: u64,
    /// Most packets in a batch.
    pub packets: u64,
    /// Greatest cost of a packet, fs.
    pub packet_fs: u128,
}

impl Turn {
    /// Returns the time of the turn, fs; `None` beyond 128 bits.
    pub fn time_fs(&self) -> Option<u128> {
        u128::from(self.batches)
            .checked_mul(u128::from(self.packets))?
            .checked_mul(self.packet_fs)
    }
}

/// The longest turns of one round of a core, in which each of its processes has one turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// The turn of the process that takes the arrivals: its work on these, fs.
    pub arrivals_fs: u128,
    /// Its work on other packets in the same turn, between batches of arrivals, fs: in a pipeline,
    /// packets that come back.
    pub interleaved_fs: u128,
    /// The turns of all other processes, fs.
    pub others_fs: u128,
    /// All switches of the round, fs.
    pub switches_fs: u128,
}

impl Round {
    /// Returns the time without the work on arrivals, fs.
    fn rest_fs(&self) -> Option<u128> {
        let others_fs = self.others_fs.checked_add(self.switches_fs)?;
        others_fs.checked_add(self.interleaved_fs)
    }

    /// Returns the time of the round, fs. A pipeline returns a packet to its first process within
    /// this time.
    pub fn time_fs(&self) -> Option<u128> {
        self.rest_fs()?.checked_add(self.arrivals_fs)
    }

    /// Returns the leftover service for the arrivals, of which each turn takes at least the work
    /// `quantum_fs`, if so much waits: round robin whose quanta are turns (the cooperative mode of
    /// NFVnice, Kulkarni et al. 2017). Each packet counts with the least cost, because a turn is a
    /// number of packets of any cost.
    ///
    /// An arrival may meet a turn whose work on other packets lies ahead. So this work counts once
    /// more.
    pub fn leftover(&self, service: &RateLatency, quantum_fs: u128) -> Option<RateLatency> {
        let left = round_robin(service, quantum_fs, self.rest_fs()?)?;
        let latency_fs = left.latency_fs.checked_add(self.interleaved_fs)?;
        Some(RateLatency::new(left.rate, latency_fs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_quanta_and_each_switch_costs() {
        let own = Turn {
            batches: 2,
            packets: 32,
            packet_fs: 1000,
        };
        assert_eq!(own.time_fs(), Some(64_000));
        let round = Round {
            arrivals_fs: 64_000,
            others_fs: 2 * 32_000,
            switches_fs: 3 * 500,
            interleaved_fs: 0,
        };
        let whole = RateLatency::core(0);
        let expected = round_robin(&whole, 64_000, 65_500);
        assert_eq!(round.leftover(&whole, 64_000), expected);
        assert_eq!(round.time_fs(), Some(129_500));
        let returning = Round {
            interleaved_fs: 10_000,
            ..round
        };
        let left = round_robin(&whole, 64_000, 75_500).unwrap();
        let expected = RateLatency::new(left.rate, left.latency_fs + 10_000);
        assert_eq!(returning.leftover(&whole, 64_000), Some(expected));
        assert_eq!(returning.time_fs(), Some(139_500));
        let endless = Turn {
            batches: u64::MAX,
            packet_fs: u128::MAX / 2,
            ..own
        };
        assert_eq!(endless.time_fs(), None);
        let endless = Round {
            others_fs: u128::MAX,
            ..round
        };
        assert_eq!(endless.leftover(&whole, 64_000), None);
    }
}
