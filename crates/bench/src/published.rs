//! What the papers published, one file a paper: the figures that claims are held beside. Those that plots show beside ours stand in `plots/`.
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
        claim.beside(self.value, self.source)
    }
}
