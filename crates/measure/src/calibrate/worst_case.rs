//! The worst-case cost of a packet, as a multiple of its median cost.

/// Largest factor. A busy machine causes larger factors, not the packets.
const MAX_FACTOR: f64 = 100.0;
/// Smallest factor, also used for machines without a measurement.
const MIN_FACTOR: f64 = 1.5;

/// Computes the smallest factor such that each slow figure is at most a stall plus the factor times
/// the median figure. The bound contains the stall separately, so the factor must not contain the
/// stall. If the stall is longer than all figures, returns the smallest factor.
pub(super) fn worst_case_factor<'a>(
    slow_and_median: impl Iterator<Item = &'a (f64, f64)>,
    stall_ns: u64,
) -> f64 {
    let factors = slow_and_median.map(|(slow, median)| (slow - stall_ns as f64) / median.max(1.0));
    factors.fold(MIN_FACTOR, f64::max).min(MAX_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_does_not_contain_the_stall() {
        // Packets of 2 us take up to 30 us, and bursts of 100 us up to 150 us.
        let figures = [(30_000.0, 2000.0), (150_000.0, 100_000.0)];
        assert!((worst_case_factor(figures.iter(), 26_000) - 2.0).abs() < 1e-9);
        assert!((worst_case_factor(figures.iter(), 27_200) - 1.5).abs() < 1e-9);
        assert!((worst_case_factor(figures.iter(), 60_000) - MIN_FACTOR).abs() < 1e-9);
        assert!((worst_case_factor(figures.iter(), 0) - 15.0).abs() < 1e-9);
        assert!((worst_case_factor([(1e9, 1.0)].iter(), 0) - MAX_FACTOR).abs() < 1e-9);
    }
}
