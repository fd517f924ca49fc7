//! The maps that all front doors and all chains of an agent share.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use myelin_packet::traffic::Profile;

use crate::blocks::Blocks;
use crate::chain::{ChainConfig, ChainEntry, LoadedChain};
use crate::classifier::Tables;
use crate::counters::{COUNTERS, Counters};
use crate::map::create;
use crate::object::{CLOSED, POLICER};
use crate::policer::Policer;
use crate::port::{Port, PortConfig};
use crate::reentry::{PathKey, Reentry};
use crate::sff::{DistributedConfig, FunctionLink};
use crate::sojourn::{SOJOURN, Sojourn};
use crate::state::States;
use crate::{Error, Hook, pins, sff, sys};

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
    chains: [MapHandle; 2],
    pub(crate) chain_numbers: Arc<Mutex<Blocks>>,
    pub(crate) port_numbers: Arc<Mutex<Blocks>>,
    pub(crate) policers: MapHandle,
    pub(crate) policer_numbers: Arc<Mutex<Blocks>>,
    pub(crate) paths: MapHandle,
    pub(crate) states: States,
    programs: [MapHandle; 2],
    closed: [OwnedFd; 2],
    slots: [Arc<Mutex<Blocks>>; 2],
    /// Stand in where a program's map has no use: a chain without a kernel egress, a hook without sockets.
    no_sojourn: Sojourn,
    no_sockets: MapHandle,
    no_devices: MapHandle,
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
        self.programs(hook)
            .update(
                &slot.to_ne_bytes(),
                &program.as_raw_fd().to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(|cause| Error::map("programs", "put a program into", &cause))
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
            ("sockets", self.no_sockets.as_fd()),
            ("devices", self.no_devices.as_fd()),
        ]
    }

    /// A map for AF_XDP sockets, by receive queue.
    pub(crate) fn sockets(&self) -> Result<MapHandle, Error> {
        sockets(self.capacity.queues)
    }
}

fn sockets(queues: u32) -> Result<MapHandle, Error> {
    create(
        "sockets",
        MapType::Xskmap,
        size_of::<u32>(),
        size_of::<u32>(),
        queues,
        0,
    )
}

/// A map of interfaces of this namespace, by place.
pub(crate) fn devices(interfaces: &[u32]) -> Result<MapHandle, Error> {
    let number = size_of::<u32>();
    let count = interfaces.len().max(1) as u32;
    let map = create("devices", MapType::Devmap, number, number, count, 0)?;
    for (place, ifindex) in (0_u32..).zip(interfaces) {
        map.update(&place.to_ne_bytes(), &ifindex.to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| Error::map("devices", "put an interface into", &cause))?;
    }
    Ok(map)
}

/// The kernel's part of an agent: one for a network namespace.
#[derive(Debug)]
pub struct Plane {
    shared: Arc<Shared>,
}

