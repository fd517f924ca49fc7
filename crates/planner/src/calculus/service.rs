//! How much is done at least.

use super::SECOND;
use super::rounding::mul_div_down;

/// A rate-latency service curve: nothing for the latency, then that rate (LBT section 1.3.1). A packet server with it is what
/// the literature calls guaranteed rate (Goyal, Lam and Vin 1995; LBT section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLatency {
    /// What is done, a second.
    pub rate: u128,
    /// For how long nothing may be done, fs.
    pub latency_fs: u128,
}

impl RateLatency {
    /// A service of that rate and latency.
    pub const fn new(rate: u128, latency_fs: u128) -> Self {
        Self { rate, latency_fs }
    }

    /// A whole core that stands still for `latency_fs` at most.
    pub const fn core(latency_fs: u128) -> Self {
        Self::new(SECOND, latency_fs)
    }

    /// What is done at least in `time_fs` of work to do.
    pub fn at(&self, time_fs: u128) -> Option<u128> {
        mul_div_down(self.rate, time_fs.saturating_sub(self.latency_fs), SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_before_the_latency_and_the_rate_after_it() {
        let service = RateLatency::new(10, SECOND);
        assert_eq!(service.at(SECOND), Some(0));
        assert_eq!(service.at(2 * SECOND), Some(10));
        assert_eq!(service.at(2 * SECOND - 1), Some(9), "rounded down");
    }
}
