//! Where long work reports to.

use std::sync::atomic::{AtomicBool, Ordering};

use myelin_api::Event;

/// Where long work reports to, and what tells it to stop.
#[derive(Clone, Copy)]
pub struct Monitor<'a> {
    /// Takes every event.
    pub emit: &'a (dyn Fn(Event) + Sync),
    /// Set when nobody listens any more.
    pub cancelled: &'a AtomicBool,
}

impl Monitor<'_> {
    /// Reports progress.
    pub fn progress(&self, stage: &str, done: u64, total: u64) {
        (self.emit)(Event::Progress {
            stage: stage.to_owned(),
            done,
            total,
        });
    }

    /// Whether the work should stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
