//! Which rates to offer, where the same way is tried again and again.

use super::Carried;

/// A step up or down.
const STEP: f64 = 1.05;
/// The share of the rate offered that was reached or carried: below it somebody could not keep the pace.
const KEPT: f64 = 0.97;
/// Failures in a row that lower the rate: one alone may be a vCPU that was taken away for a moment.
const PATIENCE: i32 = 2;
/// No lower rate is tried, millions of packets a second: a trial should not last for many seconds.
const LOWEST_MPPS: f64 = 0.01;

/// A rate that follows what the way carries without loss, round by round: up while the way keeps the pace, down when packets are lost
/// or reordered.
///
/// It starts with as fast as the sender can, and stays there where that comes through whole.
#[derive(Debug, Clone, Default)]
pub struct Ladder {
    offered_mpps: Option<f64>,
}

impl Ladder {
    /// The rate that the next round starts with, millions of packets a second; `None`: as fast as the sender can.
    pub fn offered_mpps(&self) -> Option<f64> {
        self.offered_mpps
    }

    /// A round: searches the highest rate that comes through whole, from the one that the round before found, in `trials` trials at most.
    /// `attempt` is given the rate to offer. Gives the best trial that came through whole; where none did, the last one.
    ///
    /// The further it goes in one direction, the longer its steps: what disturbs the way for a moment disturbs that round alone.
    ///
    /// # Errors
    /// Those of `attempt`.
    pub fn round<E>(
        &mut self,
        trials: u32,
        mut attempt: impl FnMut(Option<f64>) -> Result<Carried, E>,
    ) -> Result<Carried, E> {
        let mut carried = attempt(self.offered_mpps)?;
        let mut left = trials.saturating_sub(1);
        let mut failures = 0;
        while !carried.is_clean() && left > 0 {
            failures += 1;
            let lowest = self.offered_mpps.is_some_and(|rate| rate <= LOWEST_MPPS);
            if lowest && failures >= PATIENCE {
                break;
            }
            self.fall(&carried, failures);
            carried = attempt(self.offered_mpps)?;
            left -= 1;
        }
        if !carried.is_clean() || !self.keeps_pace(&carried) {
            return Ok(carried);
        }
        self.climb(carried, left, attempt)
    }

    /// Lowers the rate after that many failures in a row.
    fn fall(&mut self, carried: &Carried, failures: i32) {
        let arrived = carried.received as f64 / carried.sent.max(1) as f64;
        let lower = match self.offered_mpps {
            // The rate that passes under overload is near the limit.
            None => carried.sent_mpps * arrived.max(0.1),
            Some(rate) if failures < PATIENCE => rate,
            Some(rate) => rate / STEP.powi(failures - 1),
        };
        self.offered_mpps = Some(lower.max(LOWEST_MPPS));
    }

    /// Raises the rate that `best` has kept until it fails or is not kept.
    fn climb<E>(
        &mut self,
        mut best: Carried,
        trials: u32,
        mut attempt: impl FnMut(Option<f64>) -> Result<Carried, E>,
    ) -> Result<Carried, E> {
        let mut stride = 1;
        for _ in 0..trials {
            let Some(rate) = self.offered_mpps else { break };
            let higher = rate * STEP.powi(stride);
            let carried = attempt(Some(higher))?;
            if !carried.is_clean() {
                if stride == 1 {
                    break;
                }
                // Too far: on from the last rate that was kept, with short steps.
                stride = 1;
                continue;
            }
            self.offered_mpps = Some(higher);
            let keeps_pace = self.keeps_pace(&carried);
            if carried.carried_mpps > best.carried_mpps {
                best = carried;
            }
            if !keeps_pace {
                break;
            }
            stride += 1;
        }
        Ok(best)
    }

