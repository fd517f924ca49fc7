//! A histogram of delays with a bound, in text.
//!
//! The edges of bins are preferred numbers. The bound is an edge too, so each bar is on one side of
//! the bound.

use std::fmt::Write as _;

use myelin_metrics::Distribution;

use super::{Style, format_share, format_us};
use crate::bins::{Bin, SERIES, bins_of};

/// The most rows of a histogram.
const MAX_ROWS: usize = 20;
/// One row replaces this number or more of adjacent empty bins.
const GAP: usize = 3;
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// The marked percentiles, as shares: the mark of 0.5 is `p50`.
const MARKED: [f64; 2] = [0.5, 0.99];

/// The content of a histogram.
#[derive(Debug)]
pub struct Histogram<'a> {
    /// The delays.
    pub delays: &'a Distribution,
    /// The SLA's bound, microseconds.
    pub bound_us: Option<f64>,
}

impl Histogram<'_> {
    /// Draws one line for each bin, without a final line end. Returns no text without delays.
    pub fn render(&self, style: Style) -> String {
        let bins = self.bins();
        let bound_ns = self.bound_ns().unwrap_or(u64::MAX);
        let Some(max_count) = bins.iter().map(|bin| bin.count).max() else {
            return String::new();
        };
        let columns = Columns::new(style);
        let mut lines = Vec::new();
        let mut bound = self.bound_us;
        let mut i = 0;
        while i < bins.len() {
            if let Some(at_us) = bound.filter(|_| bins[i].low_ns >= bound_ns) {
                lines.push(self.format_bound(at_us, style));
                bound = None;
            }
            let gap = self.count_empty_bins(&bins, i);
            if gap >= GAP {
                lines.push(columns.format_gap());
                i += gap;
            } else {
                lines.push(columns.format_bin(
                    &bins[i],
                    max_count,
                    self.delays.count(),
                    &self.format_marks(&bins, i),
                ));
                i += 1;
            }
        }
        if let Some(at_us) = bound {
            lines.push(self.format_bound(at_us, style));
        }
        let fitted: Vec<String> = lines
            .iter()
            .map(|line| {
                line.chars()
                    .take(style.width)
                    .collect::<String>()
                    .trim_end()
                    .to_owned()
            })
            .collect();
        fitted.join("\n")
    }

    /// Returns the bins from the shortest delay to the longest, of the finest series that fits the
    /// rows.
    fn bins(&self) -> Vec<Bin> {
        let mut bins = Vec::new();
        for series in SERIES {
            bins = bins_of(self.delays, series, self.bound_ns());
            if self.count_rows(&bins) <= MAX_ROWS {
                break;
            }
        }
        bins
    }

    fn bound_ns(&self) -> Option<u64> {
        self.bound_us
            .map(|us| ((us * 1000.0).round() as u64).max(1))
    }

    fn count_rows(&self, bins: &[Bin]) -> usize {
        let (mut rows, mut i) = (0, 0);
        while i < bins.len() {
            let gap = self.count_empty_bins(bins, i);
            i += if gap >= GAP { gap } else { 1 };
            rows += 1;
        }
        rows
    }

    /// Counts the adjacent empty bins from `i` on, at most up to the bound.
    fn count_empty_bins(&self, bins: &[Bin], i: usize) -> usize {
        let crosses = |bin: &Bin| {
            self.bound_ns()
                .is_some_and(|bound| bins[i].low_ns < bound && bin.low_ns >= bound)
        };
        bins[i..]
            .iter()
            .take_while(|bin| bin.count == 0 && !crosses(bin))
            .count()
    }

    /// Formats the percentiles that lie in bin `i`.
    fn format_marks(&self, bins: &[Bin], i: usize) -> String {
        let before: u64 = bins[..i].iter().map(|bin| bin.count).sum();
        let mut text = String::new();
        for share in MARKED {
            let rank = ((share * self.delays.count() as f64).ceil() as u64).max(1);
            if (before + 1..=before + bins[i].count).contains(&rank)
                && let Some(at) = self.delays.quantile_us(share)
            {
                let _ = write!(text, " p{} {}", share * 100.0, format_us(at));
            }
        }
        text
    }

    fn format_bound(&self, at_us: f64, style: Style) -> String {
        let dash = if style.ascii { '-' } else { '─' };
        let share = self.delays.share_within(at_us).unwrap_or(0.0);
        let text = format!(
            "{dash}{dash} SLA latency {} us: {} within ",
            format_us(at_us),
            format_share(share)
        );
        let rest = style.width.saturating_sub(text.chars().count());
        text + &dash.to_string().repeat(rest)
    }
}

/// The layout of a line: range, bar, share, marks.
struct Columns {
    bar: usize,
    ascii: bool,
}

/// Columns of the range, the share and the marks, with the blanks between them.
const RANGE: usize = 7 + 3 + 7 + 3 + 2;
const SHARE: usize = 12;
const MARKS: usize = 24;

impl Columns {
    fn new(style: Style) -> Self {
        Self {
            bar: style.width.saturating_sub(RANGE + SHARE + MARKS).max(8),
            ascii: style.ascii,
        }
    }

