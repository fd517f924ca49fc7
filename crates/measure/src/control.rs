//! Deadline, cancel flag and progress callback of a measurement.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_metrics::Stop;

/// Nanoseconds between two calls of the progress callback.
const PROGRESS_INTERVAL_NS: u64 = 100_000_000;

/// The caller's control of a running measurement.
#[derive(Clone, Copy, Default)]
pub struct Control<'a> {
    /// Set this flag to end the measurement within a tenth of a second, with the results so far.
    pub cancel: Option<&'a AtomicBool>,
    /// The measuring thread calls this function with (done, total) about ten times a second, while
    /// no packet is in flight.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
}

impl fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("cancel", &self.cancel)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// Decides in a measuring thread when to stop, and reports progress.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    control: Control<'a>,
    deadline_ns: u64,
    failed: &'a AtomicBool,
    last_progress_ns: u64,
}

impl<'a> Watch<'a> {
    /// Creates a watch. The other thread sets `failed` when that thread cannot continue.
    pub(crate) fn new(control: Control<'a>, deadline_ns: u64, failed: &'a AtomicBool) -> Self {
        Self {
            control,
            deadline_ns,
            failed,
            last_progress_ns: 0,
        }
    }

    /// Returns the reason to stop now, if there is a reason.
    pub(crate) fn stop_reason(&self, now: u64) -> Option<Stop> {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if is_set(self.failed) || self.control.cancel.is_some_and(is_set) {
            Some(Stop::Cancelled)
        } else if now >= self.deadline_ns {
            Some(Stop::Deadline)
        } else {
            None
        }
    }

    /// Calls the progress callback, if the last call was long ago or the work is done.
    pub(crate) fn report_progress(&mut self, now: u64, done: u64, total: u64) {
        if let Some(progress) = self.control.progress
            && (done == total || now.saturating_sub(self.last_progress_ns) >= PROGRESS_INTERVAL_NS)
        {
            self.last_progress_ns = now;
            progress(done, total);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn deadline_cancel_and_failure_end_the_measurement() {
        let (cancel, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let control = Control {
            cancel: Some(&cancel),
            progress: None,
        };
        let watch = Watch::new(control, 1000, &failed);
        assert_eq!(watch.stop_reason(999), None);
        assert_eq!(watch.stop_reason(1000), Some(Stop::Deadline));
        cancel.store(true, Ordering::Relaxed);
        assert_eq!(watch.stop_reason(0), Some(Stop::Cancelled));
        cancel.store(false, Ordering::Relaxed);
        failed.store(true, Ordering::Relaxed);
        assert_eq!(watch.stop_reason(0), Some(Stop::Cancelled));
    }

    #[test]
    fn progress_calls_keep_the_interval_and_include_the_end() {
        let calls = Mutex::new(Vec::new());
        let progress = |done, total| calls.lock().unwrap().push((done, total));
        let failed = AtomicBool::new(false);
        let control = Control {
            cancel: None,
            progress: Some(&progress),
        };
        let mut watch = Watch::new(control, u64::MAX, &failed);
        for done in 0..=1000 {
            watch.report_progress(
                PROGRESS_INTERVAL_NS + done * PROGRESS_INTERVAL_NS / 400,
                done,
                1000,
            );
        }
        assert_eq!(
            *calls.lock().unwrap(),
            [(0, 1000), (400, 1000), (800, 1000), (1000, 1000)]
        );
    }
}