impl Plane {
    /// Makes the shared maps. With `pin_dir`, a directory of a bpffs of which nobody else makes use, they and the
    /// attachments of the ports outlive the process: kernel chains go on forwarding until [`Plane::remove_pins`].
    pub fn create(pin_dir: Option<&Path>, capacity: Capacity) -> Result<Self, Error> {
        if let Some(dir) = pin_dir {
            pins::prepare(dir)?;
        }
        let counters = Counters::of_machine(capacity.lines)?;
        let number = size_of::<u32>();
        let programs = |name| {
            create(
                name,
                MapType::ProgArray,
                number,
                number,
                capacity.programs,
                0,
            )
        };
        let slots = || Blocks::new("kernel functions", 0, capacity.programs);
        // Number 0 is no chain.
        let chains = || {
            create(
                "chains",
                MapType::Array,
                number,
                size_of::<ChainEntry>(),
                capacity.chains + 1,
                0,
            )
        };
        let shared = Shared {
            counters,
            tables: Arc::new(Tables::new(capacity.matches)?),
            chains: [chains()?, chains()?],
            chain_numbers: Blocks::new("chains", 1, capacity.chains + 1),
            port_numbers: Blocks::new("ports", 0, u32::from(capacity.ports)),
            // Number 0 is no policer; a chain has one, and a shaper.
            policers: POLICER.declared_map("policers", 2 * capacity.chains + 1)?,
            policer_numbers: Blocks::new("policers", 1, 2 * capacity.chains + 1),
            paths: create(
                "paths",
                MapType::Hash,
                size_of::<PathKey>(),
                number,
                capacity.programs,
                0,
            )?,
            states: States::default(),
            programs: [programs("programs_xdp")?, programs("programs_tcx")?],
            closed: [
                CLOSED.load(Hook::Xdp, &[], &[])?,
                CLOSED.load(Hook::Tcx, &[], &[])?,
            ],
            slots: [slots(), slots()],
            no_sojourn: Sojourn::new(1)?,
            no_sockets: sockets(1)?,
            no_devices: devices(&[])?,
            pin_dir: pin_dir.map(Path::to_path_buf),
            capacity,
        };
        if let Some(dir) = pin_dir {
            // What programs use lives as long as they do; but an array of programs is emptied when user space lets go of
            // it, and the counters are for whoever comes next.
            let [xdp, tcx] = &shared.programs;
            for (name, map) in [
                ("programs-xdp", xdp.as_fd()),
                ("programs-tcx", tcx.as_fd()),
                ("counters", shared.counters.as_fd()),
            ] {
                pins::pin(map, &dir.join(name))?;
            }
        }
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The counters of all ports and chains.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What the plane was made for.
    pub fn capacity(&self) -> Capacity {
        self.shared.capacity
    }

    /// Makes an interface a port. Nothing is attached yet.
    pub fn add_port(&self, config: PortConfig) -> Result<Port, Error> {
        Port::new(&self.shared, config)
    }

    /// A policer for the packets of a chain, with a full bucket. Where neither packets nor bits are limited there is none.
    pub fn policer(&self, profile: &Profile) -> Result<Option<Arc<Policer>>, Error> {
        let policer = || Policer::new(&self.shared, profile).map(Arc::new);
        (!profile.is_unlimited()).then(policer).transpose()
    }

    /// A shaper for packets that an interface holds back until their departure time, `limit_ns` at most; with a full bucket.
    pub fn shaper(&self, profile: &Profile, limit_ns: u64) -> Result<Arc<Policer>, Error> {
        Policer::shaper(&self.shared, profile, limit_ns).map(Arc::new)
    }

    /// What a shaper did.
    pub fn departures(&self, shaper: &Policer) -> Result<crate::Departures, Error> {
        shaper.departures(&self.shared)
    }

    /// The map of policers.
    pub(crate) fn policers(&self) -> BorrowedFd<'_> {
        self.shared.policers.as_fd()
    }

    /// Makes the receiving end of an internal link a door back into the kernel. Nothing is attached yet.
    pub fn add_reentry(&self, ifindex: u32) -> Result<Reentry, Error> {
        Reentry::new(&self.shared, ifindex)
    }

    /// Loads the kernel functions of a chain. No packet reaches them before [`Port::insert`].
    pub fn load_chain(&self, config: &ChainConfig) -> Result<LoadedChain, Error> {
        LoadedChain::load(&self.shared, config)
    }

    /// Loads a chain of functions in namespaces of their own, and the programs of each function's link. No packet reaches
    /// them before both ends of all links are attached and the chain has its matches.
    pub fn load_distributed(
        &self,
        config: &DistributedConfig,
    ) -> Result<(LoadedChain, Vec<FunctionLink>), Error> {
        sff::load(&self.shared, config)
    }

    /// Prepares `new`, a generation that takes the place of `old`, for the packets that are between the two hooks of a port at
    /// the moment when the match is led to it: the XDP door has let them pass because `old` takes packets at tcx, where
    /// they would then find a chain of the other hook. They go on to `old`, until [`stand_alone`](Self::stand_alone). To be
    /// called before [`Port::insert`].
    pub fn follow(&self, new: &LoadedChain, old: &LoadedChain) -> Result<(), Error> {
        new.follow(&self.shared, old)
    }

    /// The end of [`follow`](Self::follow): no packet of the generation before is left.
    pub fn stand_alone(&self, new: &LoadedChain) -> Result<(), Error> {
        new.stand_alone(&self.shared)
    }

    /// Waits until every packet that was in a program when this was called has left it: from then on none takes a way
    /// that was closed before the call. Takes some 10 ms.
    pub fn wait_for_packets(&self) -> Result<(), Error> {
        sys::grace_period().map_err(Error::GracePeriod)
    }

    /// Undoes what a plane pinned in `dir` has left behind: detaches its front doors and frees its maps, then removes the
    /// directory. Does nothing when it does not exist.
    pub fn remove_pins(dir: &Path) -> Result<(), Error> {
        pins::remove(dir)
    }
}
