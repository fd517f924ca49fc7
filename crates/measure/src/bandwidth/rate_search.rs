//! Chooses the rates to offer in repeated trials of the same path.

use super::TrialResult;

/// Factor of a step up or down.
const STEP: f64 = 1.05;
/// Sender or path keeps the offered rate if it reaches at least this share of the rate.
const KEPT: f64 = 0.97;
/// Number of failures in a row that lower the rate. The hypervisor may cause a single failure, when
/// it pauses a vCPU.
const FAILURES_TO_LOWER: i32 = 2;
/// Lowest rate to try, millions of packets a second, because a trial must not last for many
/// seconds.
const MIN_MPPS: f64 = 0.01;

/// Searches the highest rate that a path carries without loss, over several rounds. The search
/// raises the rate while the path keeps the rate, and lowers the rate after loss or reordering.
///
/// The search starts with the sender's highest rate, and stays there if all packets arrive in
/// order.
#[derive(Debug, Clone, Default)]
pub struct RateSearch {
    offered_mpps: Option<f64>,
}

impl RateSearch {
    /// First rate of the next round, millions of packets a second. `None` is the sender's highest
    /// rate.
    pub fn offered_mpps(&self) -> Option<f64> {
        self.offered_mpps
    }

    /// Searches the highest clean rate in at most `trials` trials, from the rate of the previous
    /// round. `attempt` runs a trial at a rate. Returns the best clean trial, or the last trial if
    /// none is clean.
    ///
    /// The steps grow while the direction stays the same. So a short disturbance of the path
    /// affects only one round.
    ///
    /// # Errors
    /// The errors of `attempt`.
    pub fn round<E>(
        &mut self,
        trials: u32,
        mut attempt: impl FnMut(Option<f64>) -> Result<TrialResult, E>,
    ) -> Result<TrialResult, E> {
        let mut result = attempt(self.offered_mpps)?;
        let mut left = trials.saturating_sub(1);
        let mut failures = 0;
        while !result.is_clean() && left > 0 {
            failures += 1;
            let is_lowest = self.offered_mpps.is_some_and(|rate| rate <= MIN_MPPS);
            if is_lowest && failures >= FAILURES_TO_LOWER {
                break;
            }
            self.lower_rate(&result, failures);
            result = attempt(self.offered_mpps)?;
            left -= 1;
        }
        if !result.is_clean() || !self.keeps_pace(&result) {
            return Ok(result);
        }
        self.raise_rate(result, left, attempt)
    }

    /// Lowers the rate after `failures` failures in a row.
    fn lower_rate(&mut self, result: &TrialResult, failures: i32) {
        let arrived = result.received as f64 / result.sent.max(1) as f64;
        let lower = match self.offered_mpps {
            // The rate that passes under overload is near the limit.
            None => result.sent_mpps * arrived.max(0.1),
            Some(rate) if failures < FAILURES_TO_LOWER => rate,
            Some(rate) => rate / STEP.powi(failures - 1),
        };
        self.offered_mpps = Some(lower.max(MIN_MPPS));
    }

    /// Raises the rate of `best` until a trial fails or does not keep the rate.
    fn raise_rate<E>(
        &mut self,
        mut best: TrialResult,
        trials: u32,
        mut attempt: impl FnMut(Option<f64>) -> Result<TrialResult, E>,
    ) -> Result<TrialResult, E> {
        let mut steps = 1;
        for _ in 0..trials {
            let Some(rate) = self.offered_mpps else { break };
            let higher = rate * STEP.powi(steps);
            let result = attempt(Some(higher))?;
            if !result.is_clean() {
                if steps == 1 {
                    break;
                }
                // The step was too long. Continue from the last clean rate with short steps.
                steps = 1;
                continue;
            }
            self.offered_mpps = Some(higher);
            let keeps_pace = self.keeps_pace(&result);
            if result.carried_mpps > best.carried_mpps {
                best = result;
            }
            if !keeps_pace {
                break;
            }
            steps += 1;
        }
        Ok(best)
    }

