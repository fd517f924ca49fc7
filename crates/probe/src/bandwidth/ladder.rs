//! Which rate to offer next, where the same way is tried again and again.

use super::Carried;

/// A step up or down.
const STEP: f64 = 1.05;
/// The share of the rate offered that was reached or carried: below it somebody could not keep the pace.
const KEPT: f64 = 0.97;
/// Failures in a row that lower the rate: one alone may be a vCPU that was taken away for a moment.
const PATIENCE: u32 = 2;

/// A rate that follows what the way carries without loss: up while the way keeps the pace, down when packets are lost or reordered.
///
/// It starts with as fast as the sender can, and stays there where that comes through whole.
#[derive(Debug, Clone, Default)]
pub struct Ladder {
    offered_mpps: Option<f64>,
    failures: u32,
}

impl Ladder {
    /// The rate to offer, millions of packets a second; `None`: as fast as the sender can.
    pub fn offered_mpps(&self) -> Option<f64> {
        self.offered_mpps
    }

    /// Takes in what became of a trial at the rate that [`Self::offered_mpps`] told.
    pub fn tried(&mut self, carried: &Carried) {
        let trial = &carried.trial;
        if !carried.is_clean() {
            self.failures += 1;
            let arrived = trial.received as f64 / trial.sent.max(1) as f64;
            self.offered_mpps = match self.offered_mpps {
                // What came through under overload is near the limit.
                None => Some(trial.sent_mpps * arrived.max(0.1)),
                // Further and further: whatever is wrong, it does not take long to find what still comes through.
                Some(rate) if self.failures >= PATIENCE => {
                    Some(rate / STEP.powf(f64::from(self.failures - 1)))
                }
                Some(rate) => Some(rate),
            };
            return;
        }
        self.failures = 0;
        self.offered_mpps = self.offered_mpps.and_then(|rate| {
            if trial.sent_mpps < KEPT * rate {
                // The sender can no faster.
                None
            } else if carried.carried_mpps < KEPT * rate {
                // A queue on the way takes the difference: the way's limit is found.
                Some(rate)
            } else {
                Some(rate * STEP)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Trial;
    use super::*;

    /// A way that carries `limit` of what is offered, with a queue that hides up to a tenth more, from a sender that can `fastest`.
    fn through(ladder: &Ladder, limit: f64, fastest: f64) -> Carried {
        let sent_mpps = ladder
            .offered_mpps()
            .map_or(fastest, |rate| rate.min(fastest));
        let lost = sent_mpps > 1.1 * limit;
        Carried {
            trial: Trial {
                offered_mpps: ladder.offered_mpps(),
                sent_mpps,
                sent: 1000,
                received: if lost {
                    (1000.0 * limit / sent_mpps) as u64
                } else {
                    1000
                },
                reordered: Some(0),
                duplicates: Some(0),
            },
            carried_mpps: sent_mpps.min(limit),
        }
    }

    #[test]
    fn a_sender_that_is_the_limit_is_not_slowed() {
        let mut ladder = Ladder::default();
        for _ in 0..5 {
            ladder.tried(&through(&ladder, 2.0, 1.0));
            assert_eq!(ladder.offered_mpps(), None);
        }
    }

    #[test]
    fn the_limit_is_found_and_followed() {
        let mut ladder = Ladder::default();
        for limit in [0.5, 0.3, 0.7] {
            let mut last = 0.0;
            for _ in 0..40 {
                let carried = through(&ladder, limit, 1.0);
                ladder.tried(&carried);
                last = if carried.is_clean() {
                    carried.carried_mpps
                } else {
                    last
                };
            }
            assert!((last / limit - 1.0).abs() < 0.05, "{last} of {limit}");
            let rate = ladder.offered_mpps().unwrap();
            assert!(rate >= limit && rate <= 1.1 * limit, "{rate} of {limit}");
        }
    }

    #[test]
    fn one_failure_alone_changes_nothing() {
        let mut ladder = Ladder {
            offered_mpps: Some(0.5),
            failures: 0,
        };
        ladder.tried(&through(&ladder, 0.1, 1.0));
        assert_eq!(ladder.offered_mpps(), Some(0.5));
        ladder.tried(&through(&ladder, 0.1, 1.0));
        assert!(ladder.offered_mpps() < Some(0.5));
    }
}
