//! Means with Student's confidence interval, from a slice or from a running sum.

use serde::{Deserialize, Serialize};

use super::{Estimate, Interval, t_quantile};

/// Count, mean and squared deviations of a stream of samples, without the samples (Welford; merged
/// after Chan et al. 1979).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Adds the same sample `count` times.
    pub fn push_many(&mut self, sample: f64, count: u64) {
        self.merge(&Self {
            count,
            mean: sample,
            squares: 0.0,
        });
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        let (mine, theirs) = (self.count as f64, other.count as f64);
        let total = mine + theirs;
        let delta = other.mean - self.mean;
        self.mean += delta * theirs / total;
        self.squares += other.squares + delta * delta * mine * theirs / total;
        self.count += other.count;
    }

    /// Replaces the mean of rounded samples with the exact one.
    pub(crate) fn set_mean(&mut self, mean: f64) {
        self.mean = mean;
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean of the samples; `None` without samples.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Sample standard deviation (n - 1); `None` below two samples.
    pub fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).sqrt())
    }

    /// The mean with its interval at `confidence` (0 to 1), which assumes independent samples.
    pub fn estimate(&self, confidence: f64) -> Option<Estimate> {
        let mean = self.mean()?;
        let interval = self.deviation().map(|deviation| {
            let n = self.count as f64;
            let half = t_quantile(f64::midpoint(1.0, confidence), n - 1.0) * deviation / n.sqrt();
            Interval {
                low: mean - half,
                high: mean + half,
            }
        });
        Some(Estimate {
            value: mean,
            interval,
            samples: self.count,
        })
    }
}

/// The mean of `samples` with its interval at `confidence` (0 to 1) by Student's t with n - 1
/// degrees of freedom.
///
/// `None` without samples; no interval below two.
pub fn mean_ci(samples: &[f64], confidence: f64) -> Option<Estimate> {
    let mut moments = Moments::default();
    for &sample in samples {
        moments.push_many(sample, 1);
    }
    moments.estimate(confidence)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By hand: squared deviations sum to 0.636, so s = sqrt(0.636 / 9); t(0.975, 9) = 2.262157;
    /// half = t s / sqrt(10) = 0.190165.
    #[test]
    fn interval_matches_a_manual_calculation() {
        let samples = [9.8, 10.2, 10.4, 9.9, 10.0, 10.2, 10.3, 9.7, 10.1, 9.6];
        let estimate = mean_ci(&samples, 0.95).unwrap();
        assert!((estimate.value - 10.02).abs() < 1e-12);
        let interval = estimate.interval.unwrap();
        assert!((interval.low - 9.829_835).abs() < 1e-5, "{interval:?}");
        assert!((interval.high - 10.210_165).abs() < 1e-5, "{interval:?}");
        assert!((estimate.half_width().unwrap() - 0.190_165).abs() < 1e-5);
    }

    #[test]
    fn too_few_samples_have_no_interval() {
        assert_eq!(mean_ci(&[], 0.95), None);
        let one = mean_ci(&[5.0], 0.95).unwrap();
        assert_eq!((one.value, one.interval, one.samples), (5.0, None, 1));
        let same = mean_ci(&[5.0; 9], 0.95).unwrap().interval.unwrap();
        assert_eq!((same.low, same.high), (5.0, 5.0));
    }

    proptest! {
        #[test]
        fn merging_equals_adding_all_samples(
            left in prop::collection::vec(-1e6..1e6f64, 0..50),
            right in prop::collection::vec(-1e6..1e6f64, 0..50),
        ) {
            let all: Vec<f64> = left.iter().chain(&right).copied().collect();
            let (mut a, mut b) = (Moments::default(), Moments::default());
            for &v in &left { a.push_many(v, 1); }
            for &v in &right { b.push_many(v, 1); }
            a.merge(&b);
            prop_assert_eq!(a.count(), all.len() as u64);
            if all.len() > 1 {
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64;
                prop_assert!((a.mean().unwrap() - mean).abs() <= 1e-6);
                prop_assert!((a.deviation().unwrap() - variance.sqrt()).abs() <= 1e-6 * (1.0 + variance.sqrt()));
            }
        }
    }
}
