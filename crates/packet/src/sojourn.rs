//! The log-linear histogram of sojourn times. The eBPF programs, the workers and the agent share
//! its layout.
//!
//! Each nanosecond below 32 has a bucket. Above, every octave has [`SUB_BUCKETS`] buckets of equal
//! width. So a bucket's width is at most 1/32 (3.1 %) of its lower bound, and its midpoint is wrong
//! by at most 1.6 %. The last bucket contains all durations from 2^36 ns (68 s).

use serde::{Deserialize, Serialize};

/// Buckets per octave.
pub const SUB_BUCKETS: usize = 32;
/// Buckets of a histogram.
pub const BUCKETS: usize = 1024;

const PS_PER_NS: u64 = 1000;
const SUB_BITS: u32 = SUB_BUCKETS.trailing_zeros();

/// Returns the bucket of a duration.
pub const fn index(ns: u64) -> usize {
    if ns < SUB_BUCKETS as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let index = shift as usize * SUB_BUCKETS + (ns >> shift) as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// Returns the shortest duration of bucket `i`, nanoseconds; for `BUCKETS`, the end of the range.
pub const fn lower_bound(i: usize) -> u64 {
    if i < 2 * SUB_BUCKETS {
        return i as u64;
    }
    ((i % SUB_BUCKETS + SUB_BUCKETS) as u64) << (i / SUB_BUCKETS - 1)
}

/// Returns the midpoint of bucket `i`, nanoseconds: the estimate for its durations.
pub const fn midpoint(i: usize) -> u64 {
    // A bucket of width 1 contains exactly its lower bound.
    lower_bound(i) + (lower_bound(i + 1) - lower_bound(i)) / 2
}

/// Durations, counted in buckets.
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
    /// Makes an empty histogram.
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }

    /// Makes a histogram from bucket counts, such as one CPU's array in the eBPF programs. Sum and
    /// extremes come from the midpoints. Counts beyond [`BUCKETS`] go to the last bucket.
    pub fn from_counts(counts: &[u64]) -> Self {
        let mut histogram = Self::new();
        for (i, &count) in counts.iter().enumerate() {
            histogram.record_many(midpoint(i.min(BUCKETS - 1)), count);
        }
        histogram
    }

    /// Makes a histogram from bucket counts with exact sum and extremes, nanoseconds.
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

    /// Counts `count` durations at equal distances, rounded down to nanoseconds. The longest is
    /// `longest_ps`, each further one is `gap_ps` shorter, and none is shorter than 0. Costs about
    /// as much as one duration for each bucket. The sum is exact to a nanosecond a duration.
    pub fn record_series(&mut self, longest_ps: u64, gap_ps: u64, count: u64) {
        let Some(further) = count.checked_sub(1) else {
            return;
        };
        let distance_ps = gap_ps.checked_mul(further);
        let shortest_ps = distance_ps.and_then(|distance_ps| longest_ps.checked_sub(distance_ps));
        let Some(shortest_ps) = shortest_ps else {
            let positive = longest_ps / gap_ps + 1;
            self.record_series(longest_ps, gap_ps, positive);
            self.record_many(0, count - positive);
            return;
        };
        self.count += count;
        let mean_ps = shortest_ps.midpoint(longest_ps);
        let sum_ns = (mean_ps / PS_PER_NS).saturating_mul(count);
        let rest_ns = (mean_ps % PS_PER_NS).saturating_mul(count) / PS_PER_NS;
        self.sum_ns = self.sum_ns.saturating_add(sum_ns).saturating_add(rest_ns);
        self.min_ns = self.min_ns.min(shortest_ps / PS_PER_NS);
        self.max_ns = self.max_ns.max(longest_ps / PS_PER_NS);
        self.count_series(longest_ps, gap_ps, count);
    }

    /// Adds a series to the buckets. With a width that is `each` distances and a rest, a bucket has
    /// `each` durations or one more, so only a new width costs a division.
    fn count_series(&mut self, longest_ps: u64, gap_ps: u64, mut count: u64) {
        if gap_ps == 0 {
            self.counts[index(longest_ps / PS_PER_NS)] += count;
            return;
        }
        let mut next_ps = longest_ps;
        loop {
            let bucket = index(next_ps / PS_PER_NS);
            let low_ps = lower_bound(bucket) * PS_PER_NS;
            let here = ((next_ps - low_ps) / gap_ps + 1).min(count);
            self.counts[bucket] += here;
            count -= here;
            if count == 0 {
                return;
            }
            next_ps -= here * gap_ps;
            // The shorter buckets of the octave, if a duration cannot skip one.
            let start = bucket.saturating_sub(1) / SUB_BUCKETS * SUB_BUCKETS;
            let width_ps = low_ps - lower_bound(bucket.saturating_sub(1)) * PS_PER_NS;
            let (each, rest_ps) = (width_ps / gap_ps, width_ps % gap_ps);
            if each == 0 {
                continue;
            }
            let mut below_ps = low_ps - next_ps;
            for bucket in self.counts[start..bucket].iter_mut().rev() {
                let has_more = below_ps <= rest_ps;
                let here = (each + u64::from(has_more)).min(count);
                *bucket += here;
                count -= here;
                if count == 0 {
                    return;
                }
                below_ps = below_ps + u64::from(has_more) * gap_ps - rest_ps;
            }
            next_ps = lower_bound(start) * PS_PER_NS - below_ps;
        }
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

    /// Returns the durations since `earlier`, an older reading of the same histogram. The extremes
    /// come from the buckets, because the exact extremes may be older.
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

    /// Returns the [`BUCKETS`] counts, indexed by bucket.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether the histogram is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the sum of the durations, nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the shortest duration, nanoseconds.
    pub fn min_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ns)
    }

    /// Returns the longest duration, nanoseconds.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// Returns the mean duration, nanoseconds.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// Returns the duration, nanoseconds, that a share `q` (0 to 1) of all durations does not
    /// exceed. The estimate is the midpoint of the nearest rank's bucket, within the extremes.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut cumulative = 0;
        for (i, &count) in self.counts.iter().enumerate() {
            cumulative += count;
            if cumulative >= rank {
                // The last bucket contains all durations beyond the range; only their maximum is
                // known.
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
    fn buckets_have_no_gaps() {
        for i in 0..BUCKETS {
            assert_eq!(index(lower_bound(i)), i);
            assert_eq!(index(lower_bound(i + 1) - 1), i);
            assert_eq!(index(midpoint(i)), i);
        }
        assert_eq!(lower_bound(BUCKETS), 1 << 36);
    }

    #[test]
    fn the_last_bucket_contains_all_longer_durations() {
        for ns in [(1 << 36) - 1, 1 << 36, u64::MAX] {
            assert_eq!(index(ns), BUCKETS - 1);
        }
    }

    #[test]
    fn an_empty_histogram_has_no_values() {
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
    fn merging_an_empty_histogram_changes_nothing() {
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
    fn since_returns_new_durations() {
        let mut histogram = Histogram::new();
        histogram.record(20);
        let earlier = histogram.clone();
        histogram.record(1003);
        let new = histogram.since(&earlier);
        // The sum is exact; the extremes are the midpoint of 992..1008.
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
        // Short and long durations are equally frequent.
        prop::collection::vec(
            (0..37_u32, any::<u64>()).prop_map(|(bits, ns)| ns & ((1 << bits) - 1)),
            1..200,
        )
    }

    fn whole_ns(most_ns: u64) -> impl Strategy<Value = u64> {
        (0..most_ns).prop_map(|ns| ns * PS_PER_NS)
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
        fn a_series_counts_as_if_each_duration_were_recorded(
            gap_ps in prop_oneof![Just(0), 1_u64..3_000_000, 1_u64..1 << 40, whole_ns(3000)],
            count in 1_u64..3000,
            shortest_ps in prop_oneof![0_u64..2_000_000_000, Just(1 << 47), whole_ns(2_000_000)],
            cut_ps in prop_oneof![4 => Just(0), 1 => 0_u64..1 << 20],
        ) {
            let longest_ps = (shortest_ps + gap_ps * (count - 1)).saturating_sub(cut_ps);
            let mut series = Histogram::new();
            series.record_series(longest_ps, gap_ps, count);
            let mut each = Histogram::new();
            for further in 0..count {
                each.record(longest_ps.saturating_sub(further * gap_ps) / PS_PER_NS);
            }
            prop_assert_eq!(series.counts(), each.counts());
            prop_assert_eq!(series.count(), each.count());
            prop_assert_eq!((series.min_ns(), series.max_ns()), (each.min_ns(), each.max_ns()));
            let difference_ns = series.sum_ns().abs_diff(each.sum_ns());
            prop_assert!(difference_ns <= count, "{} and {}", series.sum_ns(), each.sum_ns());
        }

        #[test]
        fn merging_equals_counting_together(a in durations(), b in durations()) {
            let mut merged = histogram_of(&a);
            merged.merge(&histogram_of(&b));
            prop_assert_eq!(merged, histogram_of(&[a, b].concat()));
        }

        #[test]
        fn parts_restore_the_histogram(list in durations()) {
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