    /// Whether sender and path kept the rate in a clean trial. If the sender did not keep the rate,
    /// the next round starts with the sender's highest rate.
    fn keeps_pace(&mut self, result: &TrialResult) -> bool {
        let Some(rate) = self.offered_mpps else {
            return false;
        };
        if result.sent_mpps < KEPT * rate {
            self.offered_mpps = None;
            return false;
        }
        // Otherwise a queue on the path holds the difference, and the path is the limit.
        result.carried_mpps >= KEPT * rate
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Number of trials of a round, as in the experiments.
    const TRIALS: u32 = 24;

    /// Simulates a trial of a path that carries the rate `limit`. The path's queue hides an excess
    /// of up to a tenth. The sender reaches the rate `fastest`.
    fn simulate_trial(offered_mpps: Option<f64>, limit: f64, fastest: f64) -> TrialResult {
        let sent_mpps = offered_mpps.map_or(fastest, |rate| rate.min(fastest));
        let lost = sent_mpps > 1.1 * limit;
        TrialResult {
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

    /// Runs a round on a path whose limit in each trial is the next of `limits`; the last limit
    /// repeats. Returns the result and the number of trials.
    fn run_round(search: &mut RateSearch, limits: &[f64]) -> (TrialResult, usize) {
        let mut trials = 0;
        let result = search.round(TRIALS, |rate| {
            let limit = limits[trials.min(limits.len() - 1)];
            trials += 1;
            Ok::<_, Infallible>(simulate_trial(rate, limit, 1.0))
        });
        (result.unwrap(), trials)
    }

    #[test]
    fn search_stays_at_the_highest_rate_of_a_limiting_sender() {
        let mut search = RateSearch::default();
        for _ in 0..5 {
            let (result, trials) = run_round(&mut search, &[2.0]);
            assert_eq!((search.offered_mpps(), trials), (None, 1));
            assert!(result.is_clean());
        }
    }

    #[test]
    fn search_finds_the_limit_of_a_path_whose_limit_changes() {
        let mut search = RateSearch::default();
        for limit in [0.5, 0.3, 0.05, 0.7] {
            for _ in 0..3 {
                let (result, trials) = run_round(&mut search, &[limit]);
                assert!(result.is_clean() && trials < TRIALS as usize);
                let rate = result.carried_mpps;
                assert!((rate / limit - 1.0).abs() < 0.05, "{rate} of {limit}");
            }
            let rate = search.offered_mpps().unwrap();
            assert!(rate >= limit && rate <= 1.1 * limit, "{rate} of {limit}");
            assert!(
                run_round(&mut search, &[limit]).1 <= 2,
                "the search starts from the known rate"
            );
        }
    }

    #[test]
    fn single_failure_keeps_the_rate() {
        let mut search = RateSearch {
            offered_mpps: Some(0.5),
        };
        let (result, trials) = run_round(&mut search, &[0.1, 0.5]);
        assert!(result.is_clean() && trials <= 3, "{trials}");
        assert!(search.offered_mpps() >= Some(0.5));
    }

    #[test]
    fn disturbance_affects_only_its_round() {
        let mut search = RateSearch {
            offered_mpps: Some(0.5),
        };
        let disturbed: Vec<_> = [0.02; 12].into_iter().chain([0.5]).collect();
        let (result, _) = run_round(&mut search, &disturbed);
        assert!(result.carried_mpps > 0.47, "{result:?}");
    }

    #[test]
    fn next_round_tries_a_blocked_path_again() {
        let mut search = RateSearch::default();
        let (result, trials) = run_round(&mut search, &[0.0]);
        assert!(!result.is_clean() && trials <= TRIALS as usize);
        assert_eq!(search.offered_mpps(), Some(MIN_MPPS));
        assert_eq!(run_round(&mut search, &[0.0]).1, FAILURES_TO_LOWER as usize);
        let (result, _) = run_round(&mut search, &[0.5]);
        assert!(result.carried_mpps > 0.47, "{result:?}");
    }
}
