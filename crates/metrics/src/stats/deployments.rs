//! Figures of subjects that are deployed several times and measured in turns.
//!
//! The kernel's placement of queues and code moves a round trip by up to 2 % from one deployment to
//! the next, and much less within one. So rounds of one deployment are not independent. Here a
//! deployment counts once, with the median of its rounds. [`median_ci`] computes the
//! interval from the deployments; it is exact for any distribution.
//!
//! A measurement may look at its intervals after each of [`LOOKS`] deployments and stop when the
//! intervals decide the claims. Each look uses [`LOOK_CONFIDENCE`], so that all looks together are
//! wrong at most 5 times in 100 (Bonferroni's inequality).

use std::cell::Cell;

use super::{CONFIDENCE, Estimate, mean_ci, median_ci};

/// Numbers of deployments after which a measurement may decide. With fewer than the first, no
/// interval reaches [`LOOK_CONFIDENCE`].
pub const LOOKS: [usize; 5] = [8, 12, 18, 28, 40];
/// Confidence of the interval at a look.
pub const LOOK_CONFIDENCE: f64 = 1.0 - (1.0 - CONFIDENCE) / LOOKS.len() as f64;

/// Figures by deployment, slot and round. A slot is one figure of one subject. Slots that a
/// quantity combines were measured in the same rounds.
#[derive(Debug, Clone, Default)]
pub struct Deployments(Vec<Vec<Vec<f64>>>);

impl Deployments {
    /// Adds a deployment: the figures of each slot, by round.
    pub fn push(&mut self, slots: Vec<Vec<f64>>) {
        self.0.push(slots);
    }

    /// The number of deployments.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no deployment.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All figures of a slot, in no order.
    pub fn figures(&self, slot: usize) -> impl Iterator<Item = f64> {
        let of_slot = move |slots: &Vec<Vec<f64>>| slots.get(slot).cloned().unwrap_or_default();
        self.0.iter().flat_map(of_slot)
    }

    /// The median of a slot.
    pub fn median(&self, slot: usize) -> Option<Estimate> {
        self.median_of(|round| round(slot))
    }

    /// The median of `subject / reference`, both of the same round.
    pub fn ratio(&self, subject: usize, reference: usize) -> Option<Estimate> {
        self.median_of(|round| round(subject) / round(reference))
    }

    /// [`Self::ratio`] without its interval.
    pub fn ratio_value(&self, subject: usize, reference: usize) -> Option<f64> {
        self.ratio(subject, reference).map(|ratio| ratio.value)
    }

    /// The median of a quantity. `quantity` computes it from the figures of a round, by slot.
    /// `None` without deployments, or if a round has no such quantity (NaN, a missing figure).
    pub fn median_of(&self, quantity: impl Fn(&dyn Fn(usize) -> f64) -> f64) -> Option<Estimate> {
        self.median_of_usable(|round| Some(quantity(round)))
    }

    /// As [`Self::median_of`], without the rounds for which `quantity` returns `None`, and without
    /// deployments that have no other rounds.
    pub fn median_of_usable(
        &self,
        quantity: impl Fn(&dyn Fn(usize) -> f64) -> Option<f64>,
    ) -> Option<Estimate> {
        median_ci(&self.by_deployment(quantity)?, LOOK_CONFIDENCE)
    }

    /// The mean of a slot over deployments, with Student's interval.
    pub fn mean(&self, slot: usize) -> Option<Estimate> {
        let mean = |rounds: &Vec<f64>| rounds.iter().sum::<f64>() / rounds.len() as f64;
        let means = self.0.iter().map(|slots| slots.get(slot).map(mean));
        mean_ci(&means.collect::<Option<Vec<_>>>()?, LOOK_CONFIDENCE)
    }

    /// The largest figure of a slot, with no interval.
    pub fn largest(&self, slot: usize) -> Option<f64> {
        self.figures(slot).reduce(f64::max)
    }

