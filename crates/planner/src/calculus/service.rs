//! Service curves: the least work that a server does.

use super::SECOND;
use super::rounding::mul_div_down;

/// A rate-latency service curve: no work during the latency, then work at the rate (LBT section
/// 1.3.1). A packet server with such a curve is a guaranteed-rate server (Goyal, Lam and Vin 1995;
/// LBT section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLatency {
    /// Work a second.
    pub rate: u128,
    /// Longest time without work, fs.
    pub latency_fs: u128,
}

impl RateLatency {
    /// Creates the curve with this rate and latency.
    pub const fn new(rate: u128, latency_fs: u128) -> Self {
        Self { rate, latency_fs }
    }

    /// Creates the curve of a whole core with a stall of at most `latency_fs`.
    pub const fn core(latency_fs: u128) -> Self {
        Self::new(SECOND, latency_fs)
    }

    /// Returns the least work in the first `time_fs` of a busy period.
    pub fn at(&self, time_fs: u128) -> Option<u128> {
        mul_div_down(self.rate, time_fs.saturating_sub(self.latency_fs), SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_zero_during_the_latency_and_then_at_the_rate() {
        let service = RateLatency::new(10, SECOND);
        assert_eq!(service.at(SECOND), Some(0));
        assert_eq!(service.at(2 * SECOND), Some(10));
        assert_eq!(service.at(2 * SECOND - 1), Some(9), "rounded down");
    }
}
