//! An interface with a front door.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use myelin_packet::{Match, Unparsed};

use crate::attach::{AttachTarget, Attachment, TrafficDirection, XdpMode};
use crate::block::Block;
use crate::chain::LoadedChain;
use crate::classifier::PortMatches;
use crate::counters::{CounterLine, Counting};
use crate::numbers::NumberRange;
use crate::object::DOOR;
use crate::relay::Relay;
use crate::resources::PlaneResources;
use crate::sockets::Sockets;
use crate::{Error, Hook, lock};

/// The interface that gets unmatched traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opposite {
    /// Index of the interface.
    pub ifindex: u32,
    /// The interface is a veth whose far end is in another namespace. Packets go directly to that
    /// end.
    pub peer: bool,
}

/// The internal link whose far end a port is. Same numbers as `enum link` of `door.bpf.c`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum BehindLink {
    /// None: packets arrive from outside.
    #[default]
    No = 0,
    /// The entry link of another port.
    Entry = 1,
    /// The link from a [`WireDoor`](crate::WireDoor): frames of another node. The XDP door removes
    /// their headers, also for chains at tcx.
    Wire = 2,
}

/// The configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Name of the interface, for errors.
    pub name: String,
    /// Index of the interface.
    pub ifindex: u32,
    /// The interface for unmatched traffic; `None` for the host's stack.
    pub opposite: Option<Opposite>,
    /// Whether the interface has one receive queue. Then at most one CPU at a time runs native XDP,
    /// and a policer needs no lock.
    pub single_queue: bool,
    /// The internal link whose far end the interface is. Its packets carry the stamp of the port
    /// where they arrived.
    pub behind_link: BehindLink,
    /// Whether the tc hook drops all packets, because a packet socket takes them before.
    pub discards: bool,
}

/// Packets of a port that belong to no chain. Only the tc hook counts these packets, because it
/// gets all packets that the XDP hook passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Parsed packets without a match. At a port without chains: all frames.
    pub unmatched: CounterLine,
    /// Unparsed frames, in the order of [`Unparsed::ALL`].
    pub unparsed: [CounterLine; Unparsed::ALL.len()],
    /// Matched packets for which the driver gives XDP no room for metadata.
    pub lost: CounterLine,
    /// Dropped fragments: of datagrams that a chain could take, without their first fragment, or of
    /// a match that drops fragments. Both hooks count here.
    pub fragments: CounterLine,
}

impl PortCounters {
    /// Returns the counters of the frames that the front door did not parse for `reason`.
    pub fn unparsed(&self, reason: Unparsed) -> CounterLine {
        self.unparsed[usize::from(reason.code()) - 1]
    }
}

/// Number of counter lines of a port: unmatched, one line for each [`Unparsed`], lost, fragments.
const LINES: u32 = 3 + Unparsed::ALL.len() as u32;

/// The read-only data of a front door.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct DoorInstance {
    counting: Counting,
    line: u32,
    port: u32,
    opposite: u32,
    opposite_is_peer: u32,
    single_cpu: u32,
    fast_path: u32,
    behind_link: u32,
    discards: u32,
    kernel: u32,
    padding: u32,
}

/// `NO_SLOT` of `door.bpf.c`.
const NO_SLOT: u32 = u32::MAX;

/// A front door's programs and attachments.
#[derive(Debug, Default)]
struct LoadedDoors {
    programs: [Option<Arc<OwnedFd>>; 2],
    attachments: [Option<Attachment>; 2],
    /// Whether the XDP door runs after the driver, on several CPUs at a time.
    generic: bool,
    /// The chain that each door jumps to directly.
    fast_paths: [Option<FastPath>; 2],
}

/// A chain that a front door jumps to directly.
#[derive(Debug, Clone, Copy)]
struct FastPath {
    number: u32,
    slot: u32,
}

/// An interface with a front door: its matches, AF_XDP sockets and programs.
///
/// The drop detaches the programs. If the plane is pinned, the programs stay until [`Port::detach`]
/// or [`Plane::remove_pins`](crate::Plane::remove_pins).
#[derive(Debug)]
pub struct Port {
    doors: Mutex<LoadedDoors>,
    matches: Mutex<PortMatches>,
    sockets: Sockets,
    number: NumberRange,
    lines: NumberRange,
    config: PortConfig,
    shared: Arc<PlaneResources>,
}

