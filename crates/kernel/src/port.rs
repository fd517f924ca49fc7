//! An interface with a front door.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use myelin_packet::{Match, Unparsed};

use crate::attach::{Attachment, Direction, Place, XdpMode};
use crate::blocks::Block;
use crate::chain::LoadedChain;
use crate::classifier::PortMatches;
use crate::counters::{CounterLine, Counting};
use crate::object::DOOR;
use crate::shared::Shared;
use crate::sockets::Sockets;
use crate::{Error, Hook, lock};

/// The interface that unmatched traffic goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opposite {
    /// Its index.
    pub ifindex: u32,
    /// It is a veth, and packets go straight to its far end, in another namespace.
    pub peer: bool,
}

/// What a port is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Name of the interface, for errors.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Where unmatched traffic goes; `None` is the host's stack.
    pub opposite: Option<Opposite>,
    /// It has one receive queue. A driver's hook then runs on one CPU at a time, and a policer there needs no lock.
    pub single_queue: bool,
}

/// Packets that came in at a port and no chain took. A packet is counted here only at the tc hook, which sees what the
/// XDP hook passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Parsed, and no match fitted; at a port where no chain enters, all frames.
    pub unmatched: CounterLine,
    /// Not parsed, in the order of [`Unparsed::ALL`].
    pub unparsed: [CounterLine; Unparsed::ALL.len()],
    /// Matched, but the driver gives XDP no room for metadata.
    pub lost: CounterLine,
}

impl PortCounters {
    /// Frames not parsed for this reason.
    pub fn unparsed(&self, reason: Unparsed) -> CounterLine {
        self.unparsed[usize::from(reason.code()) - 1]
    }
}

/// Lines of a port's block: unmatched, the reasons, lost.
const LINES: u32 = 2 + Unparsed::ALL.len() as u32;

/// The read-only data of a front door.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Door {
    counting: Counting,
    line: u32,
    port: u32,
    opposite: u32,
    opposite_is_peer: u32,
    alone: u32,
    likely: u32,
}

/// `NO_SLOT`.
const NO_SLOT: u32 = u32::MAX;

/// A front door's program and where it is attached.
#[derive(Debug, Default)]
struct Doors {
    programs: [Option<Arc<OwnedFd>>; 2],
    attachments: [Option<Attachment>; 2],
    /// The door at XDP stands behind the driver, where several CPUs may be at a time.
    generic: bool,
    /// The chain that each door jumps to directly.
    likely: [Option<Likely>; 2],
}

/// A chain that a door is made for.
#[derive(Debug, Clone, Copy)]
struct Likely {
    number: u32,
    slot: u32,
}

/// An interface with a front door: its matches, its AF_XDP sockets, and the programs that look at what comes in.
///
/// Dropping it detaches them, unless the plane is pinned: then they stay until [`Port::detach`] or
/// [`Plane::remove_pins`](crate::Plane::remove_pins).
#[derive(Debug)]
pub struct Port {
    doors: Mutex<Doors>,
    matches: Mutex<PortMatches>,
    sockets: Sockets,
    number: Block,
    lines: Block,
    config: PortConfig,
    shared: Arc<Shared>,
}

impl Port {
    pub(crate) fn new(shared: &Arc<Shared>, config: PortConfig) -> Result<Self, Error> {
        let number = Block::take(&shared.port_numbers, 1)?;
        let mut matches = PortMatches::new(&shared.tables, &config.name, number.start() as u16)?;
        matches.keep_on_drop(shared.pin_dir.is_some());
        Ok(Self {
            doors: Mutex::default(),
            matches: Mutex::new(matches),
            sockets: shared.sockets()?,
            number,
            lines: shared.counters.take(LINES)?,
            config,
            shared: Arc::clone(shared),
        })
    }

    /// What the port was made from.
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// Attaches the front door at tcx (clsact before Linux 6.6). It is what passes unmatched traffic on and counts it, so
    /// every port has it. Nothing happens when it is attached already.
    pub fn attach_tcx(&self) -> Result<(), Error> {
        self.attach(Hook::Tcx, Attachment::tc)
    }

    /// Attaches the front door at XDP, for chains of that hook. Nothing happens when it is attached already.
    pub fn attach_xdp(&self, mode: XdpMode) -> Result<(), Error> {
        if mode == XdpMode::Generic {
            let mut doors = lock(&self.doors);
            doors.generic = true;
            doors.programs[Hook::Xdp as usize] = None;
        }
        self.attach(Hook::Xdp, |program, place, pin_dir| {
            Attachment::xdp(program, place, mode, place.pin(pin_dir, "xdp"))
        })
    }

    /// Attaches the tc front door as a clsact filter even where there is tcx.
    #[doc(hidden)]
    pub fn attach_clsact(&self) -> Result<(), Error> {
        self.attach(Hook::Tcx, |program, place, pin_dir| {
            Attachment::clsact(program, place, Direction::In, pin_dir)
        })
    }

