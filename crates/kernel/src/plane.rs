//! The kernel part of an agent: creates ports, chains and the maps that these share.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::MapType;
use myelin_packet::traffic::Profile;

use crate::block::Block;
use crate::chain::{ChainConfig, ChainEntry, LoadedChain};
use crate::classifier::ClassifierTables;
use crate::counters::Counters;
use crate::delay::DelayLink;
use crate::map::create;
use crate::numbers::NumberAllocator;
use crate::object::{CLOSED, POLICER};
use crate::policer::Policer;
use crate::port::{Port, PortConfig};
use crate::reentry::{PathKey, Reentry};
use crate::relay::{Relay, ReplyPath};
use crate::resources::{Capacity, PlaneResources, create_device_map};
use crate::sff::{DistributedConfig, FunctionLink};
use crate::sockets::Sockets;
use crate::sojourn::Sojourn;
use crate::state::FunctionStates;
use crate::wire::{PartTtl, Ttls, WireDoor, WireExit, WireExitConfig, WireSplit};
use crate::{Error, Hook, pins, sff, sys};

/// The ports, chains and shared maps of an agent. An agent has one plane per network namespace.
#[derive(Debug)]
pub struct Plane {
    shared: Arc<PlaneResources>,
}

impl Plane {
    /// Creates the shared maps. `pin_dir` is a directory of a bpffs that no other program uses.
    /// With `pin_dir`, maps and attachments outlive the process, so kernel chains forward packets
    /// until [`Plane::remove_pins`].
    ///
    /// # Errors
    /// The kernel refuses a map.
    pub fn create(pin_dir: Option<&Path>, capacity: Capacity) -> Result<Self, Error> {
        Self::create_with_clock(pin_dir, capacity, None)
    }

