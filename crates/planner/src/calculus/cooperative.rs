//! Yielding after so many batches.

use super::{RateLatency, round_robin};

/// How long one keeps the core before it yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Batches before it yields.
    pub batches: u64,
    /// Packets of a batch, at most.
    pub packets: u64,
    /// What a packet costs at most, fs.
    pub packet_fs: u128,
}

impl Turn {
    fn fs(&self) -> Option<u128> {
        u128::from(self.batches)
            .checked_mul(u128::from(self.packets))?
            .checked_mul(self.packet_fs)
    }
}

/// What cooperative yielding leaves to one of several: round robin whose quanta are turns (NFVnice, Kulkarni et al. 2017, calls this the
/// cooperative mode). Its work counts at what its packets cost at most, since a turn is as many packets, however cheap they are.
/// `switch_fs` is what each change costs.
pub fn cooperative(
    service: &RateLatency,
    own: &Turn,
    others: &[Turn],
    switch_fs: u128,
) -> Option<RateLatency> {
    // As many changes as there are turns.
    let mut others_fs = switch_fs;
    for turn in others {
        others_fs = others_fs.checked_add(turn.fs()?)?.checked_add(switch_fs)?;
    }
    round_robin(service, own.fs()?, others_fs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_quanta_and_each_change_costs() {
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