    fn attach(
        &self,
        hook: Hook,
        attach: impl Fn(BorrowedFd<'_>, &Place, Option<&std::path::Path>) -> Result<Attachment, Error>,
    ) -> Result<(), Error> {
        let program = self.program(hook)?;
        let mut doors = lock(&self.doors);
        let slot = &mut doors.attachments[hook as usize];
        if slot.is_none() {
            let place = Place {
                interface: self.config.name.clone(),
                ifindex: self.config.ifindex,
            };
            *slot = Some(attach(
                program.as_fd(),
                &place,
                self.shared.pin_dir.as_deref(),
            )?);
        }
        Ok(())
    }

    /// Detaches from the XDP hook alone, when the last of its chains is gone.
    pub fn detach_xdp(&self) -> Result<(), Error> {
        lock(&self.doors).attachments[Hook::Xdp as usize]
            .take()
            .map_or(Ok(()), Attachment::detach)
    }

    /// Detaches both front doors, pinned or not, and forgets all matches.
    pub fn detach(&self) -> Result<(), Error> {
        lock(&self.matches).clear();
        let [xdp, tc] = std::mem::take(&mut lock(&self.doors).attachments);
        let results = [xdp, tc].map(|attachment| attachment.map_or(Ok(()), Attachment::detach));
        results.into_iter().collect()
    }

    /// The front door's program for a hook, loaded when first asked for; for test runs.
    pub fn program(&self, hook: Hook) -> Result<Arc<OwnedFd>, Error> {
        let mut doors = lock(&self.doors);
        let (likely, alone) = (doors.likely[hook as usize], self.is_alone(&doors));
        let slot = &mut doors.programs[hook as usize];
        if let Some(program) = slot {
            return Ok(Arc::clone(program));
        }
        let program = Arc::new(self.load(hook, likely, alone)?);
        *slot = Some(Arc::clone(&program));
        Ok(program)
    }

    /// In a driver a queue is served by one CPU at a time (NAPI).
    fn is_alone(&self, doors: &Doors) -> bool {
        self.config.single_queue && !doors.generic
    }

    fn load(&self, hook: Hook, likely: Option<Likely>, alone: bool) -> Result<OwnedFd, Error> {
        let door = Door {
            counting: self.shared.counters.counting(),
            line: self.lines.start(),
            port: self.number.start(),
            opposite: self.config.opposite.map_or(0, |opposite| opposite.ifindex),
            opposite_is_peer: self
                .config
                .opposite
                .is_some_and(|opposite| opposite.peer)
                .into(),
            alone: (hook == Hook::Xdp && alone).into(),
            likely: likely.map_or(NO_SLOT, |likely| likely.slot),
        };
        let matches = lock(&self.matches);
        let mut maps = vec![
            ("sockets", self.sockets.0.as_fd()),
            ("masks", matches.map().as_fd()),
            ("chains", self.shared.chains(hook).as_fd()),
            ("policers", self.shared.policers.as_fd()),
        ];
        maps.extend(self.shared.tables.maps());
        maps.extend(self.shared.maps(hook));
        DOOR.load(hook, bytemuck::bytes_of(&door), &maps)
    }

    /// Makes the door of a chain's hook anew so that it jumps to this chain directly, unless it does so for another one that
    /// is still led to.
    pub fn set_fast_path(&self, chain: &LoadedChain) {
        let hook = chain.hook();
        let Some(slot) = chain.entry_slot() else {
            return;
        };
        let likely = Likely {
            number: chain.target().number.start(),
            slot,
        };
        let mut doors = lock(&self.doors);
        let held = doors.likely[hook as usize];
        if held.is_some_and(|held| lock(&self.matches).leads_to(held.number)) {
            return;
        }
        if doors.programs[hook as usize].is_some() {
            // The door that is there does the same, only slower: no error.
            let Ok(program) = self.load(hook, Some(likely), self.is_alone(&doors)) else {
                return;
            };
            if let Some(attachment) = &doors.attachments[hook as usize]
                && attachment.replace(program.as_fd()).is_err()
            {
                return;
            }
            doors.programs[hook as usize] = Some(Arc::new(program));
        }
        doors.likely[hook as usize] = Some(likely);
    }

    /// The AF_XDP sockets of this interface.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Leads the packets that `rule` takes, and no more specific match of this port, into `chain`. The same match with
    /// the same service path is led to this generation in one step: no packet sees neither. Another match that takes the same
    /// packets and is equally specific is an error.
    pub fn insert(&self, rule: &Match, chain: &LoadedChain) -> Result<(), Error> {
        self.lead(rule, chain)?;
        self.set_fast_path(chain);
        Ok(())
    }

    /// As [`insert`](Self::insert), but leaves the door as it is: to load it anew takes milliseconds, which the exchange of two
    /// generations need not wait for. [`set_fast_path`](Self::set_fast_path) does it afterwards.
    pub fn lead(&self, rule: &Match, chain: &LoadedChain) -> Result<(), Error> {
        lock(&self.matches).insert(rule, chain.target())
    }

    /// Takes a match out; false when it was not there.
    pub fn remove(&self, rule: &Match) -> Result<bool, Error> {
        lock(&self.matches).remove(rule)
    }

    /// What came in and no chain took.
    pub fn counters(&self) -> PortCounters {
        let read = |line: u32| self.shared.counters.read(self.lines.start() + line);
        PortCounters {
            unmatched: read(0),
            unparsed: Unparsed::ALL.map(|reason| read(reason.code().into())),
            lost: read(LINES - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_twins;

    #[test]
    fn instances_lie_as_in_c() {
        assert_twins!(
            DOOR,
            "door",
            Door {
                counting,
                line,
                port,
                opposite,
                opposite_is_peer,
                alone,
                likely
            }
        );
    }
}
