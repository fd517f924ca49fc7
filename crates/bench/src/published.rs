//! Published figures that claims show next to ours, one file for each paper. The published figures
//! of plots are in `plots/`.
//!
//! All are from the papers' texts and tables; none is read off a drawing. If a text gives
//! a ratio, the figure is computed from it, and its source says so.

pub(crate) mod calvin;
pub(crate) mod rate_control;

use crate::Claim;

/// A published figure for a claim, and its source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// In the claim's unit.
    pub(crate) value: f64,
    pub(crate) source: &'static str,
}

impl Published {
    /// Adds this figure to a claim.
    pub(crate) fn add_to(self, claim: Claim) -> Claim {
        claim.with_published(self.value, self.source)
    }
}