    fn format_bin(&self, bin: &Bin, max_count: u64, total: u64, marks: &str) -> String {
        let (dash, wall, arrow) = if self.ascii {
            ('-', '|', '<')
        } else {
            ('–', '│', '◂')
        };
        let mut bar = self.format_bar(bin.count as f64 / max_count as f64);
        // An empty bin has no bar; each other bin has a visible bar.
        if bin.count > 0 && bar.is_empty() {
            bar.push(if self.ascii { '.' } else { EIGHTHS[1] });
        }
        let share = if bin.count == 0 {
            String::new()
        } else {
            format_share(bin.count as f64 / total as f64)
        };
        let mut line = format!(
            "{:>7} {dash} {:>7} us {wall}{bar:<width$}{share:>SHARE$}",
            format_us(bin.low_ns as f64 / 1000.0),
            format_us(bin.high_ns as f64 / 1000.0),
            width = self.bar,
        );
        if !marks.is_empty() {
            let _ = write!(line, " {arrow}{marks}");
        }
        line
    }

    fn format_bar(&self, part: f64) -> String {
        let length = part * self.bar as f64;
        if self.ascii {
            return "#".repeat(length.round() as usize);
        }
        let eighths = (length * 8.0).round() as usize;
        let mut bar = "█".repeat(eighths / 8);
        if !eighths.is_multiple_of(8) {
            bar.push(EIGHTHS[eighths % 8]);
        }
        bar
    }

    fn format_gap(&self) -> String {
        let (dots, wall) = if self.ascii {
            (':', '|')
        } else {
            ('⋮', '│')
        };
        format!("{dots:>9}            {wall}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns 960 delays from 8 to 9 us, 30 near 12, 9 near 90, 1 at 420.
    fn delays() -> Distribution {
        let mut delays = Distribution::new();
        for i in 0..960 {
            delays.record(8010 + i);
        }
        for i in 0..30 {
            delays.record(12_000 + 20 * i);
        }
        for i in 0..9 {
            delays.record(90_000 + 100 * i);
        }
        delays.record(420_000);
        delays
    }

    fn render(delays: &Distribution, bound_us: Option<f64>, style: Style) -> String {
        Histogram { delays, bound_us }.render(style)
    }

    #[test]
    fn ascii_text_equals_the_expected_lines() {
        let text = render(
            &delays(),
            Some(350.0),
            Style {
                width: 80,
                ascii: true,
            },
        );
        let expected = [
            "   8.00 -    8.50 us |######################      48.6 %",
            "   8.50 -    9.00 us |#####################       47.4 % < p50 8.51",
            "        :            |",
            "  11.80 -   12.50 us |#                            2.5 %",
            "  12.50 -   13.20 us |.                           0.50 % < p99 12.58",
            "        :            |",
            "  90.00 -   95.00 us |.                           0.90 %",
            "        :            |",
            "-- SLA latency 350.0 us: 99.90 % within ----------------------------------------",
            "        :            |",
            "  400.0 -   425.0 us |.                           0.10 %",
        ]
        .join("\n");
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_bound_outside_the_delays_is_drawn() {
        let lines = |at| {
            let text = render(&delays(), Some(at), Style::default());
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(lines(1.0)[0].contains("SLA latency 1.00 us: 0.0 % within"));
        assert!(
            lines(1000.0)
                .last()
                .unwrap()
                .contains("SLA latency 1000 us: 100.0 % within")
        );
        assert!(
            lines(8.25)
                .iter()
                .any(|l| l.starts_with("   8.00 –    8.25 us")),
            "the bound splits a bin"
        );
    }

    #[test]
    fn no_delay_gives_no_text_and_one_delay_gives_one_bin() {
        assert_eq!(
            render(&Distribution::new(), Some(1.0), Style::default()),
            ""
        );
        let mut one = Distribution::new();
        one.record(5);
        let text = render(&one, None, Style::default());
        assert!(
            text.contains("100.0 %") && text.contains("p99 0.005"),
            "{text}"
        );
    }

    proptest! {
        /// Lines fit any width, ASCII text stays ASCII, and the bins count every delay.
        #[test]
        fn lines_fit_the_width_and_counts_add_up(
            delays_ns in prop::collection::vec(1..10_000_000_000_u64, 1..100),
            bound in 0.001..1e7f64,
            width in 40..200_usize,
        ) {
            let mut delays = Distribution::new();
            for &ns in &delays_ns { delays.record(ns); }
            let histogram = Histogram { delays: &delays, bound_us: Some(bound) };
            let text = histogram.render(Style { width, ascii: true });
            prop_assert!(text.is_ascii());
            prop_assert!(text.lines().all(|line| line.len() <= width), "{}", text);
            // Few delays in eleven decades give as many bins as delays, gaps between the bins, and
            // the bound.
            prop_assert!(text.lines().count() <= MAX_ROWS.max(2 * 33 + 1) + 2);
            prop_assert_eq!(text.lines().filter(|line| line.starts_with("-- SLA")).count(), 1);
            let counted: u64 = histogram.bins().iter().map(|bin| bin.count).sum();
            prop_assert_eq!(counted, delays_ns.len() as u64);
        }
    }
}
