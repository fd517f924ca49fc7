//! Compares the claims of two reports.

use serde::Serialize;

use crate::envelope::{Claim, Report, Verdict};

/// A claim in an earlier and a later report. At least one of them has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimChange {
    /// Name of the claim.
    pub id: String,
    /// The earlier verdict; `None` without a bound or without the claim.
    pub before: Option<Verdict>,
    /// The later verdict.
    pub after: Option<Verdict>,
    /// The earlier figure; `None` without a single figure.
    pub figure_before: Option<f64>,
    /// The later figure.
    pub figure_after: Option<f64>,
    /// Whether both 95 % intervals overlap; `None` without intervals.
    pub overlap: Option<bool>,
}

impl ClaimChange {
    /// Whether the verdict changed, or only one report has it.
    pub fn is_changed(&self) -> bool {
        self.before != self.after
    }

    /// Change of the figure, percent of the earlier one.
    pub fn percent(&self) -> Option<f64> {
        let (before, after) = (self.figure_before?, self.figure_after?);
        (before != 0.0).then(|| (after / before - 1.0) * 100.0)
    }
}

/// All claims of both reports, in the order of the later one; claims that only the earlier one has
/// follow.
pub fn compare<R>(before: &Report<R>, after: &Report<R>) -> Vec<ClaimChange> {
    let find = |claims: &[Claim], id: &str| claims.iter().find(|claim| claim.id == id).cloned();
    let mut ids: Vec<&str> = after.claims.iter().map(|claim| claim.id.as_str()).collect();
    let earlier = before.claims.iter().map(|claim| claim.id.as_str());
    let removed: Vec<&str> = earlier.filter(|id| !ids.contains(id)).collect();
    ids.extend(removed);
    let change = |id: &str| {
        let (one, other) = (find(&before.claims, id), find(&after.claims, id));
        let (one, other) = (one.as_ref(), other.as_ref());
        let overlap = |(one, other): ((f64, f64), (f64, f64))| one.0 <= other.1 && other.0 <= one.1;
        ClaimChange {
            id: id.to_owned(),
            before: one.and_then(Claim::verdict),
            after: other.and_then(Claim::verdict),
            figure_before: one.and_then(Claim::figure),
            figure_after: other.and_then(Claim::figure),
            overlap: one
                .and_then(Claim::interval)
                .zip(other.and_then(Claim::interval))
                .map(overlap),
        }
    };
    ids.into_iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::stats::median_ci;

    fn report(claims: Vec<Claim>) -> Report<()> {
        Report {
            experiment: "x".to_owned(),
            environment: Environment::default(),
            rows: Vec::new(),
            claims,
            ended_early: None,
        }
    }

    #[test]
    fn changes_name_verdicts_and_figures() {
        let ratio =
            |value: f64, bound| Claim::at_most("ratio", median_ci(&[value; 8], 0.99), bound);
        let before = report(vec![
            ratio(1.0, 1.5),
            Claim::figure_at_most("old", 3.0, 4.0),
        ]);
        let after = report(vec![ratio(2.0, 1.5), Claim::shown("new", None)]);
        let [ratio, new, old] = &compare(&before, &after)[..] else {
            panic!()
        };
        assert_eq!(
            (ratio.before, ratio.after),
            (Some(Verdict::Holds), Some(Verdict::False))
        );
        assert!(ratio.is_changed());
        assert_eq!((ratio.percent(), ratio.overlap), (Some(100.0), Some(false)));
        assert_eq!((new.after, new.figure_after), (None, None));
        assert!(!new.is_changed(), "no verdict before and none after");
        assert_eq!((old.before, old.after), (Some(Verdict::Holds), None));
        assert_eq!((old.figure_before, old.overlap), (Some(3.0), None));
        let same = compare(&before, &before);
        assert!(same.iter().all(|change| !change.is_changed()));
        assert_eq!(same[0].overlap, Some(true));
    }
}