impl Port {
    pub(crate) fn new(shared: &Arc<PlaneResources>, config: PortConfig) -> Result<Self, Error> {
        let number = NumberRange::allocate(&shared.port_numbers, 1)?;
        let mut matches = PortMatches::new(&shared.tables, &config.name, number.start() as u16)?;
        matches.set_keep_on_drop(shared.pin_dir.is_some());
        Ok(Self {
            doors: Mutex::default(),
            matches: Mutex::new(matches),
            sockets: shared.create_sockets()?,
            number,
            lines: shared.counters.allocate(LINES)?,
            config,
            shared: Arc::clone(shared),
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// Attaches the front door at tcx (clsact before Linux 6.6). Every port needs this door, which
    /// forwards and counts unmatched traffic. Does nothing if the door is already attached.
    pub fn attach_tcx(&self) -> Result<(), Error> {
        self.attach(Hook::Tcx, Attachment::attach_tc)
    }

    /// Attaches the front door at XDP, for chains of that hook. Does nothing if the door is already
    /// attached.
    pub fn attach_xdp(&self, mode: XdpMode) -> Result<(), Error> {
        if mode == XdpMode::Generic {
            let mut doors = lock(&self.doors);
            doors.generic = true;
            doors.programs[Hook::Xdp as usize] = None;
        }
        self.attach(Hook::Xdp, |program, target, pin_dir| {
            Attachment::attach_xdp(program, target, mode, target.pin_path(pin_dir, "xdp"))
        })
    }

    /// Attaches the tc front door as a clsact filter even if the kernel has tcx.
    #[doc(hidden)]
    pub fn attach_clsact(&self) -> Result<(), Error> {
        self.attach(Hook::Tcx, |program, target, pin_dir| {
            Attachment::attach_clsact(program, target, TrafficDirection::In, pin_dir)
        })
    }

    fn attach(
        &self,
        hook: Hook,
        attach: impl Fn(BorrowedFd<'_>, &AttachTarget, Option<&Path>) -> Result<Attachment, Error>,
    ) -> Result<(), Error> {
        let program = self.program(hook)?;
        let mut doors = lock(&self.doors);
        let slot = &mut doors.attachments[hook as usize];
        if slot.is_none() {
            let target = AttachTarget {
                interface: self.config.name.clone(),
                ifindex: self.config.ifindex,
            };
            *slot = Some(attach(
                program.as_fd(),
                &target,
                self.shared.pin_dir.as_deref(),
            )?);
        }
        Ok(())
    }

    /// Detaches only the XDP door, after the last chain of that hook is removed.
    pub fn detach_xdp(&self) -> Result<(), Error> {
        lock(&self.doors).attachments[Hook::Xdp as usize]
            .take()
            .map_or(Ok(()), Attachment::detach)
    }

    /// Detaches both front doors, pinned or not, and removes all matches.
    pub fn detach(&self) -> Result<(), Error> {
        lock(&self.matches).remove_all();
        let [xdp, tc] = std::mem::take(&mut lock(&self.doors).attachments);
        let results = [xdp, tc].map(|attachment| attachment.map_or(Ok(()), Attachment::detach));
        results.into_iter().collect()
    }

    /// Returns the front door's program for a hook. Loads the program if needed.
    pub fn program(&self, hook: Hook) -> Result<Arc<OwnedFd>, Error> {
        let mut doors = lock(&self.doors);
        let (fast_path, single_cpu) = (doors.fast_paths[hook as usize], self.is_single_cpu(&doors));
        let slot = &mut doors.programs[hook as usize];
        if let Some(program) = slot {
            return Ok(Arc::clone(program));
        }
        let program = Arc::new(self.load(hook, fast_path, single_cpu)?);
        *slot = Some(Arc::clone(&program));
        Ok(program)
    }

    /// Returns whether only one CPU at a time runs the XDP door. A driver processes a queue on one
    /// CPU (NAPI).
    fn is_single_cpu(&self, doors: &LoadedDoors) -> bool {
        self.config.single_queue && !doors.generic
    }

    fn load(
        &self,
        hook: Hook,
        fast_path: Option<FastPath>,
        single_cpu: bool,
    ) -> Result<OwnedFd, Error> {
        let instance = DoorInstance {
            counting: self.shared.counters.counting(),
            line: self.lines.start(),
            port: self.number.start(),
            opposite: self.config.opposite.map_or(0, |opposite| opposite.ifindex),
            opposite_is_peer: self
                .config
                .opposite
                .is_some_and(|opposite| opposite.peer)
                .into(),
            single_cpu: (hook == Hook::Xdp && single_cpu).into(),
            fast_path: fast_path.map_or(NO_SLOT, |path| path.slot),
            behind_link: self.config.behind_link as u32,
            discards: self.config.discards.into(),
            kernel: self.shared.kernel,
            padding: 0,
        };
        let matches = lock(&self.matches);
        let mut maps = vec![
            ("sockets", self.sockets.0.as_fd()),
            ("masks", matches.map().as_fd()),
            ("fragment_masks", matches.fragment_map().as_fd()),
            ("chains", self.shared.chains(hook).as_fd()),
            ("policers", self.shared.policers.as_fd()),
        ];
        maps.extend(self.shared.tables.maps());
        maps.extend(self.shared.maps(hook));
        DOOR.load(hook, bytemuck::bytes_of(&instance), &maps)
    }

    /// Reloads the front door of the chain's hook so that it jumps to this chain directly. Keeps a
    /// direct jump to another chain that still has a match.
    pub fn set_fast_path(&self, chain: &LoadedChain) {
        let hook = chain.hook();
        let Some(slot) = chain.entry_slot() else {
            return;
        };
        let fast_path = FastPath {
            number: chain.target().number.start(),
            slot,
        };
        let mut doors = lock(&self.doors);
        let present = doors.fast_paths[hook as usize];
        if present.is_some_and(|path| lock(&self.matches).has_match(path.number)) {
            return;
        }
        if doors.programs[hook as usize].is_some() {
            // A failure is no error, because the present door forwards the same packets, but
            // slower.
            let Ok(program) = self.load(hook, Some(fast_path), self.is_single_cpu(&doors)) else {
                return;
            };
            if let Some(attachment) = &doors.attachments[hook as usize]
                && attachment.replace(program.as_fd()).is_err()
            {
                return;
            }
            doors.programs[hook as usize] = Some(Arc::new(program));
        }
        doors.fast_paths[hook as usize] = Some(fast_path);
    }

    /// Returns the AF_XDP sockets of this interface.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Redirects the packets of `rule` to `chain`, except packets of a more specific match. If the
    /// service path already has this match, the redirect changes atomically: every packet reaches
    /// one of the two generations. Another match of the same packets with equal specificity is an
    /// error.
    pub fn insert(&self, rule: &Match, chain: &LoadedChain) -> Result<(), Error> {
        self.redirect(rule, chain)?;
        self.set_fast_path(chain);
        Ok(())
    }

    /// Does the same as [`insert`](Self::insert), but keeps the door's program. So a live change
    /// does not wait for a reload, which takes milliseconds. Call
    /// [`set_fast_path`](Self::set_fast_path) afterwards to reload the program.
    pub fn redirect(&self, rule: &Match, chain: &LoadedChain) -> Result<(), Error> {
        lock(&self.matches).insert(rule, chain.target())
    }

    /// Redirects the packets of `rule` over an entry link, like [`redirect`](Self::redirect).
    pub fn redirect_to_relay(&self, rule: &Match, relay: &Relay) -> Result<(), Error> {
        lock(&self.matches).insert(rule, relay.target())
    }

    /// Drops the packets of `rule` from now on, instead of redirecting them to the chain `spi`. A
    /// later [`redirect`](Self::redirect) replaces the block.
    pub fn block(&self, rule: &Match, block: &Block, spi: u32) -> Result<(), Error> {
        lock(&self.matches).replace(rule, block.target(), spi)
    }

    /// Removes the block of `rule`, unless a chain has replaced the block.
    pub fn unblock(&self, rule: &Match, block: &Block) -> Result<(), Error> {
        lock(&self.matches).remove_from(rule, block.target())
    }

    /// Removes a match. Returns false if the match does not exist.
    pub fn remove(&self, rule: &Match) -> Result<bool, Error> {
        lock(&self.matches).remove(rule)
    }

    /// Returns the counters of packets without a chain.
    pub fn counters(&self) -> PortCounters {
        let read = |line: u32| self.shared.counters.read(self.lines.start() + line);
        PortCounters {
            unmatched: read(0),
            unparsed: Unparsed::ALL.map(|reason| read(reason.code().into())),
            lost: read(LINES - 2),
            fragments: read(LINES - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_same_layout;

    #[test]
    fn instances_match_their_c_layout() {
        assert_same_layout!(
            DOOR,
            "door",
            DoorInstance {
                counting,
                line,
                port,
                opposite,
                opposite_is_peer,
                single_cpu,
                fast_path,
                behind_link,
                discards,
                kernel,
                padding
            }
        );
    }
}
