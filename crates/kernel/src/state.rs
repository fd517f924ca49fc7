//! State maps of kernel functions: what a stateful function remembers, kept by whose it is.
//!
//! A state is one or more eBPF maps. They belong to a function of a chain ([`StateKey`]) and not to a
//! program, so these find the same maps: the programs of the old and of the new generation of a chain
//! that is changed; the programs at both hooks; the program of a function in the reverse chain that
//! undoes another one's work (`reverseOf`), whose instance carries the *key of the function it undoes*
//! and [`Side::Reply`](myelin_spec::Side::Reply). The maps are freed with the last program that uses them.
//!
//! How a stateful kind is loaded (in `instance.rs`):
//!
//! 1. List its maps as [`MapShape`]s under the names they have in the eBPF object.
//! 2. `states.get(key, shape, &maps)`: `shape` is the part of the configuration that the state depends on; let it be
//!    the whole configuration with every key that may change under a living state set to its default. When a new
//!    generation's shape differs, it starts with new maps, and the old ones go with the old programs.
//! 3. Hand [`State::maps`] to `Program::load` beside the shared maps.
//! 4. Return the `Arc<State>` with the program: the segment holds it, and with it the state.
//!
//! A state survives the death of the agent as long as its programs do: they hold the maps. The next agent does not find
//! it. The twin in user space is `state.rs` of the functions room.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

use libbpf_rs::{MapHandle, MapType};
use myelin_spec::{FunctionConfig, StateKey};

use crate::map::{Named, create, fds};
use crate::{Error, lock};

/// One map of a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape {
    /// Its name in the eBPF object.
    pub(crate) name: &'static str,
    pub(crate) kind: MapType,
    /// Bytes of a key.
    pub(crate) key: usize,
    /// Bytes of a value.
    pub(crate) value: usize,
    pub(crate) entries: u32,
    /// `BPF_F_...`.
    pub(crate) flags: u32,
}

/// The maps of one function.
#[derive(Debug)]
pub(crate) struct State {
    maps: Vec<Named>,
}

impl State {
    fn new(shapes: &[MapShape]) -> Result<Self, Error> {
        let maps = shapes.iter().map(|shape| {
            let map = create(
                shape.name,
                shape.kind,
                shape.key,
                shape.value,
                shape.entries,
                shape.flags,
            )?;
            Ok((shape.name, map))
        });
        Ok(Self {
            maps: maps.collect::<Result<_, Error>>()?,
        })
    }

    /// The maps by name, as a program is loaded with them.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        fds(&self.maps)
    }

    /// One of the maps, to read and fill.
    pub(crate) fn map(&self, name: &str) -> Option<&MapHandle> {
        let (_, map) = self.maps.iter().find(|(own, _)| *own == name)?;
        Some(map)
    }
}

/// The living states of a plane, by whose they are.
#[derive(Debug, Default)]
pub(crate) struct States {
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    key: StateKey,
    shape: FunctionConfig,
    state: Weak<State>,
}

impl States {
    /// The state of `key`, if it lives and has that shape, else a new one; without a key one that nobody else gets.
    pub(crate) fn get(
        &self,
        key: Option<&StateKey>,
        shape: &FunctionConfig,
        maps: &[MapShape],
    ) -> Result<Arc<State>, Error> {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.state.strong_count() > 0);
        let living = key
            .and_then(|key| {
                entries
                    .iter()
                    .find(|entry| (&entry.key, &entry.shape) == (key, shape))
            })
            .and_then(|entry| entry.state.upgrade());
        if let Some(state) = living {
            return Ok(state);
        }
        let state = Arc::new(State::new(maps)?);
        if let Some(key) = key {
            entries.push(Entry {
                key: key.clone(),
                shape: shape.clone(),
                state: Arc::downgrade(&state),
            });
        }
        Ok(state)
    }
}
