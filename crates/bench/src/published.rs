//! Published figures that claims show beside ours, one file for each paper. Those of plots are in
//! `plots/`.
//!
//! They are from the papers' texts and tables only; nothing is read off a drawing. If a text gives
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
    pub(crate) fn beside(self, claim: Claim) -> Claim {
        claim.beside(self.value, self.source)
    }
}
