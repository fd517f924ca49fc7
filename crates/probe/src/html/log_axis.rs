//! A logarithmic axis whose labels stand at round numbers, also when it spans less than a decade.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Steps within a decade, coarsest first.
const STEPS: [&[f64]; 4] = [
    &[1.0],
    &[1.0, 2.0, 5.0],
    &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    &[
        1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4,
        3.6, 3.8, 4.0, 4.2, 4.4, 4.6, 4.8, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5,
    ],
];

/// An axis over positive numbers.
#[derive(Debug, Clone)]
pub(super) struct LogAxis {
    ends: Range<f64>,
}

impl LogAxis {
    /// From `low` to `high`, with a little room around; both are taken as positive and apart.
    pub(super) fn around(low: f64, high: f64) -> Self {
        let low = low.clamp(1e-4, 1e12);
        let high = high.clamp(low, 1e12);
        Self {
            ends: low * 0.9..high * 1.1,
        }
    }

    /// Decades that it spans.
    pub(super) fn decades(&self) -> f64 {
        (self.ends.end / self.ends.start).log10()
    }

    fn ticks(&self, most: usize) -> Vec<f64> {
        let decades = self.ends.start.log10().floor() as i32..=self.ends.end.log10().ceil() as i32;
        let at = |steps: &[f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
                .filter(|tick| self.ends.contains(tick))
                .collect()
        };
        let mut ticks = at(STEPS[0]);
        for steps in &STEPS[1..] {
            let finer = at(steps);
            if finer.len() > most {
                break;
            }
            ticks = finer;
        }
        ticks
    }
}

impl Ranged for LogAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let part = (value.max(1e-9) / self.ends.start).log10() / self.decades();
        let length = f64::from(pixels.1 - pixels.0);
        pixels.0 + (part * length).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.ticks(hint.max_num_points())
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
    }
}

impl ValueFormatter<f64> for LogAxis {
    fn format_ext(&self, value: &f64) -> String {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_round_and_neither_few_nor_many() {
        let shown = |low, high| {
            let axis = LogAxis::around(low, high);
            axis.ticks(15)
                .iter()
                .map(|tick| axis.format_ext(tick))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(8.0, 350.0), ["10", "20", "50", "100", "200"]);
        assert_eq!(
            shown(11.0, 90.0),
            ["10", "15", "20", "30", "40", "50", "60", "70", "80", "90"]
        );
        assert_eq!(shown(8.2, 9.1), ["7.5", "8", "8.5", "9", "9.5", "10"]);
        assert_eq!(
            shown(1.0, 1e6),
            ["1", "10", "100", "1000", "10000", "100000", "1000000"]
        );
        assert!(!shown(0.0, 0.0).is_empty());
    }

    #[test]
    fn equal_ratios_are_equally_far_apart() {
        let axis = LogAxis::around(1.0, 1000.0);
        let x = |value: f64| axis.map(&value, (0, 10_000));
        assert!((x(100.0) - x(10.0) - (x(10.0) - x(1.0))).abs() <= 1);
        assert_eq!((x(0.9), x(1100.0)), (0, 10_000));
        assert!(
            x(-5.0) < 0,
            "what is not positive is off the axis, not a panic"
        );
    }
}
