//! When a process that keeps dying is given up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A process that dies more often than this within the window, or that does not start so often in a row, is given up.
const MOST: usize = 3;

/// The deaths of one supervised process, and its starts that failed.
#[derive(Debug)]
pub struct Deaths {
    window: Duration,
    times: VecDeque<Instant>,
    failed_starts: usize,
}

impl Default for Deaths {
    /// Within 10 s.
    fn default() -> Self {
        Self::within(Duration::from_secs(10))
    }
}

impl Deaths {
    /// Deaths count for that long: longer for a process that takes seconds to start.
    pub fn within(window: Duration) -> Self {
        Self {
            window,
            times: VecDeque::new(),
            failed_starts: 0,
        }
    }

    /// It died at `now`. Returns whether it is to be given up.
    #[must_use]
    pub fn died(&mut self, now: Instant) -> bool {
        let window = self.window;
        self.times
            .retain(|death| now.duration_since(*death) < window);
        self.times.push_back(now);
        self.times.len() > MOST
    }

    /// Deaths within the window that ended with the last one.
    pub fn recent(&self) -> usize {
        self.times.len()
    }

    /// It did not start, however long that took. Returns whether it is to be given up.
    #[must_use]
    pub fn start_failed(&mut self) -> bool {
        self.failed_starts += 1;
        self.failed_starts >= MOST
    }

    /// It started.
    pub fn started(&mut self) {
        self.failed_starts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_death_within_ten_seconds_is_the_last() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deaths = Deaths::default();
        // The first is forgotten when the fourth comes.
        assert_eq!([0, 5, 9, 10].map(|s| deaths.died(at(s))), [false; 4]);
        assert_eq!(deaths.recent(), 3);
        assert!(deaths.died(at(11)));
    }

    #[test]
    fn the_third_start_in_a_row_that_fails_is_the_last() {
        let mut deaths = Deaths::default();
        assert!(!deaths.start_failed() && !deaths.start_failed());
        deaths.started();
        assert!(!deaths.start_failed() && !deaths.start_failed());
        assert!(deaths.start_failed());
    }
}
