//! Objects that threads watch, one thread for each task.

use std::io;
use std::sync::{Arc, Weak};

/// The objects whose threads have been started. The threads end with their objects.
pub(super) struct Watched<T>(Vec<(Weak<T>, usize)>);

impl<T> Default for Watched<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Watched<T> {
    /// Starts the threads of the first `tasks` tasks of an object that have none. Logs a failure;
    /// the next call tries again.
    pub(super) fn start_missing(
        &mut self,
        object: &Arc<T>,
        tasks: usize,
        mut start: impl FnMut(usize) -> io::Result<()>,
    ) {
        self.0.retain(|(known, _)| known.strong_count() > 0);
        let object = Arc::downgrade(object);
        for task in 0..tasks {
            let is_started = |(known, of): &(Weak<T>, usize)| known.ptr_eq(&object) && *of == task;
            if self.0.iter().any(is_started) {
                continue;
            }
            match start(task) {
                Ok(()) => self.0.push((Weak::clone(&object), task)),
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread that watches; trying again");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_do_not_start_are_started_later() {
        let mut watched = Watched::default();
        let [one, other] = [Arc::new(1), Arc::new(2)];
        let mut started = Vec::new();
        watched.start_missing(&one, 3, |task| {
            if task == 1 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            started.push(task);
            Ok(())
        });
        for object in [&one, &one, &other] {
            watched.start_missing(object, 3, |task| {
                started.push(10 * **object + task);
                Ok(())
            });
        }
        assert_eq!(started, [0, 11, 12, 20, 21, 22]);
        drop(one);
        watched.start_missing(&other, 0, |_| Ok(()));
        assert_eq!(watched.0.len(), 3);
    }
}
