//! Decides when to stop restarting a process that keeps dying.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most deaths within the window, and most failed starts in a row.
const MAX_DEATHS: usize = 3;

/// The deaths and failed starts of one supervised process.
#[derive(Debug)]
pub struct Deaths {
    window: Duration,
    times: VecDeque<Instant>,
    failed_starts: usize,
}

impl Default for Deaths {
    /// Uses a window of 10 s.
    fn default() -> Self {
        Self::within(Duration::from_secs(10))
    }
}

impl Deaths {
    /// Makes a counter of deaths within `window`. A process that starts slowly needs a longer
    /// window.
    pub fn within(window: Duration) -> Self {
        Self {
            window,
            times: VecDeque::new(),
            failed_starts: 0,
        }
    }

    /// Records a death at `now`. Returns whether the supervisor should stop restarting the process.
    #[must_use]
    pub fn record_death(&mut self, now: Instant) -> bool {
        let window = self.window;
        self.times
            .retain(|death| now.duration_since(*death) < window);
        self.times.push_back(now);
        self.times.len() > MAX_DEATHS
    }

    /// Returns the number of deaths within the window that ends at the last death, including the
    /// last death.
    pub fn count_recent(&self) -> usize {
        self.times.len()
    }

    /// Records a start that failed. Returns whether the supervisor should stop restarting the
    /// process.
    #[must_use]
    pub fn record_failed_start(&mut self) -> bool {
        self.failed_starts += 1;
        self.failed_starts >= MAX_DEATHS
    }

    /// Records a successful start.
    pub fn record_start(&mut self) {
        self.failed_starts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_stop_at_the_fourth_death_within_ten_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deaths = Deaths::default();
        // At the fourth death, the first death is no longer in the window.
        assert_eq!(
            [0, 5, 9, 10].map(|s| deaths.record_death(at(s))),
            [false; 4]
        );
        assert_eq!(deaths.count_recent(), 3);
        assert!(deaths.record_death(at(11)));
    }

    #[test]
    fn restarts_stop_at_the_third_failed_start_in_a_row() {
        let mut deaths = Deaths::default();
        assert!(!deaths.record_failed_start() && !deaths.record_failed_start());
        deaths.record_start();
        assert!(!deaths.record_failed_start() && !deaths.record_failed_start());
        assert!(deaths.record_failed_start());
    }
}
