//! Measures subjects in turns, round by round, so that a drift of the machine affects all equally.

use myelin_metrics::stats::{CONFIDENCE, Estimate, mean_ci, median_ci, paired_ratio};

use crate::{Error, Session};

/// One figure for each round and subject.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds(Vec<Vec<f64>>);

impl Session<'_> {
    /// Measures `subjects` subjects in turns. `rounds` are the rounds of a quick and of a whole
    /// run. `measure` returns the positive figure of a subject, given by its index.
    pub(crate) fn measure(
        self,
        stage: &str,
        subjects: usize,
        rounds: (usize, usize),
        measure: impl FnMut(usize) -> Result<f64, Error>,
    ) -> Result<Rounds, Error> {
        let all: Vec<usize> = (0..subjects).collect();
        self.measure_subset(stage, (&all, subjects), rounds, measure)
    }

    /// Measures only some of the subjects; the others have no rounds.
    pub(crate) fn measure_subset(
        self,
        stage: &str,
        (selected, subjects): (&[usize], usize),
        (quick, whole): (usize, usize),
        mut measure: impl FnMut(usize) -> Result<f64, Error>,
    ) -> Result<Rounds, Error> {
        let rounds = self.effort.rounds(quick, whole);
        let mut figures = vec![Vec::new(); subjects];
        for round in 0..rounds {
            self.progress(stage, round, rounds)?;
            for subject in order(round, selected.len()).map(|index| selected[index]) {
                self.check()?;
                figures[subject].push(measure(subject)?);
            }
        }
        self.progress(stage, rounds, rounds)?;
        Ok(Rounds(figures))
    }
}

impl Rounds {
    /// Adds further rounds of the same subjects.
    pub(crate) fn extend(&mut self, further: Self) {
        if self.0.is_empty() {
            self.0 = further.0;
            return;
        }
        for (figures, further) in self.0.iter_mut().zip(further.0) {
            figures.extend(further);
        }
    }

    /// Adds a subject whose figures are computed from those of two subjects, round by round.
    pub(crate) fn derive(
        &mut self,
        one: usize,
        other: usize,
        figure: impl Fn(f64, f64) -> f64,
    ) -> usize {
        let derived = self.0[one]
            .iter()
            .zip(&self.0[other])
            .map(|(a, b)| figure(*a, *b))
            .collect();
        self.0.push(derived);
        self.0.len() - 1
    }

    /// Median over the rounds with its 95 % interval.
    pub(crate) fn median(&self, subject: usize) -> Option<Estimate> {
        median_ci(&self.0[subject], CONFIDENCE)
    }

    /// The figures in ascending order.
    pub(crate) fn sorted(&self, subject: usize) -> Vec<f64> {
        let mut figures = self.0[subject].clone();
        figures.sort_by(f64::total_cmp);
        figures
    }

    /// Mean over the rounds with its 95 % interval.
    pub(crate) fn mean(&self, subject: usize) -> Option<Estimate> {
        mean_ci(&self.0[subject], CONFIDENCE)
    }

    /// [`Rounds::ratio`] without its interval.
    pub(crate) fn ratio_value(&self, subject: usize, reference: usize) -> Result<f64, Error> {
        Ok(self.ratio(subject, reference)?.value)
    }

    /// Median of the rounds' ratios.
    pub(crate) fn ratio(&self, subject: usize, reference: usize) -> Result<Estimate, Error> {
        Ok(paired_ratio(&self.0[subject], &self.0[reference])?)
    }
}

/// The median ratio of shares to 1.
pub(crate) fn ratio_to_one(shares: &[f64]) -> Result<Estimate, Error> {
    Ok(paired_ratio(shares, &vec![1.0; shares.len()])?)
}

/// The quantile of sorted figures: the smallest figure that `share` of them do not exceed. NaN
/// without figures.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(f64::NAN)
}

/// The order of a round. Each round starts with a different subject, and every second round runs
/// backwards. So no subject is always first or always after the same one.
fn order(round: usize, subjects: usize) -> impl Iterator<Item = usize> {
    (0..subjects).map(move |step| {
        let step = if round % 2 == 1 {
            subjects - 1 - step
        } else {
            step
        };
        (round / 2 + step) % subjects
    })
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let figures: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&figures, 0.99), 99.0);
        assert_eq!(quantile(&figures, 0.5), 50.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn every_round_has_all_subjects_in_a_different_order() {
        let mut pairs = BTreeSet::new();
        let mut firsts = BTreeSet::new();
        for round in 0..10 {
            let order: Vec<_> = order(round, 5).collect();
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 5, "{order:?}");
            firsts.insert(order[0]);
            pairs.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!(firsts.len(), 5);
        assert_eq!(pairs.len(), 10, "each subject follows both its neighbours");
    }

    #[test]
    fn drift_does_not_affect_the_ratio() {
        let cancelled = AtomicBool::new(false);
        let mut calls = 0.0;
        let mut rounds = Session::quick(&cancelled)
            .measure("drift", 2, (40, 40), |subject| {
                calls += 1.0;
                Ok([2.0, 1.0][subject] * (1.0 + calls / 10.0))
            })
            .unwrap();
        let ratio = rounds.ratio(0, 1).unwrap();
        assert!((ratio.value - 2.0).abs() < 0.05, "{ratio:?}");
        assert_eq!(ratio.at_most(2.2), Some(true));
        let difference = rounds.derive(0, 1, |a, b| a - b);
        assert!(rounds.median(difference).unwrap().value > 1.0);
    }

    #[test]
    fn a_cancelled_measurement_ends_at_once() {
        let cancelled = AtomicBool::new(false);
        let mut measured = 0;
        let outcome = Session::quick(&cancelled).measure("cut", 3, (10, 10), |_| {
            measured += 1;
            cancelled.store(measured == 4, std::sync::atomic::Ordering::Relaxed);
            Ok(1.0)
        });
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert_eq!(measured, 4);
    }
}
