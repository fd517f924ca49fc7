//! The bound of Rathore et al. 2022.

use super::SECOND;
use super::rounding::mul_div_up;

/// Returns the delay at one hop by equation (4) of Rathore et al. 2022, fs: the sum of all bursts
/// `b_i` at the core, each divided by its processing rate `g_i`. `bursts` are work, so `b_i / g_i`
/// is the burst's work divided by the core's rate. The function adds the latency of the hop, which
/// the paper does not have. Along a chain, the paper sums the hops (section 4.2).
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
    fn each_burst_adds_its_work() {
        assert_eq!(paper_sum([10, 30], 10, 5), Some(4 * SECOND + 5));
        assert_eq!(paper_sum([10], 0, 5), None);
    }
}
