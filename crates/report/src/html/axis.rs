//! Axes with labels at round numbers, also for logarithmic axes that span less than a decade.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Steps within a decade of a logarithmic axis, coarsest first.
const LOG_STEPS: [&[f64]; 4] = [
    &[1.0],
    &[1.0, 2.0, 5.0],
    &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    &[
        1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4,
        3.6, 3.8, 4.0, 4.2, 4.4, 4.6, 4.8, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5,
    ],
];
/// Distances between the labels of a linear axis, within a decade.
const LINEAR_STEPS: [f64; 3] = [1.0, 2.0, 5.0];

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Linear, from zero; labels show shares in percent.
    Percent,
    /// Logarithmic, for positive numbers.
    Log,
}

/// An axis over numbers.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    scale: Scale,
    ends: Range<f64>,
}

impl Axis {
    /// Makes an axis that covers all `values` with a margin. A linear axis contains zero.
    pub(crate) fn from_values(scale: Scale, values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = values
            .into_iter()
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        let ends = if scale == Scale::Log {
            // A logarithmic axis has no zero.
            let low = low.clamp(1e-4, 1e12);
            low * 0.9..high.clamp(low, 1e12) * 1.1
        } else {
            let (low, high) = (low.min(0.0), high.max(0.0));
            let room = (high - low).max(1e-6) * 0.06;
            let end = |value: f64, room: f64| if value == 0.0 { 0.0 } else { value + room };
            end(low, -room)..end(high, room).max(1e-6)
        };
        Self { scale, ends }
    }

    /// Makes an axis from `low` to `high`, without a margin.
    pub(crate) fn from_range(scale: Scale, low: f64, high: f64) -> Self {
        Self {
            scale,
            ends: low..high.max(low + 1e-6),
        }
    }

    pub(crate) fn is_logarithmic(&self) -> bool {
        self.scale == Scale::Log
    }

    /// Returns the number of decades of a logarithmic axis.
    pub(crate) fn decades(&self) -> f64 {
        (self.ends.end / self.ends.start).log10()
    }

    /// Returns the position of a value, 0 to 1 between the ends.
    pub(crate) fn position(&self, value: f64) -> f64 {
        if self.is_logarithmic() {
            (value.max(1e-9) / self.ends.start).log10() / self.decades()
        } else {
            (value - self.ends.start) / (self.ends.end - self.ends.start)
        }
    }

    /// Returns about `max_count` round numbers between the ends.
    pub(crate) fn ticks(&self, max_count: usize) -> Vec<f64> {
        if self.is_logarithmic() {
            self.log_ticks(max_count)
        } else {
            self.linear_ticks(max_count)
        }
    }

    fn log_ticks(&self, max_count: usize) -> Vec<f64> {
        let decades = self.ends.start.log10().floor() as i32..=self.ends.end.log10().ceil() as i32;
        let ticks_at = |steps: &[f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
                .filter(|tick| self.ends.contains(tick))
                .collect()
        };
        let mut ticks = ticks_at(LOG_STEPS[0]);
        for steps in &LOG_STEPS[1..] {
            let finer = ticks_at(steps);
            if finer.len() > max_count {
                break;
            }
            ticks = finer;
        }
        ticks
    }

    fn linear_ticks(&self, max_count: usize) -> Vec<f64> {
        let length = self.ends.end - self.ends.start;
        let decade = (length / max_count.max(1) as f64).log10().floor() as i32;
        let step = (decade..=decade + 1)
            .flat_map(|decade| LINEAR_STEPS.map(|step| step * 10_f64.powi(decade)))
            .find(|step| length / step <= max_count as f64)
            .unwrap_or(length);
        let first = (self.ends.start / step).ceil() as i64;
        let last = (self.ends.end / step + 1e-9).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }

    /// Formats the label of a value.
    pub(crate) fn format(&self, value: f64) -> String {
        let (value, unit) = match self.scale {
            Scale::Percent => (value * 100.0, " %"),
            Scale::Linear | Scale::Log => (value, ""),
        };
        let text = format!("{value:.3}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        format!("{}{unit}", if text == "-0" { "0" } else { text })
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let length = f64::from(pixels.1 - pixels.0);
        pixels.0 + (self.position(*value) * length).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.ticks(hint.max_num_points())
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.format(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format_ticks(scale: Scale, values: &[f64], max_count: usize) -> Vec<String> {
        let axis = Axis::from_values(scale, values.iter().copied());
        axis.ticks(max_count)
            .iter()
            .map(|tick| axis.format(*tick))
            .collect()
    }

    #[test]
    fn labels_are_round_numbers_that_suit_the_range() {
        let log = |low, high| format_ticks(Scale::Log, &[low, high], 15);
        assert_eq!(log(8.0, 350.0), ["10", "20", "50", "100", "200"]);
        assert_eq!(
            log(11.0, 90.0),
            ["10", "15", "20", "30", "40", "50", "60", "70", "80", "90"]
        );
        assert_eq!(log(8.2, 9.1), ["7.5", "8", "8.5", "9", "9.5", "10"]);
        assert_eq!(
            log(1.0, 1e6),
            ["1", "10", "100", "1000", "10000", "100000", "1000000"]
        );
        assert!(!log(0.0, 0.0).is_empty());
        let linear = |values: &[f64]| format_ticks(Scale::Linear, values, 6);
        assert_eq!(linear(&[3.0, 5.1]), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(linear(&[-0.2, 0.5]), ["-0.2", "0", "0.2", "0.4"]);
        assert_eq!(linear(&[64.0]), ["0", "20", "40", "60"]);
        assert!(!linear(&[]).is_empty() && !linear(&[0.0, f64::NAN]).is_empty());
        assert_eq!(
            format_ticks(Scale::Percent, &[0.8], 5),
            ["0 %", "20 %", "40 %", "60 %", "80 %"]
        );
    }

    #[test]
    fn equal_ratios_are_equally_far_apart() {
        let axis = Axis::from_values(Scale::Log, [1.0, 1000.0]);
        let x = |value: f64| axis.map(&value, (0, 10_000));
        assert!((x(100.0) - x(10.0) - (x(10.0) - x(1.0))).abs() <= 1);
        assert_eq!((x(0.9), x(1100.0)), (0, 10_000));
        assert!(x(-5.0) < 0, "a value of zero or less maps below the axis");
    }

    #[test]
    fn equal_differences_are_equally_far_apart_on_an_axis_with_zero() {
        let axis = Axis::from_values(Scale::Linear, [50.0, 100.0]);
        let x = |value: f64| axis.map(&value, (0, 10_600));
        assert_eq!((x(0.0), x(50.0), x(100.0)), (0, 5000, 10_000));
    }
}