    /// As [`create`](Self::create), with the name of the agent's clock. Its stamps are not compared
    /// with those of agents whose clock has another name or none, also under the same kernel.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_with_clock(
        pin_dir: Option<&Path>,
        capacity: Capacity,
        clock: Option<&str>,
    ) -> Result<Self, Error> {
        if let Some(dir) = pin_dir {
            pins::prepare_dir(dir)?;
        }
        let counters = Counters::for_machine(capacity.lines)?;
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
        let slots = || NumberAllocator::new("kernel functions", 0, capacity.programs);
        // Number 0 means: no chain.
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
        let shared = PlaneResources {
            counters,
            tables: Arc::new(ClassifierTables::new(capacity.matches)?),
            chains: [chains()?, chains()?],
            chain_numbers: NumberAllocator::new("chains", 1, capacity.chains + 1),
            port_numbers: NumberAllocator::new("ports", 0, u32::from(capacity.ports)),
            // Number 0 means: no policer. A chain has one policer and one shaper.
            policers: POLICER.create_declared_map("policers", 2 * capacity.chains + 1)?,
            policer_numbers: NumberAllocator::new("policers", 1, 2 * capacity.chains + 1),
            paths: create(
                "paths",
                MapType::Hash,
                size_of::<PathKey>(),
                number,
                capacity.programs,
                0,
            )?,
            ttls: Ttls::new(capacity.chains)?,
            kernel: sys::clock_identity(clock),
            states: FunctionStates::default(),
            programs: [programs("programs_xdp")?, programs("programs_tcx")?],
            closed: [
                CLOSED.load(Hook::Xdp, &[], &[])?,
                CLOSED.load(Hook::Tcx, &[], &[])?,
            ],
            slots: [slots(), slots()],
            no_sojourn: Sojourn::new(1)?,
            no_sockets: Sockets::new(1)?,
            no_devices: create_device_map(&[])?,
            pin_dir: pin_dir.map(Path::to_path_buf),
            capacity,
        };
        if let Some(dir) = pin_dir {
            // Programs keep their maps alive. Two maps need a pin: the kernel empties a program
            // array when user space closes the array, and the next process reads the counters.
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

    /// Returns the counters of all ports and chains.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the capacity of the plane.
    pub fn capacity(&self) -> Capacity {
        self.shared.capacity
    }

    /// Creates the port of an interface. Attaches no program yet.
    pub fn add_port(&self, config: PortConfig) -> Result<Port, Error> {
        Port::new(&self.shared, config)
    }

    /// Creates a policer for a chain, with a full bucket. Returns `None` for a profile without
    /// limits.
    pub fn policer(&self, profile: &Profile) -> Result<Option<Arc<Policer>>, Error> {
        let policer = || Policer::new(&self.shared, profile).map(Arc::new);
        (!profile.is_unlimited()).then(policer).transpose()
    }

    /// Creates a shaper with a full bucket, for an interface that delays each packet until the
    /// packet's departure time. The longest delay is `limit_ns`.
    pub fn shaper(&self, profile: &Profile, limit_ns: u64) -> Result<Arc<Policer>, Error> {
        Policer::new_shaper(&self.shared, profile, limit_ns).map(Arc::new)
    }

    /// Returns the counters of a shaper.
    pub fn shaper_counters(&self, shaper: &Policer) -> Result<crate::ShaperCounters, Error> {
        shaper.shaper_counters(&self.shared)
    }

    /// Returns the map of policers.
    pub(crate) fn policers(&self) -> BorrowedFd<'_> {
        self.shared.policers.as_fd()
    }

    /// Creates a re-entry door at the receiving end of an internal link. Attaches no program yet.
    pub fn add_reentry(&self, ifindex: u32) -> Result<Reentry, Error> {
        Reentry::new(&self.shared, ifindex)
    }

    /// Creates the programs of a delay line's internal link, with these ends (name and index).
    /// Attaches no program yet.
    pub fn add_delay_link(
        &self,
        near: (&str, u32),
        far: (&str, u32),
    ) -> Result<Arc<DelayLink>, Error> {
        DelayLink::new(&self.shared, near, far).map(Arc::new)
    }

    /// Creates a relay of the chain `spi` over the entry link with the near end `near`. The relay
    /// gets no packet before [`Port::redirect_to_relay`].
    pub fn add_relay(&self, spi: u32, near: u32) -> Result<Relay, Error> {
        Relay::new(&self.shared, spi, near)
    }

    /// Transmits at the interface `port` what comes back at the near end of its entry link.
    pub fn add_reply_path(&self, near: (&str, u32), port: u32) -> Result<ReplyPath, Error> {
        ReplyPath::attach(&self.shared, near, port)
    }

    /// Creates the program that takes frames of other nodes at an interface (name and index).
    /// Attaches no program yet.
    pub fn add_wire_door(&self, interface: (&str, u32)) -> Result<WireDoor, Error> {
        WireDoor::new(&self.shared, interface)
    }

    /// Creates the exit of a part to the next node. Attaches no program yet.
    pub fn add_wire_exit(&self, config: &WireExitConfig<'_>) -> Result<WireExit, Error> {
        WireExit::new(&self.shared, config)
    }

    /// Creates the program at the far end of an exit link (name and index) that sends each flow
    /// into one of other exit links. `targets` has the name of each target, which decides its
    /// flows, and the index of the near end of its link. Attaches no program yet.
    pub fn add_wire_split(
        &self,
        far: (&str, u32),
        targets: &[(&str, u32)],
    ) -> Result<WireSplit, Error> {
        WireSplit::new(&self.shared, far, targets)
    }

    /// Creates the time to live of a part with a neighbour before it.
    pub fn add_part_ttl(&self) -> Result<Arc<PartTtl>, Error> {
        PartTtl::new(&self.shared).map(Arc::new)
    }

    /// Creates a block, which drops no packets before [`Port::block`].
    pub fn add_block(&self) -> Result<Block, Error> {
        Block::new(&self.shared)
    }

    /// Loads the kernel functions of a chain. The functions get no packet before [`Port::insert`].
    pub fn load_chain(&self, config: &ChainConfig) -> Result<LoadedChain, Error> {
        LoadedChain::load(&self.shared, config)
    }

    /// Loads a chain of functions in their own namespaces, and the programs of each function's
    /// link. The functions get no packet before both ends of all links are attached and the chain
    /// has its matches.
    pub fn load_distributed(
        &self,
        config: &DistributedConfig,
    ) -> Result<(LoadedChain, Vec<FunctionLink>), Error> {
        sff::load(&self.shared, config)
    }

    /// Prepares the redirect from `old` to `new`, the next generation, at the other hook. The XDP
    /// door passes the packets of a chain at tcx, so packets may be between the two hooks of a
    /// port. These packets continue in `old` until [`drop_old_entry`](Self::drop_old_entry). Call
    /// this method before [`Port::insert`].
    pub fn keep_old_entry(&self, new: &LoadedChain, old: &LoadedChain) -> Result<(), Error> {
        new.keep_old_entry(&self.shared, old)
    }

    /// Reverts [`keep_old_entry`](Self::keep_old_entry). Call this method when no packet of the old
    /// generation is left.
    pub fn drop_old_entry(&self, new: &LoadedChain) -> Result<(), Error> {
        new.drop_old_entry(&self.shared)
    }

    /// Waits until every packet has left the programs that run now. Afterwards no packet uses an
    /// entry that was removed before the call. Takes about 10 ms.
    pub fn wait_for_packets(&self) -> Result<(), Error> {
        sys::wait_for_grace_period().map_err(Error::GracePeriod)
    }

    /// Removes the pins of a former plane in `dir`. Detaches that plane's front doors, frees the
    /// maps, then removes the directory. Does nothing if `dir` does not exist.
    pub fn remove_pins(dir: &Path) -> Result<(), Error> {
        pins::remove_all(dir)
    }
}
