//! The maps that all front doors and all chains of an agent share.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapHandle, MapType};

use crate::blocks::Blocks;
use crate::classifier::Tables;
use crate::counters::{COUNTERS, Counters};
use crate::map::{create, put};
use crate::sockets::Sockets;
use crate::sojourn::{SOJOURN, Sojourn};
use crate::state::States;
use crate::{Error, Hook};

/// How much a plane holds. All of it is allocated at once, for the default some 5 MB and 1 MB a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Counter lines a CPU, 64 bytes each: a chain takes two more than it has functions, a port and a re-entry door eight.
    pub lines: u32,
    /// Kernel functions at a time, for each hook.
    pub programs: u32,
    /// Chains at a time; a live change needs two for a moment.
    pub chains: u32,
    /// Matches at a time on all ports, for each address family.
    pub matches: u32,
    /// Ports at a time.
    pub ports: u16,
    /// AF_XDP sockets a port: receive queues.
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

/// What ports and chains reach of their plane.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) capacity: Capacity,
    pub(crate) counters: Counters,
    pub(crate) tables: Arc<Tables>,
    /// By hook: during a change of the hook both generations of a chain take packets, each at its own.
    pub(crate) chains: [MapHandle; 2],
    pub(crate) chain_numbers: Arc<Mutex<Blocks>>,
    pub(crate) port_numbers: Arc<Mutex<Blocks>>,
    pub(crate) policers: MapHandle,
    pub(crate) policer_numbers: Arc<Mutex<Blocks>>,
    pub(crate) paths: MapHandle,
    pub(crate) states: States,
    pub(crate) programs: [MapHandle; 2],
    pub(crate) closed: [OwnedFd; 2],
    pub(crate) slots: [Arc<Mutex<Blocks>>; 2],
    /// Stand in where a program's map has no use: a chain without a kernel egress, a hook without sockets.
    pub(crate) no_sojourn: Sojourn,
    pub(crate) no_sockets: Sockets,
    pub(crate) no_devices: MapHandle,
    pub(crate) pin_dir: Option<PathBuf>,
}

impl Shared {
    /// The functions of a hook, by slot.
    pub(crate) fn programs(&self, hook: Hook) -> &MapHandle {
        &self.programs[hook as usize]
    }

    /// Where chains start, by their number, as the front door of a hook sees them.
    pub(crate) fn chains(&self, hook: Hook) -> &MapHandle {
        &self.chains[hook as usize]
    }

    /// The slots of a hook.
    pub(crate) fn slots(&self, hook: Hook) -> &Arc<Mutex<Blocks>> {
        &self.slots[hook as usize]
    }

    /// Puts a program into a slot.
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

    /// Takes the programs out of a segment's slots. The first one is empty then, and whoever comes by it does what
    /// `onFailure` says; in the others, to which only programs of the same segment jump, stands one that drops.
    pub(crate) fn close_slots(&self, hook: Hook, slots: std::ops::Range<u32>) {
        // Nobody is left to tell of an error. A slot that a failed load has not filled is empty already.
        let _ = self.programs(hook).delete(&slots.start.to_ne_bytes());
        for slot in slots.skip(1) {
            let _ = self.set_slot(hook, slot, self.closed[hook as usize].as_fd());
        }
    }

    /// The maps that every program names. Some have no use for a histogram or sockets; who has puts its own first.
    pub(crate) fn maps(&self, hook: Hook) -> Vec<(&'static str, BorrowedFd<'_>)> {
        vec![
            (COUNTERS, self.counters.as_fd()),
            ("programs", self.programs(hook).as_fd()),
            (SOJOURN, self.no_sojourn.as_fd()),
            ("sockets", self.no_sockets.0.as_fd()),
            ("devices", self.no_devices.as_fd()),
        ]
    }

    /// A place for the AF_XDP sockets of an interface.
    pub(crate) fn sockets(&self) -> Result<Sockets, Error> {
        Sockets::new(self.capacity.queues)
    }
}

/// A map of interfaces of this namespace, by place.
pub(crate) fn devices(interfaces: &[u32]) -> Result<MapHandle, Error> {
    let number = size_of::<u32>();
    let count = interfaces.len().max(1) as u32;
    let map = create("devices", MapType::Devmap, number, number, count, 0)?;
    for (place, ifindex) in (0_u32..).zip(interfaces) {
        let action = ("devices", "put an interface into");
        put(&map, action, &place.to_ne_bytes(), &ifindex.to_ne_bytes())?;
    }
    Ok(map)
}
