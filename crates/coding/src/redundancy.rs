//! The ratio of coded packets to source packets.

use std::num::NonZeroU32;

/// Coded packets for each source packet, as a fraction. Rounding errors do not accumulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redundancy {
    numerator: u32,
    denominator: NonZeroU32,
}

impl Redundancy {
    /// Returns a redundancy of `numerator` coded packets for `denominator` source packets.
    pub const fn new(numerator: u32, denominator: NonZeroU32) -> Self {
        Self {
            numerator,
            denominator,
        }
    }

    /// Returns whether the ratio is zero.
    pub const fn is_none(self) -> bool {
        self.numerator == 0
    }
}

/// Counts due coded packets. Each source packet adds a fraction of a coded packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    redundancy: Redundancy,
    earned: u64,
}

impl Credit {
    pub(crate) fn new(redundancy: Redundancy) -> Self {
        Self {
            redundancy,
            earned: 0,
        }
    }

    /// Changes the redundancy. An equal redundancy keeps the earned fraction.
    pub(crate) fn set(&mut self, redundancy: Redundancy) {
        if self.redundancy != redundancy {
            *self = Self::new(redundancy);
        }
    }

    pub(crate) fn redundancy(&self) -> Redundancy {
        self.redundancy
    }

    /// Counts a source packet.
    pub(crate) fn earn(&mut self) {
        self.earned += u64::from(self.redundancy.numerator);
    }

    /// Returns how many coded packets are due after `more` source packets.
    pub(crate) fn expected_after(&self, more: usize) -> usize {
        let earned = self.earned + u64::from(self.redundancy.numerator) * more as u64;
        let whole = earned / u64::from(self.redundancy.denominator.get());
        whole.try_into().unwrap_or(usize::MAX)
    }

    /// Takes the due coded packets and keeps the fraction.
    pub(crate) fn take(&mut self) -> u32 {
        let denominator = u64::from(self.redundancy.denominator.get());
        let whole = self.earned / denominator;
        self.earned %= denominator;
        whole.try_into().unwrap_or(u32::MAX)
    }

    /// Discards all credit.
    pub(crate) fn clear(&mut self) {
        self.earned = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_accumulates_no_rounding_error() {
        for (numerator, denominator) in [(1, 4), (1, 3), (2, 7), (5, 2), (0, 9)] {
            let redundancy = Redundancy::new(numerator, NonZeroU32::new(denominator).unwrap());
            let mut credit = Credit::new(redundancy);
            let mut taken = 0;
            for packets in 1..1000 {
                credit.earn();
                taken += credit.take();
                assert_eq!(taken, packets * numerator / denominator);
            }
        }
    }
}
