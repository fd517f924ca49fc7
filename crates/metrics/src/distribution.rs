//! A distribution of delays: an HDR histogram with exact mean and extremes, and the figures of
//! reports.

use hdrhistogram::Histogram;
use myelin_packet::sojourn;
use serde::{Deserialize, Serialize};

use crate::stats::{CONFIDENCE, Moments, mean_ci};

/// Upper end of the histogram, nanoseconds; longer delays count as this long (the maximum stays
/// exact).
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant decimal digits of a recorded delay: quantiles are within 0.1 %.
const DIGITS: u8 = 3;

/// A histogram of delays in nanoseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "Sparse", from = "Sparse")]
pub struct Distribution {
    histogram: Histogram<u64>,
    moments: Moments,
    min_ns: u64,
    max_ns: u64,
    repeat: Moments,
    repeat_means_ns: Vec<f64>,
}

/// The serialized form: only buckets with delays.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Sparse {
    /// A delay of the bucket, nanoseconds, and the number of delays in it.
    buckets: Vec<(u64, u64)>,
    moments: Moments,
    min_ns: u64,
    max_ns: u64,
    repeat_means_ns: Vec<f64>,
}

impl From<Distribution> for Sparse {
    fn from(whole: Distribution) -> Self {
        let buckets = whole.histogram.iter_recorded();
        Self {
            buckets: buckets
                .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
                .collect(),
            moments: whole.moments,
            min_ns: whole.min_ns,
            max_ns: whole.max_ns,
            repeat_means_ns: whole.repeat_means_ns,
        }
    }
}

impl From<Sparse> for Distribution {
    fn from(sparse: Sparse) -> Self {
        let mut whole = Self {
            moments: sparse.moments,
            min_ns: sparse.min_ns,
            max_ns: sparse.max_ns,
            repeat_means_ns: sparse.repeat_means_ns,
            ..Self::new()
        };
        for (ns, count) in sparse.buckets {
            whole.histogram.saturating_record_n(ns, count);
        }
        whole
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Self::new()
    }
}