    /// Whether sender and way kept the rate in a trial that came through whole. A sender that did not is the limit.
    fn keeps_pace(&mut self, carried: &Carried) -> bool {
        let Some(rate) = self.offered_mpps else {
            return false;
        };
        if carried.sent_mpps < KEPT * rate {
            self.offered_mpps = None;
            return false;
        }
        // Otherwise a queue on the way takes the difference: the way's limit is found.
        carried.carried_mpps >= KEPT * rate
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// As in the experiments.
    const TRIALS: u32 = 24;

    /// A way that carries `limit`, with a queue that hides up to a tenth more, from a sender that can `fastest`.
    fn through(offered_mpps: Option<f64>, limit: f64, fastest: f64) -> Carried {
        let sent_mpps = offered_mpps.map_or(fastest, |rate| rate.min(fastest));
        let lost = sent_mpps > 1.1 * limit;
        Carried {
            sent_mpps,
            sent: 1000,
            received: if lost {
                (1000.0 * limit / sent_mpps) as u64
            } else {
                1000
            },
            reordered: Some(0),
            carried_mpps: sent_mpps.min(limit),
            segmented: false,
        }
    }

    /// A round on ways of these limits, one a trial, the last one for all further trials; with the number of its trials.
    fn round(ladder: &mut Ladder, limits: &[f64]) -> (Carried, usize) {
        let mut trials = 0;
        let carried = ladder.round(TRIALS, |rate| {
            let limit = limits[trials.min(limits.len() - 1)];
            trials += 1;
            Ok::<_, Infallible>(through(rate, limit, 1.0))
        });
        (carried.unwrap(), trials)
    }

    #[test]
    fn a_sender_that_is_the_limit_is_not_slowed() {
        let mut ladder = Ladder::default();
        for _ in 0..5 {
            let (carried, trials) = round(&mut ladder, &[2.0]);
            assert_eq!((ladder.offered_mpps(), trials), (None, 1));
            assert!(carried.is_clean());
        }
    }

    #[test]
    fn the_limit_is_found_and_followed() {
        let mut ladder = Ladder::default();
        for limit in [0.5, 0.3, 0.05, 0.7] {
            for _ in 0..3 {
                let (carried, trials) = round(&mut ladder, &[limit]);
                assert!(carried.is_clean() && trials < TRIALS as usize);
                let rate = carried.carried_mpps;
                assert!((rate / limit - 1.0).abs() < 0.05, "{rate} of {limit}");
            }
            let rate = ladder.offered_mpps().unwrap();
            assert!(rate >= limit && rate <= 1.1 * limit, "{rate} of {limit}");
            assert!(round(&mut ladder, &[limit]).1 <= 2, "known already");
        }
    }

    #[test]
    fn one_failure_alone_changes_nothing() {
        let mut ladder = Ladder {
            offered_mpps: Some(0.5),
        };
        let (carried, trials) = round(&mut ladder, &[0.1, 0.5]);
        assert!(carried.is_clean() && trials <= 3, "{trials}");
        assert!(ladder.offered_mpps() >= Some(0.5));
    }

    #[test]
    fn a_disturbance_does_not_outlast_its_round() {
        let mut ladder = Ladder {
            offered_mpps: Some(0.5),
        };
        let disturbed: Vec<_> = [0.02; 12].into_iter().chain([0.5]).collect();
        let (carried, _) = round(&mut ladder, &disturbed);
        assert!(carried.carried_mpps > 0.47, "{carried:?}");
    }

    #[test]
    fn a_way_that_lets_nothing_through_is_given_up_and_tried_again() {
        let mut ladder = Ladder::default();
        let (carried, trials) = round(&mut ladder, &[0.0]);
        assert!(!carried.is_clean() && trials <= TRIALS as usize);
        assert_eq!(ladder.offered_mpps(), Some(LOWEST_MPPS));
        assert_eq!(round(&mut ladder, &[0.0]).1, PATIENCE as usize);
        let (carried, _) = round(&mut ladder, &[0.5]);
        assert!(carried.carried_mpps > 0.47, "{carried:?}");
    }
}
