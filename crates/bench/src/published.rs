//! Published values, one file for each paper: each value once, with its place in the paper. Claims
//! show values next to ours, plots name figures. All values are from texts and tables, or computed
//! from these (`over`, `times`); none is read off a drawing.

// Tables: a value or a point takes a line.
#[rustfmt::skip]
pub(crate) mod calvin;
#[rustfmt::skip]
pub(crate) mod rate_control;
#[rustfmt::skip]
pub(crate) mod sfc;
#[rustfmt::skip]
pub(crate) mod unis;

use myelin_report::experiment::FigurePoint;

use crate::Claim;

/// A published value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// In the unit of the claim, or of the figure's axis.
    pub(crate) value: f64,
    /// Paper, section, figure or table, and the paper's words.
    source: &'static str,
}

const fn stated(value: f64, source: &'static str) -> Published {
    Published { value, source }
}

impl Published {
    /// The ratio of two values of one source.
    pub(crate) const fn over(self, other: Self) -> Self {
        stated(self.value / other.value, self.source)
    }

    /// A value from this ratio and the value that it refers to.
    const fn times(self, other: Self) -> Self {
        stated(self.value * other.value, self.source)
    }

    /// A point of a figure: its panel, its group of bars, its series.
    const fn at(
        self,
        panel: &'static str,
        group: &'static str,
        series: &'static str,
    ) -> FigurePoint {
        FigurePoint {
            panel,
            group,
            series,
            value: self.value,
            share: 0.0,
            range: None,
            how: self.source,
        }
    }

    /// Adds this value to a claim.
    pub(crate) fn add_to(self, claim: Claim) -> Claim {
        claim.with_published(self.value, self.source)
    }
}
