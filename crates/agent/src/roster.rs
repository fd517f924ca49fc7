//! Processes that are looked after while somebody else works with one of them.
//!
//! Whoever works with one holds that one's lock, for seconds perhaps if it does not answer. Who looks after them passes by those that are
//! held and is held up by nobody, so the others are started again in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

type Member<T> = Arc<Mutex<T>>;
type Members<K, T> = BTreeMap<K, Member<T>>;

/// The members, as their keeper has them.
pub(crate) struct Roster<K, T> {
    members: Members<K, T>,
    watched: Watched<K, T>,
}

/// The same ones, for who looks after them.
pub(crate) struct Watched<K, T>(Arc<Mutex<Members<K, T>>>);

impl<K, T> Default for Roster<K, T> {
    fn default() -> Self {
        Self {
            members: BTreeMap::new(),
            watched: Watched(Arc::default()),
        }
    }
}

impl<K: Ord + Clone, T> Roster<K, T> {
    pub(crate) fn watched(&self) -> Watched<K, T> {
        Watched(Arc::clone(&self.watched.0))
    }

    pub(crate) fn insert(&mut self, key: K, member: T) {
        let member = Arc::new(Mutex::new(member));
        lock(&self.watched.0).insert(key.clone(), Arc::clone(&member));
        self.members.insert(key, member);
    }

    /// Waits for whoever works with it.
    pub(crate) fn get(&self, key: &K) -> Option<MutexGuard<'_, T>> {
        self.members.get(key).map(|member| lock(member))
    }

    /// Nobody looks after it any more.
    pub(crate) fn remove(&mut self, key: &K) -> Option<T> {
        lock(&self.watched.0).remove(key);
        let last = Arc::into_inner(self.members.remove(key)?)?;
        Some(last.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, MutexGuard<'_, T>)> {
        self.members.iter().map(|(key, member)| (key, lock(member)))
    }
}

impl<K, T> Drop for Roster<K, T> {
    fn drop(&mut self) {
        // Or they would be started again by who still watches.
        lock(&self.watched.0).clear();
    }
}

impl<K, T> Watched<K, T> {
    /// Looks after all with which nobody works just now.
    pub(crate) fn each_idle(&self, mut look: impl FnMut(&K, &mut T)) {
        for (key, member) in &*lock(&self.0) {
            match member.try_lock() {
                Ok(mut member) => look(key, &mut member),
                Err(TryLockError::Poisoned(member)) => look(key, &mut member.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }
}

/// A panic of one who worked with it must not end the others: what it left is consistent, for every step undoes itself.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(watched: &Watched<u8, char>) -> String {
        let mut all = String::new();
        watched.each_idle(|_, member| all.push(*member));
        all
    }

    #[test]
    fn those_that_are_held_hold_nobody_up() {
        let mut roster = Roster::default();
        for (key, member) in [(1, 'a'), (2, 'b'), (3, 'c')] {
            roster.insert(key, member);
        }
        let watched = roster.watched();
        assert_eq!(seen(&watched), "abc");
        let held = roster.get(&2).unwrap();
        assert_eq!(seen(&watched), "ac");
        drop(held);
        assert_eq!(seen(&watched), "abc");
        roster.remove(&2);
        assert_eq!(seen(&watched), "ac");
    }

    #[test]
    fn a_panic_of_one_leaves_the_others_and_itself_in_reach() {
        let mut roster = Roster::default();
        roster.insert(1, 'a');
        let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = roster.get(&1);
            panic!("on purpose");
        }));
        assert!(work.is_err());
        assert_eq!(seen(&roster.watched()), "a");
        assert_eq!(*roster.get(&1).unwrap(), 'a');
    }
}
