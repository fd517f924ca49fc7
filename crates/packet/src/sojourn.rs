//! The log-linear histogram of sojourn times, its layout shared by the eBPF programs, the workers
//! and the agent.
//!
//! Nanoseconds below 32 have a bucket each; from there every octave has [`SUB_BUCKETS`] of equal
//! width, so that a bucket is at most 1/32 (3.1 %) of its lower bound wide and the midpoint is off
//! by at most 1.6 %. The last bucket takes everything from 2^36 ns (68 s) on.

use serde::{Deserialize, Serialize};

/// Buckets an octave.
pub const SUB_BUCKETS: usize = 32;
/// Buckets of a histogram.
pub const BUCKETS: usize = 1024;

const SUB_BITS: u32 = SUB_BUCKETS.trailing_zeros();

/// The bucket of a duration.
pub const fn index(ns: u64) -> usize {
    if ns < SUB_BUCKETS as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let index = shift as usize * SUB_BUCKETS + (ns >> shift) as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// The shortest duration of bucket `i`, nanoseconds; that of `BUCKETS` is the end of the range.
pub const fn lower_bound(i: usize) -> u64 {
    if i < 2 * SUB_BUCKETS {
        return i as u64;
    }
    ((i % SUB_BUCKETS + SUB_BUCKETS) as u64) << (i / SUB_BUCKETS - 1)
}

/// The middle of bucket `i`, nanoseconds: what stands for the durations in it.
pub const fn midpoint(i: usize) -> u64 {
    // A bucket of width 1 holds exactly its lower bound.
    lower_bound(i) + (lower_bound(i + 1) - lower_bound(i)) / 2
}

/// Durations counted in buckets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }

    /// From bucket counts read elsewhere, such as one CPU's array of the eBPF side: sum and
    /// extremes are those of the midpoints. Counts beyond [`BUCKETS`] go to the last bucket.
    pub fn from_counts(counts: &[u64]) -> Self {
        let mut histogram = Self::new();
        for (i, &count) in counts.iter().enumerate() {
            histogram.record_many(midpoint(i.min(BUCKETS - 1)), count);
        }
        histogram
    }

    /// From bucket counts with exact sum and extremes, nanoseconds, kept by whoever counted.
    pub fn from_parts(counts: &[u64], sum_ns: u64, min_ns: u64, max_ns: u64) -> Self {
        let mut histogram = Self::from_counts(counts);
        if histogram.count > 0 {
            histogram.sum_ns = sum_ns;
            histogram.min_ns = min_ns;
            histogram.max_ns = max_ns;
        }
        histogram
    }

    /// Counts one duration.
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts `count` durations of `ns` nanoseconds each.
    pub fn record_many(&mut self, ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.counts[index(ns)] += count;
        self.count += count;
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the durations of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// What was counted since `earlier`, an older reading of the same histogram. The extremes are
    /// those of the buckets, since the exact ones may be older.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts: Vec<u64> = self
            .counts
            .iter()
            .zip(&earlier.counts)
            .map(|(now, then)| now.saturating_sub(*then))
            .collect();
        let mut difference = Self::from_counts(&counts);
        difference.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        difference
    }

    /// Counts by bucket, [`BUCKETS`] of them.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Durations counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sum of the durations, nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The shortest duration, nanoseconds.
    pub fn min_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ns)
    }

    /// The longest duration, nanoseconds.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// Mean duration, nanoseconds.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// The duration, nanoseconds, that a share `q` (0 to 1) of all stay at or below: nearest rank,
    /// the midpoint of its bucket, within the extremes.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                // Everything beyond the range is in the last bucket; only its maximum is known.
                let value = if i == BUCKETS - 1 {
                    self.max_ns
                } else {
                    midpoint(i)
                };
                return Some(value.clamp(self.min_ns, self.max_ns));
            }
        }
        Some(self.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_hole() {
        for i in 0..BUCKETS {
            assert_eq!(index(lower_bound(i)), i);
            assert_eq!(index(lower_bound(i + 1) - 1), i);
            assert_eq!(index(midpoint(i)), i);
        }
        assert_eq!(lower_bound(BUCKETS), 1 << 36);
    }

    #[test]
    fn the_last_bucket_takes_the_rest() {
        for ns in [(1 << 36) - 1, 1 << 36, u64::MAX] {
            assert_eq!(index(ns), BUCKETS - 1);
        }
    }

    #[test]
    fn an_empty_histogram_says_so() {
        let empty = Histogram::new();
        assert!(empty.is_empty());
        assert_eq!(empty.quantile(0.5), None);
        assert_eq!(
            (empty.min_ns(), empty.max_ns(), empty.mean_ns()),
            (None, None, None)
        );
        assert_eq!(Histogram::from_parts(&[], 5, 6, 7), empty);
    }

    #[test]
    fn merging_an_empty_one_changes_nothing() {
        let mut histogram = Histogram::new();
        histogram.record(1234);
        let before = histogram.clone();
        histogram.merge(&Histogram::new());
        assert_eq!(histogram, before);
    }

    #[test]
    fn durations_beyond_the_range_keep_their_maximum() {
        let mut histogram = Histogram::new();
        histogram.record(10);
        histogram.record(1 << 40);
        assert_eq!(histogram.quantile(1.0), Some(1 << 40));
    }

    #[test]
    fn since_leaves_what_is_new() {
        let mut histogram = Histogram::new();
        histogram.record(20);
        let earlier = histogram.clone();
        histogram.record(1003);
        let new = histogram.since(&earlier);
        // The sum is exact, the extremes are the midpoint of 992..1008.
        assert_eq!((new.count(), new.sum_ns()), (1, 1003));
        assert_eq!((new.min_ns(), new.max_ns()), (Some(1000), Some(1000)));
    }

    #[test]
    fn counts_beyond_the_buckets_do_not_panic() {
        assert_eq!(
            Histogram::from_counts(&[1; BUCKETS + 3]).count(),
            BUCKETS as u64 + 3
        );
    }

    fn durations() -> impl Strategy<Value = Vec<u64>> {
        // As many short as long ones.
        prop::collection::vec(
            (0..37_u32, any::<u64>()).prop_map(|(bits, ns)| ns & ((1 << bits) - 1)),
            1..200,
        )
    }

    fn histogram_of(durations: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for &ns in durations {
            histogram.record(ns);
        }
        histogram
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_bucket_of_the_sorted_list(mut list in durations(), q in 0.0..=1.0_f64) {
            let histogram = histogram_of(&list);
            list.sort_unstable();
            let rank = ((q * list.len() as f64).ceil() as usize).max(1);
            let exact = list[rank - 1];
            let estimate = histogram.quantile(q).unwrap();
            prop_assert!(estimate.abs_diff(exact) as f64 <= exact as f64 / 32.0, "{estimate} for {exact}");
            prop_assert_eq!(histogram.sum_ns(), list.iter().sum::<u64>());
            prop_assert_eq!(histogram.min_ns(), list.first().copied());
            prop_assert_eq!(histogram.max_ns(), list.last().copied());
        }

        #[test]
        fn merged_is_as_if_counted_together(a in durations(), b in durations()) {
            let mut merged = histogram_of(&a);
            merged.merge(&histogram_of(&b));
            prop_assert_eq!(merged, histogram_of(&[a, b].concat()));
        }

        #[test]
        fn parts_make_the_same_histogram_again(list in durations()) {
            let histogram = histogram_of(&list);
            let again = Histogram::from_parts(
                histogram.counts(),
                histogram.sum_ns(),
                histogram.min_ns().unwrap(),
                histogram.max_ns().unwrap(),
            );
            prop_assert_eq!(again, histogram);
        }
    }
}
