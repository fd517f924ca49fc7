//! Members that several chains share. The first user makes a member, the last user ends it.
//!
//! To make or end a member may take seconds (a worker's environment, a container). Meanwhile the
//! pool locks only that member, so the list and the other members stay available.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval at which the last user checks for remaining readers.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// All members, by key.
pub(crate) struct Pool<K, T>(Arc<Mutex<SlotMap<K, T>>>);

type SlotMap<K, T> = BTreeMap<K, Arc<PoolSlot<T>>>;

struct PoolSlot<T>(Mutex<SlotState<T>>);

struct SlotState<T> {
    users: u32,
    /// `None` before the first user has made the member, and after the last user has ended it.
    member: Option<Arc<T>>,
}

/// A user's share of a member. Dropping the last lease ends the member.
pub(crate) struct Lease<K: Ord, T> {
    pool: Pool<K, T>,
    key: K,
    slot: Arc<PoolSlot<T>>,
    /// `None` only during drop.
    member: Option<Arc<T>>,
}

impl<K, T> Default for Pool<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, T> Clone for Pool<K, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Ord + Clone, T> Pool<K, T> {
    /// Returns a lease on the member with that key, and calls `make` if the member is missing.
    /// Waits for a member that another thread makes or ends.
    pub(crate) fn acquire<E>(
        &self,
        key: &K,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Lease<K, T>, E> {
        let empty = || {
            Arc::new(PoolSlot(Mutex::new(SlotState {
                users: 0,
                member: None,
            })))
        };
        let slot = Arc::clone(lock(&self.0).entry(key.clone()).or_insert_with(empty));
        let mut state = lock(&slot.0);
        let member = match &state.member {
            Some(member) => Arc::clone(member),
            None => match make() {
                Ok(made) => Arc::clone(state.member.insert(Arc::new(made))),
                Err(error) => {
                    drop(state);
                    self.remove_unused(key, &slot);
                    return Err(error);
                }
            },
        };
        state.users += 1;
        drop(state);
        Ok(Lease {
            pool: self.clone(),
            key: key.clone(),
            slot,
            member: Some(member),
        })
    }

    /// Returns a lease on an existing member, or `None`. Never waits: a member that another thread
    /// makes or ends counts as missing.
    pub(crate) fn share(&self, key: &K) -> Option<Lease<K, T>> {
        let slot = Arc::clone(lock(&self.0).get(key)?);
        let mut state = slot.0.try_lock().ok()?;
        let member = Arc::clone(state.member.as_ref()?);
        state.users += 1;
        drop(state);
        Some(Lease {
            pool: self.clone(),
            key: key.clone(),
            slot,
            member: Some(member),
        })
    }

    /// Returns all members with their keys. Never waits: skips members that another thread makes or
    /// ends.
    pub(crate) fn members(&self) -> Vec<(K, Arc<T>)> {
        let slots = lock(&self.0);
        let members = slots.iter().filter_map(|(key, slot)| {
            let state = slot.0.try_lock().ok()?;
            Some((key.clone(), Arc::clone(state.member.as_ref()?)))
        });
        members.collect()
    }

    /// Removes an empty slot that no thread waits for.
    fn remove_unused(&self, key: &K, slot: &Arc<PoolSlot<T>>) {
        let mut slots = lock(&self.0);
        // The caller and the list each hold a reference. A thread gets a further reference only
        // under the list's lock, which this function holds.
        if Arc::strong_count(slot) == 2 && lock(&slot.0).users == 0 {
            slots.remove(key);
        }
    }
}

impl<K: Ord, T> Lease<K, T> {
    /// Returns the member. Hold the reference only briefly: the last lease waits for it.
    pub(crate) fn shared(&self) -> Arc<T> {
        match &self.member {
            Some(member) => Arc::clone(member),
            None => unreachable!("a lease has its member until it is dropped"),
        }
    }
}

impl<K: Ord + Clone, T> Clone for Lease<K, T> {
    fn clone(&self) -> Self {
        lock(&self.slot.0).users += 1;
        Self {
            pool: self.pool.clone(),
            key: self.key.clone(),
            slot: Arc::clone(&self.slot),
            member: self.member.clone(),
        }
    }
}

impl<K: Ord, T> Deref for Lease<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.member {
            Some(member) => member,
            None => unreachable!("a lease has its member until it is dropped"),
        }
    }
}

impl<K: Ord + fmt::Debug, T> fmt::Debug for Lease<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.key).finish()
    }
}

impl<K: Ord, T> Drop for Lease<K, T> {
    fn drop(&mut self) {
        let mut state = lock(&self.slot.0);
        self.member = None;
        state.users -= 1;
        if state.users > 0 {
            return;
        }
        if let Some(member) = state.member.take() {
            drop(wait_until_unique(member));
        }
        drop(state);
        let mut slots = lock(&self.pool.0);
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.key);
        }
    }
}

/// Waits until this is the only reference. Readers and the supervisor hold other references
/// briefly.
pub(crate) fn wait_until_unique<T>(mut shared: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(value) => return value,
            Err(still_shared) => shared = still_shared,
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Locks a mutex, also after another thread panicked. The data is consistent then, because each
/// step undoes itself.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    /// Counts its instances.
    struct Counted<'a>(&'a AtomicU32);

    impl<'a> Counted<'a> {
        fn new(count: &'a AtomicU32) -> Self {
            assert_eq!(
                count.fetch_add(1, Ordering::SeqCst),
                0,
                "two members have one key"
            );
            Self(count)
        }

        fn acquire(pool: &Pool<u8, Self>, count: &'a AtomicU32) -> Lease<u8, Self> {
            let made = pool.acquire(&7, || Ok::<_, Infallible>(Self::new(count)));
            made.unwrap()
        }
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            std::thread::sleep(std::time::Duration::from_micros(50));
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_first_user_makes_the_member_and_the_last_ends_it() {
        let count = AtomicU32::new(0);
        let pool = Pool::default();
        let one = Counted::acquire(&pool, &count);
        let two = one.clone();
        let three = pool.share(&7).unwrap();
        assert_eq!(pool.members().len(), 1);
        drop((one, three));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        drop(two);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        assert!(pool.share(&7).is_none() && lock(&pool.0).is_empty());
        assert!(pool.acquire(&7, || Err::<Counted<'_>, _>("no")).is_err());
        assert!(lock(&pool.0).is_empty());
    }

    #[test]
    fn a_key_never_has_two_members() {
        let count = AtomicU32::new(0);
        let pool = Pool::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        drop(Counted::acquire(&pool, &count));
                        drop(pool.members());
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 0);
        assert!(lock(&pool.0).is_empty());
    }

    #[test]
    fn a_slow_member_does_not_block_the_others() {
        let pool = Pool::default();
        let other = pool.acquire(&2, || Ok::<_, Infallible>('b')).unwrap();
        let (report_start, start) = channel();
        let (allow_end, end) = channel::<()>();
        let slow = pool.clone();
        let maker = std::thread::spawn(move || {
            slow.acquire(&1, || {
                report_start.send(()).unwrap();
                end.recv().map(|()| 'a')
            })
        });
        start.recv().unwrap();
        assert_eq!(*pool.share(&2).unwrap(), 'b');
        assert!(pool.share(&1).is_none());
        let keys: Vec<_> = pool.members().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [2]);
        allow_end.send(()).unwrap();
        assert_eq!(*maker.join().unwrap().unwrap(), 'a');
        drop(other);
    }
}
