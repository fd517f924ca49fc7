//! Measures subjects in turns, over several deployments.

use std::time::Instant;

use myelin_linux::pm_qos::CpuLatency;
use myelin_metrics::envelope::{Claim, Verdict};
use myelin_metrics::stats::{Deployments, LOOKS};

use crate::experiment::UNFINISHED;
use crate::{Error, Findings, Row, Session};

/// Amount of sampling.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// Its name in the progress display.
    stage: String,
    rounds: usize,
    share: f64,
}

impl Sampling {
    /// Four rounds of a deployment, with the experiment's whole time limit.
    pub(crate) fn of(stage: impl Into<String>) -> Self {
        Self {
            stage: stage.into(),
            rounds: 4,
            share: 1.0,
        }
    }

    /// With this number of rounds of a deployment.
    pub(crate) fn rounds(self, rounds: usize) -> Self {
        Self { rounds, ..self }
    }

    /// With this share of the experiment's time limit, 0 to 1.
    pub(crate) fn share(self, share: f64) -> Self {
        Self { share, ..self }
    }
}

impl Session<'_> {
    /// Deploys and measures subjects until their claims are decided, or until the time limit.
    ///
    /// `deploy` makes all subjects, measures them with [`Turns`], and removes them. It returns
    /// their labels. `claims` makes the claims of the deployments so far. Adds the final claims to
    /// `findings`. If a deployment fails, the result has the deployments before it, and `findings`
    /// the error.
    pub(crate) fn sample<T>(
        self,
        sampling: Sampling,
        findings: &mut Findings,
        mut deploy: impl FnMut(&mut Turns<'_>) -> Result<T, Error>,
        claims: impl Fn(&Deployments, &T) -> Vec<Claim>,
    ) -> Result<(Deployments, T), Error> {
        findings.check_not_ended()?;
        let Sampling {
            stage,
            rounds,
            share,
        } = sampling;
        let start = Instant::now();
        let limit = self.time_limit.mul_f64(share);
        let mut all = Deployments::default();
        let mut last = None;
        loop {
            let mut turns = Turns {
                session: self,
                stage: &stage,
                rounds: self.effort.choose(2, rounds, rounds),
                deployment: all.len(),
                slots: Vec::new(),
            };
            let labels = match deploy(&mut turns) {
                Ok(labels) => labels,
                Err(error) => {
                    findings.rows.extend(turns.unfinished_rows());
                    let Some(labels) = last else {
                        return Err(error);
                    };
                    findings.end_early(error);
                    return Ok((all, labels));
                }
            };
            all.push(turns.slots.into_iter().map(|slot| slot.rounds).collect());
            let made = claims(&all, &labels);
            let next = LOOKS.into_iter().find(|look| *look > all.len());
            let spent = start.elapsed();
            let is_over = match next {
                None => true,
                // The first look decides most claims, so it may take twice the time.
                Some(first) if first == LOOKS[0] => spent > 2 * limit,
                Some(next) => spent.mul_f64(next as f64 / all.len() as f64) > limit,
            };
            let is_undecided = |claim: &Claim| claim.verdict() == Some(Verdict::Undecided);
            let is_decided = LOOKS.contains(&all.len()) && !made.iter().any(is_undecided);
            let is_last = match self.deployments {
                Some(deployments) => all.len() >= deployments,
                None => is_over || is_decided,
            };
            if is_last {
                findings.claims.extend(made);
                return Ok((all, labels));
            }
            last = Some(labels);
        }
    }
}

/// The rounds of one deployment.
pub(crate) struct Turns<'a> {
    session: Session<'a>,
    stage: &'a str,
    rounds: usize,
    deployment: usize,
    slots: Vec<Slot>,
}

/// A figure of a subject.
struct Slot {
    subject: usize,
    name: &'static str,
    rounds: Vec<f64>,
}