    /// One figure for each deployment: the median of the quantity over its usable rounds.
    fn by_deployment(
        &self,
        quantity: impl Fn(&dyn Fn(usize) -> f64) -> Option<f64>,
    ) -> Option<Vec<f64>> {
        let of_deployment = |slots: &Vec<Vec<f64>>| {
            // The most rounds of the slots that the quantity reads.
            let rounds = Cell::new(1);
            let of_round = |round: usize| {
                quantity(&|slot| {
                    let figures = slots.get(slot).map(Vec::as_slice).unwrap_or_default();
                    rounds.set(rounds.get().max(figures.len()));
                    figures.get(round).copied().unwrap_or(f64::NAN)
                })
            };
            let mut figures: Vec<f64> = of_round(0).into_iter().collect();
            figures.extend((1..rounds.get()).filter_map(of_round));
            if figures.is_empty() {
                return Some(None);
            }
            median_ci(&figures, CONFIDENCE).map(|median| Some(median.value))
        };
        let figures: Option<Vec<_>> = self.0.iter().map(of_deployment).collect();
        Some(figures?.into_iter().flatten().collect())
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use crate::stats::{Interval, median_ranks};

    /// Equal deployments with these slots.
    fn repeated(count: usize, slots: &[&[f64]]) -> Deployments {
        let slots: Vec<Vec<f64>> = slots.iter().map(|rounds| rounds.to_vec()).collect();
        Deployments(vec![slots; count])
    }

    #[test]
    fn the_first_look_has_an_interval_and_fewer_deployments_have_none() {
        assert_eq!(median_ranks(LOOKS[0] - 1, LOOK_CONFIDENCE), None);
        assert_eq!(median_ranks(LOOKS[0], LOOK_CONFIDENCE), Some((1, 8)));
        assert_eq!(median_ranks(LOOKS[4], LOOK_CONFIDENCE), Some((12, 29)));
    }

    #[test]
    fn a_deployment_counts_once_however_many_rounds_it_has() {
        let mut all = Deployments::default();
        for (deployment, rounds) in (0..8).zip([1, 3, 100, 1, 5, 7, 9, 2]) {
            let figure = f64::from(deployment);
            all.push(vec![vec![figure; rounds], vec![1.0; rounds]]);
        }
        let median = all.median(0).unwrap();
        assert_eq!((median.value, median.samples), (3.5, 8));
        let Interval { low, high } = median.interval.unwrap();
        assert_eq!((low, high), (0.0, 7.0));
        assert_eq!(all.largest(0), Some(7.0));
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        // The machine is ten times as fast in each further round.
        let all = repeated(8, &[&[300.0, 30.0, 3.0], &[200.0, 20.0, 2.0]]);
        assert_eq!(all.ratio(0, 1).unwrap().value, 1.5);
        assert_eq!(
            all.median_of(|round| round(0) - round(1)).unwrap().value,
            10.0
        );
        assert_eq!(all.mean(1).unwrap().value, 74.0);
    }

    #[test]
    fn a_missing_figure_is_no_estimate() {
        assert!(Deployments::default().median(0).is_none());
        let all = repeated(8, &[&[1.0, 2.0], &[1.0]]);
        assert!(all.median(0).is_some());
        assert!(all.ratio(0, 1).is_none(), "the second round lacks a figure");
        assert_eq!(all.median(1).unwrap().value, 1.0);
        assert!(all.median(2).is_none() && all.mean(2).is_none());
        let lost = repeated(1, &[&[f64::NAN], &[1.0]]);
        assert!(lost.median(0).is_none());
    }

    #[test]
    fn unusable_rounds_are_left_out() {
        let mut all = repeated(8, &[&[1.0, 2.0, 9.0], &[1.0, 1.0, 0.0]]);
        all.push(vec![vec![5.0], vec![0.0]]);
        let usable = |round: &dyn Fn(usize) -> f64| (round(1) > 0.0).then(|| round(0));
        let estimate = all.median_of_usable(usable).unwrap();
        assert_eq!((estimate.value, estimate.samples), (1.5, 8));
        assert!(all.median_of_usable(|_| None).is_none());
    }

    /// Deployments differ by 2 %, rounds within one by 0.1 %. The interval over deployments covers
    /// the true median; an interval over all rounds does not.
    #[test]
    fn the_interval_covers_the_median_of_clustered_figures() {
        let mut random = 7_u64;
        let mut uniform = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((random >> 11) as f64) / (1_u64 << 53) as f64 - 0.5
        };
        let trials = 400;
        let (mut clustered, mut pooled) = (0, 0);
        for _ in 0..trials {
            let mut all = Deployments::default();
            for _ in 0..12 {
                let placement = 1.0 + 0.04 * uniform();
                let rounds = (0..10).map(|_| placement + 0.002 * uniform()).collect();
                all.push(vec![rounds]);
            }
            let covers = |estimate: Option<Estimate>| {
                let Interval { low, high } = estimate.unwrap().interval.unwrap();
                usize::from(low <= 1.0 && 1.0 <= high)
            };
            clustered += covers(all.median(0));
            let figures: Vec<f64> = all.figures(0).collect();
            pooled += covers(median_ci(&figures, LOOK_CONFIDENCE));
        }
        assert!(clustered * 100 >= trials * 97, "{clustered} of {trials}");
        assert!(pooled * 100 < trials * 75, "{pooled} of {trials}");
    }
}
