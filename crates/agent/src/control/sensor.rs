//! What a controller reads of a worker on a shared core: its turns, the fill level of its rings and
//! the age of their oldest packet.
//!
//! All of it is in mapped memory that the worker with the turn keeps up to date. A read takes no
//! lock, allocates nothing and makes no system call, so a controller may read every few
//! microseconds. A sensor is valid until the turns of the core change; open another one then.

use myelin_dataplane::{TaskLevel, TaskObserver, WorkerFacts};

/// A sensor of one worker process.
pub(crate) struct WorkerSensor(Option<TaskObserver>);

impl WorkerSensor {
    /// Opens the sensor of a process. One that takes no turns reads as zero.
    pub(crate) fn open(facts: &WorkerFacts) -> Self {
        Self(facts.task())
    }

    pub(crate) fn read(&self) -> TaskLevel {
        let level = self.0.as_ref().map(TaskObserver::read);
        level.unwrap_or_default()
    }
}