impl Turns<'_> {
    /// Measures subjects in turns, so that a drift of the machine affects all equally. `measure`
    /// returns the figure of a subject, given by its index. The slots of these subjects follow
    /// those of earlier calls in the same deployment.
    pub(crate) fn measure(
        &mut self,
        subjects: usize,
        mut measure: impl FnMut(usize) -> Result<f64, Error>,
    ) -> Result<(), Error> {
        self.measure_figures(subjects, &["figure"], |subject| Ok(vec![measure(subject)?]))
    }

    /// Measures subjects that have figures with these `names`. The slots of a subject are
    /// consecutive.
    pub(crate) fn measure_figures(
        &mut self,
        subjects: usize,
        names: &[&'static str],
        measure: impl FnMut(usize) -> Result<Vec<f64>, Error>,
    ) -> Result<(), Error> {
        self.measure_also_awake(subjects, names, |_| false, measure)
    }

    /// As [`Turns::measure_figures`].
    ///
    /// Subjects with `is_awake` are measured after the others, while no core sleeps. They are not
    /// measured in turns with the others: the `haltpoll` governor of virtual machines continues to
    /// poll after the limit is removed, until the core was idle for a while
    /// (drivers/cpuidle/governors/haltpoll.c).
    pub(crate) fn measure_also_awake(
        &mut self,
        subjects: usize,
        names: &[&'static str],
        is_awake: impl Fn(usize) -> bool,
        mut measure: impl FnMut(usize) -> Result<Vec<f64>, Error>,
    ) -> Result<(), Error> {
        let first = self.slots.len();
        for subject in 0..subjects {
            self.slots.extend(names.iter().map(|name| Slot {
                subject,
                name,
                rounds: Vec::new(),
            }));
        }
        for awake in [false, true] {
            let selected: Vec<usize> = (0..subjects)
                .filter(|subject| is_awake(*subject) == awake)
                .collect();
            if selected.is_empty() {
                continue;
            }
            let _limit = awake.then(|| CpuLatency::request_limit(0)).transpose()?;
            for round in 0..self.rounds {
                self.progress()?;
                let turn = self.deployment * self.rounds + round;
                for subject in order(turn, selected.len()).map(|turn| selected[turn]) {
                    self.session.check()?;
                    let slots = self.slots[first + subject * names.len()..].iter_mut();
                    for (slot, figure) in slots.zip(measure(subject)?) {
                        slot.rounds.push(figure);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds figures that a deployment has once, such as its memory.
    pub(crate) fn record(&mut self, figures: impl IntoIterator<Item = f64>) {
        let figures = figures.into_iter().enumerate();
        self.slots.extend(figures.map(|(subject, figure)| Slot {
            subject,
            name: "figure",
            rounds: vec![figure],
        }));
    }

    /// Shows how many deployments were measured.
    pub(crate) fn progress(&self) -> Result<(), Error> {
        let next = LOOKS.into_iter().find(|look| *look > self.deployment);
        let next = next.unwrap_or(self.deployment + 1);
        self.session.progress(self.stage, self.deployment, next)
    }

    /// A row for each figure of a deployment that failed.
    fn unfinished_rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for slot in &self.slots {
            for (round, figure) in slot.rounds.iter().enumerate() {
                rows.push(
                    Row::of(UNFINISHED)
                        .with("stage", self.stage)
                        .with("subject", slot.subject)
                        .with("name", slot.name)
                        .with("round", round)
                        .with("figure", *figure),
                );
            }
        }
        rows
    }
}

/// The quantile of sorted figures: the smallest that a share of them does not exceed. NaN without
/// figures.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(place.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(f64::NAN)
}

/// The order of a round. Each starts with another subject, and every other round runs backwards. So
/// no subject is always first or always after the same one.
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    fn sampling() -> Sampling {
        Sampling::of("test").rounds(3)
    }

    #[test]
    fn quantiles_are_those_of_the_figures() {
        let figures: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&figures, 0.99), 99.0);
        assert_eq!(quantile(&figures, 0.5), 50.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn every_round_has_every_subject_in_another_order() {
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
    fn sampling_ends_when_the_claims_are_decided() {
        let nobody = AtomicBool::new(false);
        let session = Session::quick(&nobody);
        // The ratio is 1.00 to 1.11: eight deployments decide 1.2 and 0.9, no number decides 1.05.
        for (bound, deployments) in [(1.2, 8), (0.9, 8), (1.05, 40)] {
            let mut made = 0;
            let mut findings = Findings::default();
            let deploy = |turns: &mut Turns<'_>| {
                made += 1;
                let ratio = 1.0 + f64::from(made % 12) / 100.0;
                turns.measure(2, |subject| Ok([ratio, 1.0][subject]))
            };
            let claims = |all: &Deployments, (): &()| {
                vec![
                    Claim::at_most("ratio", all.ratio(0, 1), bound),
                    Claim::shown("median", all.median(0)),
                ]
            };
            let (all, ()) = session
                .sample(sampling(), &mut findings, deploy, claims)
                .unwrap();
            assert_eq!((all.len(), findings.claims.len()), (deployments, 2));
            assert_eq!(findings.claims[0].holds.is_none(), bound == 1.05);
        }
    }

    #[test]
    fn the_time_limit_ends_sampling() {
        let nobody = AtomicBool::new(false);
        let session = Session {
            time_limit: Duration::from_millis(20),
            ..Session::quick(&nobody)
        };
        let claims = |_: &Deployments, (): &()| vec![Claim::at_most("never", None, 1.0)];
        for (ms, most) in [(1, 40), (20, 4)] {
            let deploy = |turns: &mut Turns<'_>| {
                std::thread::sleep(Duration::from_millis(ms));
                turns.measure(1, |_| Ok(1.0))
            };
            let mut findings = Findings::default();
            let (all, ()) = session
                .sample(sampling(), &mut findings, deploy, claims)
                .unwrap();
            assert!(all.len() <= most, "{} deployments", all.len());
            assert_eq!(findings.claims[0].verdict(), Some(Verdict::Undecided));
        }
    }

    #[test]
    fn figures_are_kept_when_a_later_deployment_fails() {
        let nobody = AtomicBool::new(false);
        let session = Session::quick(&nobody);
        let claims = |all: &Deployments, (): &()| vec![Claim::at_most("x", all.median(0), 9.0)];
        for failing in [1, 5] {
            let mut deployment = 0;
            let mut findings = Findings::default();
            let deploy = |turns: &mut Turns<'_>| {
                deployment += 1;
                let measure = |subject| match (deployment == failing, subject) {
                    (true, 1) => Err(Error::Unknown("a subject".to_owned())),
                    _ => Ok(vec![1.0, 2.0]),
                };
                turns.measure_figures(2, &["one", "other"], measure)
            };
            let outcome = session.sample(sampling(), &mut findings, deploy, claims);
            assert!(findings.claims.is_empty());
            let rows = |findings: &Findings| findings.rows.len();
            assert_eq!(rows(&findings), 2, "two figures of the failed deployment");
            if failing == 1 {
                assert!(matches!(outcome, Err(Error::Unknown(_))));
            } else {
                assert_eq!(outcome.unwrap().0.len(), failing - 1);
                let next =
                    session.sample(sampling(), &mut findings, |_| Ok(()), |_, ()| Vec::new());
                assert!(matches!(next, Err(Error::Unknown(_))), "a later stage");
            }
        }
    }

    #[test]
    fn a_cancelled_measurement_ends_at_once() {
        let cancelled = AtomicBool::new(false);
        let mut measured = 0;
        let deploy = |turns: &mut Turns<'_>| {
            turns.measure(3, |_| {
                measured += 1;
                cancelled.store(measured == 4, Ordering::Relaxed);
                Ok(1.0)
            })
        };
        let session = Session::quick(&cancelled);
        let mut findings = Findings::default();
        let outcome = session.sample(sampling(), &mut findings, deploy, |_, ()| Vec::new());
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert_eq!(measured, 4);
    }
}
