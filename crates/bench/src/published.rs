//! What the papers published, one file a paper: the figures that claims are held beside and plots show beside ours.
//!
//! Only what a text or a table states is here. The texts at hand have no drawings, so nothing is read off one; where a text
//! gives a ratio instead of a figure, the figure is computed from it and says so.

pub(crate) mod calvin;
pub(crate) mod rate_control;

use crate::Claim;

/// A published figure for a claim, and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// In the claim's unit.
    pub(crate) value: f64,
    pub(crate) source: &'static str,
}

impl Published {
    /// The claim with this figure beside it.
    pub(crate) fn beside(self, claim: Claim) -> Claim {
        Claim {
            paper: self.value.into(),
            ..claim.from_source(self.source)
        }
    }
}

/// A paper's plot or table, as far as its text states it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Paper, figure or table.
    pub(crate) source: &'static str,
    /// What was measured, and on what.
    pub(crate) about: &'static str,
    /// What its figures are, with the unit.
    pub(crate) axis: &'static str,
    pub(crate) points: &'static [Point],
}

/// A figure of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// The value of the plot's first panel field that it belongs to; empty: to all.
    pub(crate) panel: &'static str,
    /// Its group of bars.
    pub(crate) group: &'static str,
    pub(crate) series: &'static str,
    /// In the unit of the paper's axis.
    pub(crate) value: f64,
    /// Where a distribution has this share (0 to 1); unused elsewhere.
    pub(crate) share: f64,
    /// A range that the text gives.
    pub(crate) range: Option<(f64, f64)>,
    /// How the text has it: its words, and how the figure follows from them where it is not one of them.
    pub(crate) how: &'static str,
}

impl Point {
    /// Nothing in particular.
    pub(crate) const NONE: Self = Self {
        panel: "",
        group: "",
        series: "",
        value: 0.0,
        share: 0.0,
        range: None,
        how: "",
    };
}
