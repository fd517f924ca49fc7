//! State that outlives one form of a chain, or that two functions share.
//!
//! What a stateful function remembers is a value of its own type, held by a [`Shared`]. Within one
//! worker, [`States`] knows the values by whose they are ([`StateKey`]: chain and function). So these
//! get the same one:
//!
//! * a function in the old and in the new generation of a chain that is changed: the flows go on;
//! * a function and the one in the reverse chain that undoes it (`reverseOf`): its instance carries
//!   the *key of the function it undoes* and [`Side::Reply`](myelin_spec::Side::Reply).
//!
//! How to write a stateful function:
//!
//! 1. Keep what is remembered in one struct, with its bound; make it full-grown at once, so that
//!    nothing is allocated while packets are handled.
//! 2. In [`registry`](crate::States::instantiate), ask [`States::get`] for it. `shape` is the part of
//!    the configuration that the state depends on; let it be the whole configuration with every key
//!    that may change under a living state set to its default. When a new generation's shape differs,
//!    it starts with a new state; the old one is there as long as the old
//!    generation, which goes on with it when the change fails.
//! 3. Implement `Stateful` instead of [`Function`](crate::Function); [`WithState`](crate::WithState)
//!    enters the state once a batch.
//!
//! All functions of a worker run in one thread, one after the other, so nobody ever waits for a
//! state; [`Shared::enter`] is one compare-and-swap, which is what it takes for the compiler to
//! believe that. The states are made and freed in the worker's control thread.
//!
//! A state lives in its worker: it is lost when that process dies. The kernel's twin, which is not,
//! is `state.rs` of the kernel room.

use std::any::Any;
use std::sync::{Arc, Weak};

use atomic_refcell::{AtomicRefCell, AtomicRefMut};
use myelin_spec::{FunctionConfig, StateKey};

/// A state and one of its users; a copy is another user of the same state.
#[derive(Debug)]
pub struct Shared<T>(Arc<AtomicRefCell<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    /// A state that nobody finds.
    pub fn new(state: T) -> Self {
        Self(Arc::new(AtomicRefCell::new(state)))
    }

    /// The state, for a batch. `None` while another thread is in it, which cannot be in a worker: to
    /// drop the batch is right then, as it would be for want of memory.
    #[inline]
    pub fn enter(&self) -> Option<AtomicRefMut<'_, T>> {
        self.0.try_borrow_mut().ok()
    }
}

/// The living states of a worker, by whose they are.
#[derive(Debug, Default)]
pub struct States {
    entries: Vec<Entry>,
}

/// What is known of a state without entering it.
#[derive(Debug)]
struct Entry {
    key: StateKey,
    shape: FunctionConfig,
    state: Weak<dyn Any + Send + Sync>,
}

impl States {
    /// The state of `key`, if it lives and has that shape, else a new one; without a key one that
    /// nobody else gets.
    pub fn get<T: Send + Sync + 'static>(
        &mut self,
        key: Option<&StateKey>,
        shape: &FunctionConfig,
        make: impl FnOnce() -> T,
    ) -> Shared<T> {
        self.prune();
        let Some(key) = key else {
            return Shared::new(make());
        };
        let living = self
            .entries
            .iter()
            .find(|entry| (&entry.key, &entry.shape) == (key, shape))
            .and_then(|entry| entry.state.upgrade())
            .and_then(|state| state.downcast::<AtomicRefCell<T>>().ok());
        if let Some(state) = living {
            return Shared(state);
        }
        let state = Arc::new(AtomicRefCell::new(make()));
        let any: Arc<dyn Any + Send + Sync> = state.clone();
        self.entries.push(Entry {
            key: key.clone(),
            shape: shape.clone(),
            state: Arc::downgrade(&any),
        });
        Shared(state)
    }

    /// Forgets states that nobody uses any more, and so what their shapes hold: keys among it. To be called when a chain is removed.
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

    /// Adds one and gives what it is now.
    fn count(state: &Shared<u32>) -> u32 {
        let mut state = state.enter().unwrap();
        *state += 1;
        *state
    }

    #[test]
    fn who_asks_by_the_same_key_and_shape_shares_a_state() {
        let mut states = States::default();
        let one = states.get(Some(&key("a")), &shape(1), || 0);
        let same = states.get(Some(&key("a")), &shape(1), || 0);
        let other = states.get(Some(&key("b")), &shape(1), || 0);
        let private = states.get(None, &shape(1), || 0);
        assert_eq!([&one, &same, &other, &private].map(count), [1, 2, 1, 1]);
        let reshaped = states.get(Some(&key("a")), &shape(2), || 0);
        assert_eq!([&reshaped, &one].map(count), [1, 3]);
        // Another type under the same key and shape is another state too.
        assert_eq!(
            *states
                .get(Some(&key("b")), &shape(1), || "text")
                .enter()
                .unwrap(),
            "text"
        );
    }

    #[test]
    fn a_state_goes_with_its_last_user() {
        let mut states = States::default();
        let one = states.get(Some(&key("a")), &shape(1), || 0);
        let same = one.clone();
        count(&one);
        drop(one);
        assert_eq!(
            count(&states.get(Some(&key("a")), &shape(1), || 0)),
            2,
            "it went too early"
        );
        drop(same);
        assert_eq!(count(&states.get(Some(&key("a")), &shape(1), || 0)), 1);
        states.get(Some(&key("b")), &shape(1), || 0);
        assert_eq!(states.entries.len(), 1, "dead entries stay");
        let living = states.get(Some(&key("c")), &shape(1), || 0);
        drop(states.get(Some(&key("d")), &shape(1), || 0));
        states.prune();
        let kept: Vec<_> = states.entries.iter().map(|entry| &entry.key).collect();
        assert_eq!(kept, [&key("c")]);
        drop(living);
    }

    #[test]
    fn nobody_is_let_in_twice() {
        let state = Shared::new(0);
        let inside = state.enter();
        assert!(inside.is_some() && state.clone().enter().is_none());
        drop(inside);
        assert!(state.enter().is_some());
    }
}
