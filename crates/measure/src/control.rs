//! How a measurement is watched and ended: a deadline always, a cancel flag and a progress callback when wanted.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_metrics::Stop;

/// Nanoseconds between two calls of the progress callback.
const PROGRESS_EVERY_NS: u64 = 100_000_000;

/// What the caller holds of a running measurement.
#[derive(Clone, Copy, Default)]
pub struct Control<'a> {
    /// Set it to end the measurement within a tenth of a second; what was measured so far is returned.
    pub cancel: Option<&'a AtomicBool>,
    /// Called with (done, total) about ten times a second, from the measuring thread while nothing is under way.
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

/// The control as the measuring threads see it.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    control: Control<'a>,
    deadline_ns: u64,
    failed: &'a AtomicBool,
    last_progress_ns: u64,
}

impl<'a> Watch<'a> {
    /// `failed` is raised by the other thread when it cannot go on.
    pub(crate) fn new(control: Control<'a>, deadline_ns: u64, failed: &'a AtomicBool) -> Self {
        Self {
            control,
            deadline_ns,
            failed,
            last_progress_ns: 0,
        }
    }

    pub(crate) fn stopped(&self, now: u64) -> Option<Stop> {
        let raised = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if raised(self.failed) || self.control.cancel.is_some_and(raised) {
            Some(Stop::Cancelled)
        } else if now >= self.deadline_ns {
            Some(Stop::Deadline)
        } else {
            None
        }
    }

    pub(crate) fn progress(&mut self, now: u64, done: u64, total: u64) {
        if let Some(progress) = self.control.progress
            && (done == total || now.saturating_sub(self.last_progress_ns) >= PROGRESS_EVERY_NS)
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
    fn ends_by_deadline_cancel_or_failure() {
        let (cancel, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let control = Control {
            cancel: Some(&cancel),
            progress: None,
        };
        let watch = Watch::new(control, 1000, &failed);
        assert_eq!(watch.stopped(999), None);
        assert_eq!(watch.stopped(1000), Some(Stop::Deadline));
        cancel.store(true, Ordering::Relaxed);
        assert_eq!(watch.stopped(0), Some(Stop::Cancelled));
        cancel.store(false, Ordering::Relaxed);
        failed.store(true, Ordering::Relaxed);
        assert_eq!(watch.stopped(0), Some(Stop::Cancelled));
    }

    #[test]
    fn progress_is_rare_and_complete() {
        let calls = Mutex::new(Vec::new());
        let progress = |done, total| calls.lock().unwrap().push((done, total));
        let failed = AtomicBool::new(false);
        let control = Control {
            cancel: None,
            progress: Some(&progress),
        };
        let mut watch = Watch::new(control, u64::MAX, &failed);
        for done in 0..=1000 {
            watch.progress(
                PROGRESS_EVERY_NS + done * PROGRESS_EVERY_NS / 400,
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
