//! State that outlives one generation of a chain, or that two functions share.
//!
//! A stateful function keeps its memory in a [`SharedState`], as a value of a type of that
//! function. [`States`] lists the states of one worker by their [`StateKey`] (chain and function).
//! So these functions share one state:
//!
//! * a function in the old and in the new generation of a chain that changes, so flows continue;
//! * a function and its inverse in the reverse chain (`reverseOf`): the inverse carries the *key of
//!   the function that it reverses* and [`Side::Reply`](myelin_spec::Side::Reply).
//!
//! How to write a stateful function:
//!
//! 1. Keep the state in one struct of limited size. Allocate all memory of the struct in its
//!    constructor, because the packet path must not allocate.
//! 2. In [`registry`](crate::States::instantiate), get the state from [`States::get_or_create`].
//!    `shape` is the part of the configuration that the state depends on: the configuration with
//!    defaults for all keys that may change while the state exists. If the
//!    shape of a new generation differs, the new generation starts with a new state. The old
//!    generation keeps the old state, and continues with it if the change fails.
//! 3. Implement `Stateful` instead of [`Function`](crate::Function).
//!    [`WithState`](crate::WithState) borrows the state once a batch.
//!
//! All functions of a worker run in one thread, one after the other, so no function ever waits for
//! a state. [`SharedState::try_borrow`] is one compare-and-swap, which proves to the compiler that
//! no other thread holds the state. The control thread of the worker makes and frees the states.
//!
//! A state is in the memory of its worker and is lost when the worker process ends. The state of
//! kernel functions survives: see `state.rs` of the crate `kernel`.

use std::any::Any;
use std::sync::{Arc, Weak};

use atomic_refcell::{AtomicRefCell, AtomicRefMut};
use myelin_spec::{FunctionConfig, StateKey};

/// A function's handle of a state. A clone is another handle of the same state.
#[derive(Debug)]
pub struct SharedState<T>(Arc<AtomicRefCell<T>>);

impl<T> Clone for SharedState<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> SharedState<T> {
    /// Makes a state without a key, which only clones of this handle share.
    pub fn new(state: T) -> Self {
        Self(Arc::new(AtomicRefCell::new(state)))
    }

    /// Borrows the state for a batch. Returns `None` while another thread holds the state, which
    /// never happens in a worker. The caller then drops the batch, as it does when memory is short.
    #[inline]
    pub fn try_borrow(&self) -> Option<AtomicRefMut<'_, T>> {
        self.0.try_borrow_mut().ok()
    }
}

/// The states of a worker that are in use.
#[derive(Debug, Default)]
pub struct States {
    entries: Vec<StateEntry>,
}

/// A state's key and shape, which [`States`] compares without borrowing the state.
#[derive(Debug)]
struct StateEntry {
    key: StateKey,
    shape: FunctionConfig,
    state: Weak<dyn Any + Send + Sync>,
}

impl States {
    /// Returns the state of `key` if it exists with this shape, or makes a new state. A state
    /// without a key is never shared.
    pub fn get_or_create<T: Send + Sync + 'static>(
        &mut self,
        key: Option<&StateKey>,
        shape: &FunctionConfig,
        make: impl FnOnce() -> T,
    ) -> SharedState<T> {
        self.prune();
        let Some(key) = key else {
            return SharedState::new(make());
        };
        let existing = self
            .entries
            .iter()
            .find(|entry| (&entry.key, &entry.shape) == (key, shape))
            .and_then(|entry| entry.state.upgrade())
            .and_then(|state| state.downcast::<AtomicRefCell<T>>().ok());
        if let Some(state) = existing {
            return SharedState(state);
        }
        let state = Arc::new(AtomicRefCell::new(make()));
        let any: Arc<dyn Any + Send + Sync> = state.clone();
        self.entries.push(StateEntry {
            key: key.clone(),
            shape: shape.clone(),
            state: Arc::downgrade(&any),
        });
        SharedState(state)
    }

    /// Removes the entries of states without users, because the shapes hold secret keys. Call this
    /// method after the removal of a chain.
    pub fn prune(&mut self) {
        self.entries.retain(|entry| entry.state.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::XorConfig;

    use super::*;

    fn key(function: &str) -> StateKey {
        StateKey {
            chain: "tactile".into(),
            function: function.into(),
        }
    }

    fn shape(key: u8) -> FunctionConfig {
        FunctionConfig::Xor(XorConfig { key })
    }

    /// Adds one to the state and returns the sum.
    fn count(state: &SharedState<u32>) -> u32 {
        let mut state = state.try_borrow().unwrap();
        *state += 1;
        *state
    }

    #[test]
    fn equal_key_and_shape_share_a_state() {
        let mut states = States::default();
        let first = states.get_or_create(Some(&key("a")), &shape(1), || 0);
        let same = states.get_or_create(Some(&key("a")), &shape(1), || 0);
        let other = states.get_or_create(Some(&key("b")), &shape(1), || 0);
        let private = states.get_or_create(None, &shape(1), || 0);
        assert_eq!([&first, &same, &other, &private].map(count), [1, 2, 1, 1]);
        let reshaped = states.get_or_create(Some(&key("a")), &shape(2), || 0);
        assert_eq!([&reshaped, &first].map(count), [1, 3]);
        // Another type under the same key and shape is also another state.
        assert_eq!(
            *states
                .get_or_create(Some(&key("b")), &shape(1), || "text")
                .try_borrow()
                .unwrap(),
            "text"
        );
    }

    #[test]
    fn a_state_is_freed_with_its_last_user() {
        let mut states = States::default();
        let first = states.get_or_create(Some(&key("a")), &shape(1), || 0);
        let same = first.clone();
        count(&first);
        drop(first);
        assert_eq!(
            count(&states.get_or_create(Some(&key("a")), &shape(1), || 0)),
            2,
            "the state was freed although a handle exists"
        );
        drop(same);
        assert_eq!(
            count(&states.get_or_create(Some(&key("a")), &shape(1), || 0)),
            1
        );
        states.get_or_create(Some(&key("b")), &shape(1), || 0);
        assert_eq!(states.entries.len(), 1, "entries without users stay");
        let existing = states.get_or_create(Some(&key("c")), &shape(1), || 0);
        drop(states.get_or_create(Some(&key("d")), &shape(1), || 0));
        states.prune();
        let kept: Vec<_> = states.entries.iter().map(|entry| &entry.key).collect();
        assert_eq!(kept, [&key("c")]);
        drop(existing);
    }

    #[test]
    fn a_state_cannot_be_borrowed_twice() {
        let state = SharedState::new(0);
        let borrowed = state.try_borrow();
        assert!(borrowed.is_some() && state.clone().try_borrow().is_none());
        drop(borrowed);
        assert!(state.try_borrow().is_some());
    }
}
