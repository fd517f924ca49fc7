//! Processes that are looked after while somebody else works with one of them.
//!
//! Whoever works with one holds that one's lock, for seconds perhaps if it does not answer. Who looks after them passes by those that are
//! held and is held up by nobody, so the others are started again in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

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

    /// Whether nobody works with it now; one that is not there is free.
    pub(crate) fn is_free(&self, key: &K) -> bool {
        let member = self.members.get(key);
        !member.is_some_and(|member| matches!(member.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Waits for whoever works with it or looks after it; then nobody does any more.
    pub(crate) fn remove(&mut self, key: &K) -> Option<T> {
        lock(&self.watched.0).remove(key);
        self.members.remove(key).map(alone)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, MutexGuard<'_, T>)> {
        self.members.iter().map(|(key, member)| (key, lock(member)))
    }
}

impl<K, T> Drop for Roster<K, T> {
    fn drop(&mut self) {
        // Or they would be started again by who still watches.
        lock(&self.watched.0).clear();
        for (_, member) in std::mem::take(&mut self.members) {
            drop(alone(member));
        }
    }
}

/// What only who looks after it may still have: that one is waited for.
fn alone<T>(mut member: Member<T>) -> T {
    loop {
        match Arc::try_unwrap(member) {
            Ok(member) => return member.into_inner().unwrap_or_else(PoisonError::into_inner),
            Err(shared) => member = shared,
        }
        drop(lock(&member));
        // Between the end of its look and the end of its share there is a moment.
        std::thread::yield_now();
    }
}

impl<K: Clone, T> Watched<K, T> {
    /// Looks after all with which nobody works just now. A look may take seconds; it holds up who wants that member alone.
    pub(crate) fn each_idle(&self, mut look: impl FnMut(&K, &mut T)) {
        let members: Vec<(K, Weak<Mutex<T>>)> = lock(&self.0)
            .iter()
            .map(|(key, member)| (key.clone(), Arc::downgrade(member)))
            .collect();
        for (key, member) in members {
            // One that was removed meanwhile is nobody's any more.
            let Some(member) = member.upgrade() else {
                continue;
            };
            match member.try_lock() {
                Ok(mut member) => look(&key, &mut member),
                Err(TryLockError::Poisoned(member)) => look(&key, &mut member.into_inner()),
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
        assert!(!roster.is_free(&2) && roster.is_free(&1) && roster.is_free(&9));
        drop(held);
        assert!(roster.is_free(&2));
        assert_eq!(seen(&watched), "abc");
        roster.remove(&2);
        assert_eq!(seen(&watched), "ac");
    }

    #[test]
    fn a_long_look_holds_up_its_own_member_alone() {
        use std::sync::mpsc::channel;
        let mut roster = Roster::default();
        for (key, member) in [(1, 'a'), (2, 'b')] {
            roster.insert(key, member);
        }
        let watched = roster.watched();
        let (begun, is_begun) = channel();
        let (go_on, may_go_on) = channel();
        let looker = std::thread::spawn(move || {
            let mut all = String::new();
            watched.each_idle(|key, member| {
                all.push(*member);
                if *key == 1 {
                    *member = 'A';
                    begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                }
            });
            all
        });
        is_begun.recv().unwrap();
        // While it looks at the first one, the others come and go.
        roster.insert(3, 'c');
        assert_eq!(roster.remove(&2), Some('b'));
        assert_eq!(roster.remove(&2), None);
        let released = std::thread::spawn(move || go_on.send(()).unwrap());
        assert_eq!(roster.remove(&1), Some('A'), "it waits for the look");
        released.join().unwrap();
        assert_eq!(looker.join().unwrap(), "a");
        assert_eq!(seen(&roster.watched()), "c");
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
