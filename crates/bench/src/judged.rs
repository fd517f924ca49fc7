//! The verdicts of claims, for tests of experiments with made-up figures.

use myelin_metrics::envelope::Verdict;

use crate::Claim;

/// The claims that have a verdict.
#[derive(Debug)]
pub(crate) struct Judged(Vec<(String, Verdict)>);

impl Judged {
    pub(crate) fn of(claims: Vec<Claim>) -> Self {
        let claims = claims.into_iter();
        let judged = claims.filter_map(|claim| Some((claim.id.clone(), claim.verdict()?)));
        Self(judged.collect())
    }

    /// The claims with this verdict.
    pub(crate) fn with(&self, verdict: Verdict) -> Vec<&str> {
        let those = self.0.iter().filter(|(_, its)| *its == verdict);
        those.map(|(id, _)| id.as_str()).collect()
    }

    /// The numbers of claims with this verdict, and of all.
    pub(crate) fn counts(&self, verdict: Verdict) -> (usize, usize) {
        (self.with(verdict).len(), self.0.len())
    }
}
