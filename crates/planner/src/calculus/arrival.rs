//! Arrival curves: the most work that arrives in any interval.

use super::SECOND;
use super::rounding::{mul_div_down, mul_div_up};

/// A leaky bucket: at most `burst + rate * t` in any interval of length `t` (LBT section 1.2.2).
/// The output of a token bucket has this arrival curve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeakyBucket {
    /// Most work at once.
    pub burst: u128,
    /// Long-term rate, work a second.
    pub rate: u128,
}

impl LeakyBucket {
    /// Creates a bucket with this burst and rate.
    pub const fn new(burst: u128, rate: u128) -> Self {
        Self { burst, rate }
    }

    /// Returns the most work in an interval of the length `time_fs`.
    pub fn at(&self, time_fs: u128) -> Option<u128> {
        mul_div_up(self.rate, time_fs, SECOND)?.checked_add(self.burst)
    }

    /// Returns the sum of two buckets.
    pub(crate) fn plus(&self, other: &Self) -> Option<Self> {
        Some(Self {
            burst: self.burst.checked_add(other.burst)?,
            rate: self.rate.checked_add(other.rate)?,
        })
    }

    fn minus(&self, other: &Self) -> Option<Self> {
        Some(Self {
            burst: self.burst.checked_sub(other.burst)?,
            rate: self.rate.checked_sub(other.rate)?,
        })
    }
}

/// The minimum of two leaky buckets: the bucket with the least burst, and that with the least rate.
///
/// A profile in packets and bits gives several buckets of work. The curve keeps two:
/// [`short`](Self::short) is lowest over short intervals, [`long`](Self::long) over long ones. Sums
/// add the short buckets and the long buckets separately. The minimum of the sums is at least the
/// sum of the minima, so the minimum of the sums is a valid curve. Thus ten thousand flows need two
/// buckets, and subtraction of a flow is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArrivalCurve {
    short: LeakyBucket,
    long: LeakyBucket,
}

impl ArrivalCurve {
    /// Creates the curve of one bucket.
    pub const fn of(bucket: LeakyBucket) -> Self {
        Self {
            short: bucket,
            long: bucket,
        }
    }

    /// Creates the curve of traffic that conforms to all `buckets`; `None` without a bucket.
    pub fn least_of(buckets: impl IntoIterator<Item = LeakyBucket>) -> Option<Self> {
        let mut buckets = buckets.into_iter();
        let mut curve = Self::of(buckets.next()?);
        for bucket in buckets {
            if (bucket.burst, bucket.rate) < (curve.short.burst, curve.short.rate) {
                curve.short = bucket;
            }
            if (bucket.rate, bucket.burst) < (curve.long.rate, curve.long.burst) {
                curve.long = bucket;
            }
        }
        Some(curve)
    }

    /// Returns the bucket with the least burst.
    pub const fn short(&self) -> LeakyBucket {
        self.short
    }

    /// Returns the bucket with the least rate.
    pub const fn long(&self) -> LeakyBucket {
        self.long
    }

    /// Whether no work arrives.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the most work in an interval of the length `time_fs`.
    pub fn at(&self, time_fs: u128) -> Option<u128> {
        let (short, long) = (self.short.at(time_fs), self.long.at(time_fs));
        short.into_iter().chain(long).min()
    }

    /// Returns the crossover of a curve whose short bucket has the greater rate: the last
    /// femtosecond at which the short bucket is lower than the long bucket, and the most work that
    /// has arrived one femtosecond later.
    pub(super) fn crossover(&self) -> Option<(u128, u128)> {
        let (short, long) = (self.short, self.long);
        let crossover_fs = mul_div_down(
            long.burst.checked_sub(short.burst)?,
            SECOND,
            short.rate.checked_sub(long.rate)?,
        )?;
        Some((crossover_fs, short.at(crossover_fs.checked_add(1)?)?))
    }

    /// Returns the sum of two curves.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        Some(Self {
            short: self.short.plus(&other.short)?,
            long: self.long.plus(&other.long)?,
        })
    }

    /// Subtracts one part of this sum. Returns `None` if `part` is greater than the sum.
    pub fn minus(&self, part: &Self) -> Option<Self> {
        Some(Self {
            short: self.short.minus(&part.short)?,
            long: self.long.minus(&part.long)?,
        })
    }

    /// Multiplies the work by `factor`.
    pub(crate) fn times(&self, factor: u128) -> Option<Self> {
        self.map(|bucket| {
            let burst = bucket.burst.checked_mul(factor)?;
            Some(LeakyBucket::new(burst, bucket.rate.checked_mul(factor)?))
        })
    }

    /// Applies `change` to both buckets.
    pub(super) fn map(&self, change: impl Fn(LeakyBucket) -> Option<LeakyBucket>) -> Option<Self> {
        Some(Self {
            short: change(self.short)?,
            long: change(self.long)?,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Curves with a crossover whose long bucket has a rate below 20 a second.
    pub(in super::super) fn curve_with_crossover() -> impl Strategy<Value = ArrivalCurve> {
        let drawn = (1_u128..40, 0_u128..200, 20_u128..1000, 1_u128..20);
        drawn.prop_map(|(burst, more, short_rate, long_rate)| {
            let short = LeakyBucket::new(burst, short_rate);
            ArrivalCurve::least_of([short, LeakyBucket::new(burst + more, long_rate)]).unwrap()
        })
    }

    #[test]
    fn curve_is_the_minimum_of_its_buckets() {
        let (peak, mean) = (LeakyBucket::new(10, 1000), LeakyBucket::new(100, 10));
        let useless = LeakyBucket::new(200, 2000);
        let curve = ArrivalCurve::least_of([mean, useless, peak]).unwrap();
        assert_eq!((curve.short(), curve.long()), (peak, mean));
        assert_eq!(curve.at(0), Some(10));
        assert_eq!(curve.at(SECOND), Some(110));
        assert_eq!(curve.at(1), Some(11), "a part of a unit counts as one");
        assert_eq!(ArrivalCurve::least_of([]), None);
    }

    #[test]
    fn subtraction_reverses_addition() {
        let first = ArrivalCurve::of(LeakyBucket::new(3, 7));
        let second =
            ArrivalCurve::least_of([LeakyBucket::new(1, 9), LeakyBucket::new(5, 2)]).unwrap();
        let sum = first.plus(&second).unwrap();
        assert_eq!(sum.minus(&second), Some(first));
        assert_eq!(first.minus(&sum), None);
        let huge = ArrivalCurve::of(LeakyBucket::new(u128::MAX, 1));
        assert_eq!(huge.plus(&first), None);
        assert_eq!(huge.at(SECOND), None, "more than 128 bits");
    }
}
