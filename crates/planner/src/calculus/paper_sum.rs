//! The bound of Rathore et al. 2022.

use super::SECOND;
use super::rounding::mul_div_up;

/// The delay at one hop by equation (4) of Rathore et al. 2022, fs: all bursts `b_i` of those that share the core, each by the rate `g_i` at
/// which its packets are processed, and the latency of the hop, which the paper does not have. `bursts` are amounts of work, so
/// `b_i / g_i` is the burst's work by the rate of the core. Along a chain the sums of its hops are added (section 4.2).
pub fn paper_sum(
    bursts: impl IntoIterator<Item = u128>,
    rate: u128,
    latency_fs: u128,
) -> Option<u128> {
    bursts.into_iter().try_fold(latency_fs, |sum, burst| {
        sum.checked_add(mul_div_up(burst, SECOND, rate)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_burst_takes_its_time() {
        assert_eq!(paper_sum([10, 30], 10, 5), Some(4 * SECOND + 5));
        assert_eq!(paper_sum([10], 0, 5), None);
    }
}
