//! Medians with a confidence interval that assumes no distribution.
//!
//! The number of samples below the true median is binomial (n, 1/2), for any distribution of the
//! samples. So the interval from the l-th smallest to the l-th largest sample covers the median
//! with probability 1 - 2 P(Bin(n, 1/2) < l) (Conover, Practical Nonparametric Statistics, 3.2).
//! The probability has discrete steps, so the interval covers at least the requested confidence.

use super::{Estimate, Interval, student::ln_gamma};

/// The ranks (1-based, from below) of the samples that bound the median of `n` samples at
/// `confidence` (0 to 1).
///
/// `None` if even the extremes do not reach this confidence: below 6 samples at 95 %.
pub fn median_ranks(n: usize, confidence: f64) -> Option<(usize, usize)> {
    let tail = (1.0 - confidence) / 2.0;
    let ln_half = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut rank = 0;
    for k in 0..n.div_ceil(2) {
        let (n, k) = (n as f64, k as f64);
        below += (ln_gamma(n + 1.0) - ln_gamma(k + 1.0) - ln_gamma(n - k + 1.0) + ln_half).exp();
        if below > tail {
            break;
        }
        rank += 1;
    }
    (rank > 0).then(|| (rank, n + 1 - rank))
}

/// The median of `samples` with its interval at `confidence` (0 to 1). `None` without samples or
/// with a NaN among them.
pub fn median_ci(samples: &[f64], confidence: f64) -> Option<Estimate> {
    if samples.is_empty() || samples.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    Some(Estimate {
        value: f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]),
        interval: median_ranks(n, confidence).map(|(low, high)| Interval {
            low: sorted[low - 1],
            high: sorted[high - 1],
        }),
        samples: n as u64,
    })
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;

    /// Exact binomial sums in integers: the largest k with P(Bin(n, 1/2) < k) <= 0.025, and n + 1 -
    /// k.
    #[test]
    fn ranks_match_the_tables() {
        for (n, ranks) in [
            (5, None),
            (6, Some((1, 6))),
            (9, Some((2, 8))),
            (10, Some((2, 9))),
            (20, Some((6, 15))),
            (30, Some((10, 21))),
            (50, Some((18, 33))),
            (100, Some((40, 61))),
        ] {
            assert_eq!(median_ranks(n, 0.95), ranks, "n = {n}");
        }
        assert_eq!(median_ranks(0, 0.95), None);
        // Large n: mean and deviation of the binomial, n/2 -+ 1.96 sqrt(n)/2.
        let (low, high) = median_ranks(1_000_000, 0.95).unwrap();
        assert!(
            low.abs_diff(499_020) <= 2 && high.abs_diff(500_981) <= 2,
            "{low} {high}"
        );
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        let odd = median_ci(&[3.0, 1.0, 2.0], 0.95).unwrap();
        assert_eq!((odd.value, odd.interval), (2.0, None));
        assert_eq!(median_ci(&[4.0, 1.0, 2.0, 3.0], 0.95).unwrap().value, 2.5);
        assert_eq!(median_ci(&[], 0.95), None);
        assert_eq!(median_ci(&[1.0, f64::NAN], 0.95), None);
    }

    /// A generator with a fixed seed draws many sets from a skewed distribution with a known
    /// median. The interval must cover it at the rate of the binomial distribution: 97.9 % for ten
    /// samples.
    #[test]
    fn interval_covers_the_median_at_its_confidence() {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        };
        let median_of_exponential = std::f64::consts::LN_2;
        let sets = 4000;
        let covered = (0..sets)
            .filter(|_| {
                let set: Vec<f64> = (0..10).map(|_| -uniform().ln()).collect();
                let interval = median_ci(&set, 0.95).unwrap().interval.unwrap();
                interval.low <= median_of_exponential && median_of_exponential <= interval.high
            })
            .count();
        let share = covered as f64 / f64::from(sets);
        assert!((share - 0.979).abs() < 0.01, "covered {share}");
    }
}
