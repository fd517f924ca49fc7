//! Statistics of a measurement: what may be claimed from a handful of noisy rounds.
//!
//! Three estimates, each with a confidence interval, each made for another question:
//!
//! * [`mean_ci`]: the mean of repeats, Student's t. CALVIN's figures are these (means of 50 repeats with 95 % intervals).
//! * [`median_ci`]: the median, by order statistics of the binomial distribution. It assumes no shape, so a vCPU that was taken away
//!   for 10 ms does not spoil it.
//! * [`paired_ratio`]: the ratio of two subjects measured in turns, round by round. Absolute times wander by 20-30 % within minutes on a
//!   virtual machine; the ratio within a round does not. When a bound on it *holds* says [`Estimate::at_most`].

mod mean;
mod median;
mod ratio;
mod student;

pub use mean::{Moments, mean_ci};
pub use median::{median_ci, median_ranks};
pub use ratio::{RatioError, paired_ratio};
use student::t_quantile;

use serde::Serialize;

/// The level of confidence of every figure unless said otherwise.
pub const CONFIDENCE: f64 = 0.95;
/// Interleaved rounds that a claim on a ratio or a median must rest on.
pub const ROUNDS_NEEDED: usize = 30;

/// A closed interval, in the unit of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// An estimate from samples, in their unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimated value.
    pub value: f64,
    /// Where the true value lies with the level of confidence asked for; `None` when the samples are too few to say.
    pub interval: Option<Interval>,
    /// How many samples it rests on.
    pub samples: u64,
}

impl Estimate {
    /// The same in another unit: `factor` of the new one are one of the old.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            interval: self.interval.map(|interval| Interval {
                low: interval.low * factor,
                high: interval.high * factor,
            }),
            ..self
        }
    }

    /// Whether "at most `bound`" holds: the interval over at least [`ROUNDS_NEEDED`] rounds lies wholly at or below it.
    /// `None` when the rounds are too few to decide.
    pub fn at_most(&self, bound: f64) -> Option<bool> {
        self.decided().map(|interval| interval.high <= bound)
    }

    /// Whether "at least `bound`" holds, by the same rule.
    pub fn at_least(&self, bound: f64) -> Option<bool> {
        self.decided().map(|interval| interval.low >= bound)
    }

    fn decided(&self) -> Option<Interval> {
        self.interval
            .filter(|_| self.samples >= ROUNDS_NEEDED as u64)
    }

    /// Half the width of the interval: the "+-" of a printed figure.
    pub fn half_width(&self) -> Option<f64> {
        self.interval.map(|i| (i.high - i.low) / 2.0)
    }
}
