//! Work on several nodes at the same time.

use std::thread::{self, Builder};

/// Runs `work` on all items at the same time, each in a thread. An item whose thread cannot start
/// has its turn in this thread. Returns the results in order; `None` for a thread that panicked.
pub fn in_parallel<'i, I: Sync, T: Send>(
    items: &'i [I],
    work: impl Fn(&'i I) -> T + Sync,
) -> Vec<Option<T>> {
    run_on(Builder::new, items, work)
}

fn run_on<'i, I: Sync, T: Send>(
    builder: impl Fn() -> Builder,
    items: &'i [I],
    work: impl Fn(&'i I) -> T + Sync,
) -> Vec<Option<T>> {
    let work = &work;
    thread::scope(|scope| {
        let start = |item: &'i I| (item, builder().spawn_scoped(scope, move || work(item)));
        let started: Vec<_> = items.iter().map(start).collect();
        let ended = started.into_iter().map(|(item, thread)| match thread {
            Ok(thread) => thread.join().ok(),
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread: a node waits for another");
                Some(work(item))
            }
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than the address space of a process, bytes.
    const TOO_LARGE: usize = 1 << 60;

    #[test]
    fn all_items_have_a_result_even_if_no_thread_starts() {
        let double = |item: &u32| item * 2;
        assert_eq!(in_parallel(&[3, 5], double), [Some(6), Some(10)]);
        let large = || Builder::new().stack_size(TOO_LARGE);
        assert!(large().spawn(|| ()).is_err());
        assert_eq!(run_on(large, &[3, 5], double), [Some(6), Some(10)]);
    }
}
