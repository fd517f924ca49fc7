//! The kernel's part of an agent: makes ports, chains and what they share.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::MapType;
use myelin_packet::traffic::Profile;

use crate::blocks::Blocks;
use crate::chain::{ChainConfig, ChainEntry, LoadedChain};
use crate::classifier::Tables;
use crate::counters::Counters;
use crate::map::create;
use crate::object::{CLOSED, POLICER};
use crate::policer::Policer;
use crate::port::{Port, PortConfig};
use crate::reentry::{PathKey, Reentry};
use crate::sff::{DistributedConfig, FunctionLink};
use crate::shared::{Capacity, Shared, devices};
use crate::sockets::Sockets;
use crate::sojourn::Sojourn;
use crate::state::States;
use crate::{Error, Hook, pins, sff, sys};

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
            no_sockets: Sockets::new(1)?,
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
    /// they would then find a chain of the other hook. They go on to `old`, until [`drop_old_entry`](Self::drop_old_entry). To be
    /// called before [`Port::insert`].
    pub fn keep_old_entry(&self, new: &LoadedChain, old: &LoadedChain) -> Result<(), Error> {
        new.keep_old_entry(&self.shared, old)
    }

    /// The end of [`keep_old_entry`](Self::keep_old_entry): no packet of the generation before is left.
    pub fn drop_old_entry(&self, new: &LoadedChain) -> Result<(), Error> {
        new.drop_old_entry(&self.shared)
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
