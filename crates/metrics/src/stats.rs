//! Estimates with confidence intervals from a few noisy rounds.
//!
//! Three estimates for three questions:
//!
//! * [`mean_ci`]: the mean of repeats, Student's t. CALVIN's figures are such means of 50 repeats
//!   with 95 % intervals.
//! * [`median_ci`]: the median, by order statistics of the binomial distribution. It assumes no
//!   distribution, so a vCPU that stands still for 10 ms does not spoil it.
//! * [`Deployments`]: medians and paired ratios of subjects that are deployed several times and
//!   measured in turns. Absolute times drift by 20-30 % within minutes on a virtual machine; the
//!   ratio within a round does not. [`Estimate::at_most`] decides a bound.

mod deployments;
mod mean;
mod median;
mod student;

pub use deployments::{Deployments, LOOK_CONFIDENCE, LOOKS};
pub use mean::{Moments, mean_ci};
pub use median::{median_ci, median_ranks};
use student::t_quantile;

use serde::Serialize;

/// Default level of confidence.
pub const CONFIDENCE: f64 = 0.95;

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
    /// Confidence interval of the true value; `None` with too few samples.
    pub interval: Option<Interval>,
    /// Number of samples.
    pub samples: u64,
}

impl Estimate {
    /// The estimate in another unit: `factor` new units are one old unit.
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

    /// Whether "at most `bound`" holds: `Some(true)` if the whole interval is at or below the
    /// bound, `Some(false)` if the whole interval is above it. `None` if the interval contains the
    /// bound, or is missing.
    pub fn at_most(&self, bound: f64) -> Option<bool> {
        let Interval { low, high } = self.interval?;
        (high <= bound || low > bound).then_some(high <= bound)
    }

    /// Whether "at least `bound`" holds, by the same rule.
    pub fn at_least(&self, bound: f64) -> Option<bool> {
        let Interval { low, high } = self.interval?;
        (low >= bound || high < bound).then_some(low >= bound)
    }

    /// Half the width of the interval: the "+-" of a printed figure.
    pub fn half_width(&self) -> Option<f64> {
        self.interval.map(|i| (i.high - i.low) / 2.0)
    }
}
