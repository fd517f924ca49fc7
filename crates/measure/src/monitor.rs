//! Progress and cancellation of long work.

use std::sync::atomic::{AtomicBool, Ordering};

use myelin_api::Event;

/// Receives the progress of long work, and can cancel it.
#[derive(Clone, Copy)]
pub struct Monitor<'a> {
    /// Receives every event.
    pub emit: &'a (dyn Fn(Event) + Sync),
    /// Becomes true when the client disconnects.
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
