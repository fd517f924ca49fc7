//! Text for a terminal or a pipe: no colour, no cursor movement.

mod histogram;
mod table;

pub use histogram::Histogram;
pub use table::{Column, add_field, grid, latency_table, listing, table, wrap};
pub(crate) use table::{digits_or_dash, head_and_rows, latency_rows, or_dash};

/// Width and characters of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal: the longest line.
    pub width: usize,
    /// Only ASCII characters.
    pub ascii: bool,
}

impl Style {
    /// Returns the width in the number type of tables.
    pub(crate) fn columns(self) -> u16 {
        u16::try_from(self.width).unwrap_or(u16::MAX)
    }
}

impl Default for Style {
    /// Returns a style of 100 columns and Unicode.
    fn default() -> Self {
        Self {
            width: 100,
            ascii: false,
        }
    }
}

/// Formats microseconds with about four significant digits, without the unit.
pub fn format_us(us: f64) -> String {
    let digits = match us.abs() {
        us if us >= 1000.0 => 0,
        us if us >= 100.0 => 1,
        us if us >= 1.0 => 2,
        _ => 3,
    };
    format!("{us:.digits$}")
}

/// Formats a share (0 to 1) in percent, with enough digits to differ from 0 % and 100 %.
pub fn format_share(share: f64) -> String {
    let percent = share * 100.0;
    let rest = percent.min(100.0 - percent);
    if rest <= 0.0 || rest >= 1.0 {
        return format!("{percent:.1} %");
    }
    // One digit more than the leading zeros of `rest`, whose last bits are inexact.
    let digits = (1.0 - (rest * (1.0 + 1e-9)).log10().floor()).clamp(1.0, 6.0) as usize;
    format!("{percent:.digits$} %")
}

/// Formats nanoseconds with the unit; from 10 000 ns on, microseconds.
pub fn format_ns(ns: f64) -> String {
    if ns >= 10_000.0 {
        format!("{:.1} us", ns / 1000.0)
    } else {
        format!("{ns:.0} ns")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_about_four_digits() {
        let shown = [0.0, 0.0712, 8.4, 84.25, 350.0, 12_345.6].map(format_us);
        assert_eq!(shown, ["0.000", "0.071", "8.40", "84.25", "350.0", "12346"]);
    }

    #[test]
    fn shares_near_0_and_100_percent_are_not_rounded_to_them() {
        let shown = [0.0, 1.0, 0.5, 0.999, 0.99996, 0.00004, 0.000_000_04].map(format_share);
        assert_eq!(
            shown,
            [
                "0.0 %",
                "100.0 %",
                "50.0 %",
                "99.90 %",
                "99.9960 %",
                "0.0040 %",
                "0.000004 %"
            ]
        );
    }
}