impl Distribution {
    /// An empty distribution.
    pub fn new() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
                .expect("the constant bounds are valid for the crate"),
            moments: Moments::default(),
            min_ns: u64::MAX,
            max_ns: 0,
            repeat: Moments::default(),
            repeat_means_ns: Vec::new(),
        }
    }

    /// Records one delay.
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Records `count` delays of `ns` nanoseconds each.
    pub fn record_many(&mut self, ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.histogram.saturating_record_n(ns, count);
        self.moments.push_many(ns as f64, count);
        self.repeat.push_many(ns as f64, count);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Ends a repeat: its mean becomes one sample of the interval over repeats. A repeat without
    /// delays does not count.
    pub fn end_repeat(&mut self) {
        self.repeat_means_ns.extend(self.repeat.mean());
        self.repeat = Moments::default();
    }

    /// Adds the delays and the repeats of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("both have the same constant bounds");
        self.moments.merge(&other.moments);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.repeat_means_ns
            .extend_from_slice(&other.repeat_means_ns);
    }

    /// Number of delays.
    pub fn count(&self) -> u64 {
        self.moments.count()
    }

    /// Whether there are no delays.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The quantile `q` (0 to 1), microseconds, within 0.1 %. `None` if empty.
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        (!self.is_empty()).then(|| {
            let ns = self.histogram.value_at_quantile(q.clamp(0.0, 1.0));
            // The top bucket has all longer delays; minimum and maximum are exact.
            let ns = if q <= 0.0 {
                self.min_ns
            } else if q >= 1.0 || ns >= LONGEST_NS {
                self.max_ns
            } else {
                ns
            };
            us(ns.clamp(self.min_ns, self.max_ns))
        })
    }

    /// The share (0 to 1) of delays at or below `bound_us` microseconds, within 0.1 % of the bound.
    /// `None` if empty.
    pub fn share_within(&self, bound_us: f64) -> Option<f64> {
        (!self.is_empty()).then(|| {
            let bound = (bound_us.max(0.0) * 1000.0) as u64;
            if bound < self.min_ns {
                0.0
            } else {
                self.histogram.quantile_below(bound.min(LONGEST_NS))
            }
        })
    }

    /// The number of delays in `[low_ns, high_ns)`, nanoseconds, each end rounded down to a bucket:
    /// adjacent ranges count each delay once.
    pub fn count_between(&self, low_ns: u64, high_ns: u64) -> u64 {
        if low_ns > LONGEST_NS {
            // Longer delays are counted in the top bucket.
            return 0;
        }
        let first = self.histogram.lowest_equivalent(low_ns);
        let end = if high_ns > LONGEST_NS {
            u64::MAX
        } else {
            self.histogram.lowest_equivalent(high_ns)
        };
        if first >= end {
            return 0;
        }
        self.histogram.count_between(first, end - 1)
    }

    /// The cumulative distribution, ascending: (delay in microseconds, share of delays at or below
    /// it), in steps of 1 % up to p99 and finer beyond.
    pub fn cdf(&self) -> Vec<(f64, f64)> {
        const TAIL: [f64; 7] = [0.995, 0.999, 0.9995, 0.9999, 0.99995, 0.99999, 1.0];
        let percents = (0..=99).map(|percent| f64::from(percent) / 100.0);
        percents
            .chain(TAIL)
            .filter_map(|q| Some((self.quantile_us(q)?, q)))
            .collect()
    }

    /// All figures of the distribution, with the share within `bound_us` if given.
    pub fn summary(&self, bound_us: Option<f64>) -> Option<Summary> {
        let quantile = |q| self.quantile_us(q);
        let over_packets = self.moments.estimate(CONFIDENCE)?;
        let half_us = |estimate: Option<crate::stats::Estimate>| {
            estimate.and_then(|e| e.half_width()).map(|ns| ns / 1000.0)
        };
        Some(Summary {
            count: self.count(),
            mean_us: over_packets.value / 1000.0,
            mean_ci95_us: half_us(mean_ci(&self.repeat_means_ns, CONFIDENCE)),
            mean_packets_ci95_us: half_us(Some(over_packets)),
            min_us: us(self.min_ns),
            p50_us: quantile(0.5)?,
            p90_us: quantile(0.9)?,
            p99_us: quantile(0.99)?,
            p99_9_us: quantile(0.999)?,
            p99_99_us: quantile(0.9999)?,
            max_us: us(self.max_ns),
            bound_us,
            share_within_bound: bound_us.and_then(|bound| self.share_within(bound)),
            cdf_us: self.cdf(),
        })
    }
}

