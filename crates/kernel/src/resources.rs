//! The maps that all front doors and chains of an agent share.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapHandle, MapType};

use crate::classifier::ClassifierTables;
use crate::counters::{COUNTERS, Counters};
use crate::map::{create, put};
use crate::numbers::NumberAllocator;
use crate::sockets::Sockets;
use crate::sojourn::{SOJOURN, Sojourn};
use crate::state::FunctionStates;
use crate::wire::Ttls;
use crate::{Error, Hook};

/// The capacity of a plane. The plane allocates all memory at once: by default about 5 MB, and 1 MB
/// per CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Counter lines per CPU, 64 bytes each. A chain takes one line for each function and two more,
    /// a port nine lines, a re-entry door three lines.
    pub lines: u32,
    /// Kernel functions at the same time, for each hook.
    pub programs: u32,
    /// Chains at the same time. During a live change a chain counts twice.
    pub chains: u32,
    /// Matches at the same time on all ports, for each address family.
    pub matches: u32,
    /// Ports at the same time.
    pub ports: u16,
    /// AF_XDP sockets of a port, one for each receive queue.
    pub queues: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            lines: 16_384,
            programs: 8192,
            chains: 4096,
            matches: 16_384,
            ports: 1024,
            queues: 64,
        }
    }
}

/// The part of a plane that ports and chains use.
#[derive(Debug)]
pub(crate) struct PlaneResources {
    pub(crate) capacity: Capacity,
    pub(crate) counters: Counters,
    pub(crate) tables: Arc<ClassifierTables>,
    /// The chain entries of each hook. While a chain changes its hook, both generations take
    /// packets, each at its hook.
    pub(crate) chains: [MapHandle; 2],
    pub(crate) chain_numbers: Arc<Mutex<NumberAllocator>>,
    pub(crate) port_numbers: Arc<Mutex<NumberAllocator>>,
    pub(crate) policers: MapHandle,
    pub(crate) policer_numbers: Arc<Mutex<NumberAllocator>>,
    pub(crate) paths: MapHandle,
    pub(crate) ttls: Ttls,
    /// Identifies this kernel: whose clock takes the stamps. Not 0.
    pub(crate) kernel: u32,
    pub(crate) states: FunctionStates,
    pub(crate) programs: [MapHandle; 2],
    /// For each hook: the program that replaces the program of a removed function.
    pub(crate) closed: [OwnedFd; 2],
    pub(crate) slots: [Arc<Mutex<NumberAllocator>>; 2],
    /// Placeholders for unused maps: a chain without a kernel egress, a hook without sockets.
    pub(crate) no_sojourn: Sojourn,
    pub(crate) no_sockets: Sockets,
    pub(crate) no_devices: MapHandle,
    pub(crate) pin_dir: Option<PathBuf>,
}

impl PlaneResources {
    /// Returns the program array of a hook. The index is the slot.
    pub(crate) fn programs(&self, hook: Hook) -> &MapHandle {
        &self.programs[hook as usize]
    }

    /// Returns the map of chain entries for the front door of a hook. The index is the chain
    /// number.
    pub(crate) fn chains(&self, hook: Hook) -> &MapHandle {
        &self.chains[hook as usize]
    }

    /// Returns the slot allocator of a hook.
    pub(crate) fn slots(&self, hook: Hook) -> &Arc<Mutex<NumberAllocator>> {
        &self.slots[hook as usize]
    }

    /// Writes a program into a slot.
    pub(crate) fn set_slot(
        &self,
        hook: Hook,
        slot: u32,
        program: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let action = ("programs", "put a program into");
        let program = program.as_raw_fd().to_ne_bytes();
        put(self.programs(hook), action, &slot.to_ne_bytes(), &program)
    }

    /// Removes the programs of a segment. Empties the first slot, so that `onFailure` applies to
    /// packets that reach the slot. Only programs of the same segment jump to the other slots,
    /// which get a program that drops packets.
    pub(crate) fn close_slots(&self, hook: Hook, slots: std::ops::Range<u32>) {
        // Ignore errors, because a slot that a failed load did not fill is already empty.
        let _ = self.programs(hook).delete(&slots.start.to_ne_bytes());
        for slot in slots.skip(1) {
            let _ = self.set_slot(hook, slot, self.closed[hook as usize].as_fd());
        }
    }

    /// Returns the maps that every program names. A program with its own histogram or sockets uses
    /// these instead of the placeholders.
    pub(crate) fn maps(&self, hook: Hook) -> Vec<(&'static str, BorrowedFd<'_>)> {
        vec![
            (COUNTERS, self.counters.as_fd()),
            ("programs", self.programs(hook).as_fd()),
            (SOJOURN, self.no_sojourn.as_fd()),
            ("sockets", self.no_sockets.0.as_fd()),
            ("devices", self.no_devices.as_fd()),
        ]
    }

    /// Creates a map for the AF_XDP sockets of an interface.
    pub(crate) fn create_sockets(&self) -> Result<Sockets, Error> {
        Sockets::new(self.capacity.queues)
    }
}

/// Creates a map of interfaces of this namespace.
pub(crate) fn create_device_map(interfaces: &[u32]) -> Result<MapHandle, Error> {
    let number = size_of::<u32>();
    let count = interfaces.len().max(1) as u32;
    let map = create("devices", MapType::Devmap, number, number, count, 0)?;
    for (index, ifindex) in (0_u32..).zip(interfaces) {
        let action = ("devices", "put an interface into");
        put(&map, action, &index.to_ne_bytes(), &ifindex.to_ne_bytes())?;
    }
    Ok(map)
}
