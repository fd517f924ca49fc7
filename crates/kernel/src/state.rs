//! State maps of stateful kernel functions.
//!
//! A state is one or more eBPF maps. A state belongs to a function of a chain ([`StateKey`]), not
//! to a program. Several programs share a state: the programs of the old and the new generation
//! during a live change, the programs of both hooks, and the reverse function (`reverseOf`). The
//! instance of a reverse function carries the *key of the function that it undoes* and
//! [`Side::Reply`](myelin_spec::Side::Reply). The kernel frees the maps after the last program.
//!
//! Steps to load a stateful kind (in `instance.rs`):
//!
//! 1. List its maps as [`MapShape`]s with their names in the eBPF object.
//! 2. Call `states.get_or_create(key, shape, &maps)`. `shape` is the configuration, with a default
//!    for every key that may change while the state exists. A generation with another shape starts
//!    with new maps, and the kernel frees the old maps after the old programs.
//! 3. Pass [`FunctionState::maps`] to `Program::load` with the shared maps.
//! 4. Return the `Arc<FunctionState>` with the program: the segment keeps the state alive.
//!
//! While programs are loaded, a state outlives the agent, because the programs hold the maps. The
//! next agent does not find the state. `state.rs` of the crate `functions` is the equivalent in
//! user space.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

use libbpf_rs::{MapHandle, MapType};
use myelin_spec::{FunctionConfig, StateKey};

use crate::map::{NamedMap, create, fds};
use crate::{Error, lock};

/// One map of a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape {
    /// The name in the eBPF object.
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
pub(crate) struct FunctionState {
    maps: Vec<NamedMap>,
}

impl FunctionState {
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

    /// Returns the maps by name, for the load of a program.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        fds(&self.maps)
    }

    /// Returns one of the maps, to read and fill.
    pub(crate) fn map(&self, name: &str) -> Option<&MapHandle> {
        let (_, map) = self.maps.iter().find(|(map_name, _)| *map_name == name)?;
        Some(map)
    }
}

/// The states of a plane by key.
#[derive(Debug, Default)]
pub(crate) struct FunctionStates {
    entries: Mutex<Vec<StateEntry>>,
}

#[derive(Debug)]
struct StateEntry {
    key: StateKey,
    shape: FunctionConfig,
    state: Weak<FunctionState>,
}

impl FunctionStates {
    /// Returns the state of `key` if it exists with this shape, else a new state. Without a key the
    /// state is private.
    pub(crate) fn get_or_create(
        &self,
        key: Option<&StateKey>,
        shape: &FunctionConfig,
        maps: &[MapShape],
    ) -> Result<Arc<FunctionState>, Error> {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.state.strong_count() > 0);
        let existing = key
            .and_then(|key| {
                entries
                    .iter()
                    .find(|entry| (&entry.key, &entry.shape) == (key, shape))
            })
            .and_then(|entry| entry.state.upgrade());
        if let Some(state) = existing {
            return Ok(state);
        }
        let state = Arc::new(FunctionState::new(maps)?);
        if let Some(key) = key {
            entries.push(StateEntry {
                key: key.clone(),
                shape: shape.clone(),
                state: Arc::downgrade(&state),
            });
        }
        Ok(state)
    }
}