/// From an in-band sojourn, whose buckets are coarser (3.1 %); mean and extremes stay exact.
impl From<&sojourn::Histogram> for Distribution {
    fn from(sojourn: &sojourn::Histogram) -> Self {
        let mut distribution = Self::new();
        let (min, max) = (
            sojourn.min_ns().unwrap_or(u64::MAX),
            sojourn.max_ns().unwrap_or(0),
        );
        for (bucket, &count) in sojourn.counts().iter().enumerate() {
            let ns = sojourn::midpoint(bucket);
            distribution.record_many(if min <= max { ns.clamp(min, max) } else { ns }, count);
        }
        if let Some(mean) = sojourn.mean_ns() {
            distribution.min_ns = min;
            distribution.max_ns = max;
            distribution.moments.set_mean(mean);
        }
        distribution
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// The figures of a distribution; all delays in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Number of delays.
    pub count: u64,
    /// Mean of all packets.
    pub mean_us: f64,
    /// Half width of the mean's 95 % interval over repeats (Student's t). Quote this figure:
    /// packets of one repeat are not independent. `None` below two repeats.
    pub mean_ci95_us: Option<f64>,
    /// Half width of the mean's 95 % interval over packets, as if they were independent. `None`
    /// below two packets.
    pub mean_packets_ci95_us: Option<f64>,
    /// The shortest.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// 99.99th percentile.
    pub p99_99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The bound of `share_within_bound`.
    pub bound_us: Option<f64>,
    /// Share (0 to 1) of delays at or below the bound.
    pub share_within_bound: Option<f64>,
    /// Cumulative distribution: (delay, share at or below it). Not serialized if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdf_us: Vec<(f64, f64)>,
}

impl Summary {
    /// Mean, percentiles and extremes with their names, microseconds.
    pub fn figures(&self) -> [(&'static str, f64); 8] {
        [
            ("min", self.min_us),
            ("mean", self.mean_us),
            ("p50", self.p50_us),
            ("p90", self.p90_us),
            ("p99", self.p99_us),
            ("p99.9", self.p99_9_us),
            ("p99.99", self.p99_99_us),
            ("max", self.max_us),
        ]
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(delays_ns: &[u64]) -> Distribution {
        let mut distribution = Distribution::new();
        for &ns in delays_ns {
            distribution.record(ns);
        }
        distribution
    }

    #[test]
    fn figures_of_a_ramp() {
        // 1 us .. 10 ms in steps of 1 us.
        let ramp: Vec<u64> = (1..=10_000).map(|i| i * 1000).collect();
        let summary = of(&ramp).summary(Some(2500.0)).unwrap();
        assert_eq!(summary.count, 10_000);
        assert!((summary.mean_us - 5000.5).abs() < 1e-6);
        for (value, expected) in [
            (summary.min_us, 1.0),
            (summary.p50_us, 5000.0),
            (summary.p90_us, 9000.0),
            (summary.p99_us, 9900.0),
            (summary.p99_9_us, 9990.0),
            (summary.p99_99_us, 9999.0),
        ] {
            assert!(
                (value / expected - 1.0).abs() < 1e-3,
                "{value} for {expected}"
            );
        }
        assert_eq!(summary.max_us, 10_000.0);
        assert!((summary.share_within_bound.unwrap() - 0.25).abs() < 1e-3);
        // Deviation of 1..=n is sqrt(n(n+1)/12); 1.96 of it over sqrt(n).
        assert!((summary.mean_packets_ci95_us.unwrap() - 56.59).abs() < 0.05);
        assert_eq!(summary.mean_ci95_us, None);
    }

    #[test]
    fn the_mean_interval_is_over_repeats() {
        let mut distribution = Distribution::new();
        for mean in [10_000, 12_000, 11_000] {
            distribution.record(mean - 1000);
            distribution.record(mean + 1000);
            distribution.end_repeat();
        }
        distribution.end_repeat();
        let summary = distribution.summary(None).unwrap();
        // t(0.975, 2) * 1000 ns / sqrt(3)
        assert!((summary.mean_ci95_us.unwrap() - 2.484_14).abs() < 1e-4);
    }

    #[test]
    fn an_empty_distribution_has_no_figures() {
        let empty = Distribution::new();
        assert!(empty.summary(Some(1.0)).is_none());
        assert!(empty.cdf().is_empty());
        assert_eq!(empty.count_between(0, u64::MAX), 0);
    }

    #[test]
    fn overlong_delays_keep_their_maximum() {
        let distribution = of(&[1, LONGEST_NS * 10]);
        assert_eq!(distribution.quantile_us(1.0), Some(600_000_000.0));
        assert_eq!(distribution.quantile_us(0.99), Some(600_000_000.0));
        assert_eq!(distribution.quantile_us(0.0), Some(0.001));
    }

    #[test]
    fn keys_contain_their_unit() {
        let mut summary = of(&[9000]).summary(None).unwrap();
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(
            (&json["p50_us"], &json["p99_us"]),
            (&9.0.into(), &9.0.into())
        );
        assert_eq!(json["mean_ci95_us"], serde_json::Value::Null);
        assert!(json["cdf_us"].is_array());
        summary.cdf_us.clear();
        let json = serde_json::to_value(&summary).unwrap();
        assert!(json.get("cdf_us").is_none());
    }

    #[test]
    fn serialization_keeps_all_figures() {
        let mut sent = of(&[1, 950, 951, 12_345_678, LONGEST_NS * 10]);
        sent.end_repeat();
        sent.record_many(77_777, 1000);
        sent.end_repeat();
        let text = serde_json::to_string(&sent).unwrap();
        let received: Distribution = serde_json::from_str(&text).unwrap();
        assert_eq!(received.summary(Some(950.0)), sent.summary(Some(950.0)));
        assert_eq!(
            received.count_between(900, 78_000),
            sent.count_between(900, 78_000)
        );
        let empty: Distribution =
            serde_json::from_str(&serde_json::to_string(&Distribution::new()).unwrap()).unwrap();
        assert!(empty.is_empty() && empty.quantile_us(0.5).is_none());
    }

    #[test]
    fn conversion_keeps_mean_and_extremes_of_a_sojourn() {
        let mut sojourn = sojourn::Histogram::new();
        for ns in [5_000, 5_100, 900_001] {
            sojourn.record(ns);
        }
        let summary = Distribution::from(&sojourn).summary(None).unwrap();
        assert_eq!(summary.count, 3);
        assert_eq!((summary.min_us, summary.max_us), (5.0, 900.001));
        assert_eq!(Distribution::from(&sojourn).quantile_us(0.0), Some(5.0));
        assert!((summary.mean_us - 910.101 / 3.0).abs() < 1e-9);
        assert!((summary.p50_us / 5.1 - 1.0).abs() < 0.032);
        assert!(Distribution::from(&sojourn::Histogram::new()).is_empty());
    }

    proptest! {
        #[test]
        fn quantiles_shares_and_bins_match_the_sorted_delays(
            mut delays in prop::collection::vec(1..5_000_000_u64, 1..200),
            q in 0.0..=1.0f64,
            split in 1..5_000_000_u64,
        ) {
            let distribution = of(&delays);
            delays.sort_unstable();
            let n = delays.len();
            let rank = ((q * n as f64).ceil() as usize).clamp(1, n);
            let exact = delays[rank - 1] as f64 / 1000.0;
            let measured = distribution.quantile_us(q).unwrap();
            prop_assert!((measured / exact - 1.0).abs() <= 1.1e-3, "{} for {}", measured, exact);

            // Delays within 0.1 % of the split may count on either side.
            let near = |ns: u64, factor: f64| (ns as f64) < split as f64 * factor;
            let at_least = delays.iter().filter(|&&ns| near(ns, 0.998)).count();
            let at_most = delays.iter().filter(|&&ns| near(ns, 1.002)).count();
            let share = distribution.share_within(split as f64 / 1000.0).unwrap() * n as f64;
            prop_assert!(share.round() as usize >= at_least && share.round() as usize <= at_most);

            // Adjacent bins count each delay once.
            prop_assert_eq!(distribution.count_between(0, split) + distribution.count_between(split, u64::MAX), n as u64);
        }

        #[test]
        fn merging_equals_recording_all(a in prop::collection::vec(1..1_000_000_u64, 1..50), b in prop::collection::vec(1..1_000_000_u64, 1..50)) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            let all: Vec<u64> = a.into_iter().chain(b).collect();
            let (merged, all) = (merged.summary(None).unwrap(), of(&all).summary(None).unwrap());
            prop_assert!((merged.mean_us - all.mean_us).abs() < 1e-6);
            prop_assert_eq!((merged.cdf_us, merged.max_us, merged.count), (all.cdf_us, all.max_us, all.count));
        }
    }
}
