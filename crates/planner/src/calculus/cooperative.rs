//! Leftover service when processes yield after a number of batches.

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
    fn time_fs(&self) -> Option<u128> {
        u128::from(self.batches)
            .checked_mul(u128::from(self.packets))?
            .checked_mul(self.packet_fs)
    }
}

/// Returns the leftover service under cooperative yielding: round robin whose quanta are turns (the
/// cooperative mode of NFVnice, Kulkarni et al. 2017). Each packet counts with the greatest cost,
/// because a turn is a number of packets of any cost. `switch_fs` is the cost of a context switch.
pub fn cooperative(
    service: &RateLatency,
    own: &Turn,
    others: &[Turn],
    switch_fs: u128,
) -> Option<RateLatency> {
    // One switch for each turn.
    let mut others_fs = switch_fs;
    for turn in others {
        others_fs = others_fs
            .checked_add(turn.time_fs()?)?
            .checked_add(switch_fs)?;
    }
    round_robin(service, own.time_fs()?, others_fs)
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
        let other = Turn { batches: 1, ..own };
        let share = cooperative(&RateLatency::core(0), &own, &[other, other], 500).unwrap();
        let others_fs = 2 * 32_000 + 3 * 500;
        let expected = round_robin(&RateLatency::core(0), 64_000, others_fs);
        assert_eq!(Some(share), expected);
        let endless = Turn {
            batches: u64::MAX,
            packet_fs: u128::MAX / 2,
            ..own
        };
        assert_eq!(
            cooperative(&RateLatency::core(0), &own, &[endless], 0),
            None
        );
    }
}
