//! The re-entry door on the receiving end of an internal link.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::MapCore;

use crate::attach::{AttachTarget, Attachment, XdpMode};
use crate::chain::LoadedChain;
use crate::counters::{CounterLine, Counting};
use crate::hop::{Hop, HopExit};
use crate::map::put;
use crate::numbers::NumberRange;
use crate::object::{LEAVE, REENTRY};
use crate::resources::PlaneResources;
use crate::sockets::Sockets;
use crate::{Error, Hook, lock, sys};

/// `struct path_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PathKey {
    spi: u32,
    generation: u16,
    position: u8,
    padding: u8,
}

/// The read-only data of the re-entry door.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ReentryInstance {
    counting: Counting,
    line: u32,
    padding: u32,
}

/// Counter lines of a re-entry door: foreign, unparsed, unknown.
const LINES: u32 = 3;

/// Frames that a re-entry door dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReentryCounters {
    /// Frames without Myelin's encapsulation, for example those that the kernel sends on a new
    /// link.
    pub foreign: CounterLine,
    /// Frames whose inner frame cannot be parsed.
    pub unparsed: CounterLine,
    /// Frames on a path without a kernel function at their position.
    pub unknown: CounterLine,
}

/// The end of an internal link where packets come back from user space. The worker sends them at
/// the other end behind Ethernet and NSH (see [`myelin_packet::nsh`]).
///
/// The drop detaches the program. If the plane is pinned, the program stays attached until
/// [`Reentry::detach`].
#[derive(Debug)]
pub struct Reentry {
    /// The door at XDP, and at tc the program that transmits packets of [`by_stack`] exits.
    ///
    /// [`by_stack`]: crate::Exit::Egress
    attachments: Mutex<Vec<Attachment>>,
    program: Arc<OwnedFd>,
    leave: Arc<OwnedFd>,
    /// The slots of each path. This map keeps the slots allocated.
    paths: Mutex<HashMap<PathKey, Arc<NumberRange>>>,
    sockets: Sockets,
    lines: NumberRange,
    target: AttachTarget,
    shared: Arc<PlaneResources>,
}

impl Reentry {
    pub(crate) fn new(shared: &Arc<PlaneResources>, ifindex: u32) -> Result<Self, Error> {
        let interface = sys::interface_name(ifindex).map_err(|cause| Error::Attach {
            interface: format!("interface {ifindex}"),
            point: "XDP",
            cause,
            remedy: "the internal link was removed; start the chain again",
        })?;
        let lines = shared.counters.allocate(LINES)?;
        Ok(Self {
            attachments: Mutex::default(),
            program: Arc::new(load(shared, lines.start())?),
            leave: Arc::new(load_leave(shared, 0)?),
            paths: Mutex::default(),
            sockets: shared.create_sockets()?,
            lines,
            target: AttachTarget { interface, ifindex },
            shared: Arc::clone(shared),
        })
    }

    /// Attaches the door. Does nothing if the door is already attached.
    pub fn attach_xdp(&self, mode: XdpMode) -> Result<(), Error> {
        let mut attachments = lock(&self.attachments);
        if attachments.is_empty() {
            let pin_dir = self.shared.pin_dir.as_deref();
            let leave = Attachment::attach_tc(self.leave.as_fd(), &self.target, pin_dir)?;
            attachments.push(leave);
            let pin = self.target.pin_path(pin_dir, "xdp");
            let program = self.program.as_fd();
            attachments.push(Attachment::attach_xdp(program, &self.target, mode, pin)?);
        }
        Ok(())
    }

    /// Detaches the door, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let attachments = std::mem::take(&mut *lock(&self.attachments));
        let results = attachments.into_iter().map(Attachment::detach);
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// Returns the door's program, for test runs.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Returns the AF_XDP sockets of this end of the link.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Adds a path: packets of `chain` that come back from user space at `position` continue at the
    /// kernel segment there.
    pub fn insert(&self, position: u8, chain: &LoadedChain) -> Result<(), Error> {
        let segment = chain.segment(position).ok_or_else(|| {
            let problem = format!(
                "no kernel segment starts at position {position}: a packet cannot re-enter there"
            );
            Error::chain(chain.spi(), problem)
        })?;
        let key = PathKey::new(chain, position);
        let slot = segment.slots().start().to_ne_bytes();
        let paths = ("paths", "add a path to");
        put(&self.shared.paths, paths, bytemuck::bytes_of(&key), &slot)?;
        lock(&self.paths).insert(key, Arc::clone(segment.slots()));
        Ok(())
    }

    /// Removes a path. Returns false if the path does not exist.
    pub fn remove(&self, position: u8, chain: &LoadedChain) -> Result<bool, Error> {
        let key = PathKey::new(chain, position);
        if lock(&self.paths).remove(&key).is_none() {
            return Ok(false);
        }
        self.shared
            .paths
            .delete(bytemuck::bytes_of(&key))
            .map_err(|cause| Error::map("paths", "remove a path from", &cause))?;
        Ok(true)
    }

    /// Returns the counters of dropped frames.
    pub fn counters(&self) -> ReentryCounters {
        let read = |line: u32| self.shared.counters.read(self.lines.start() + line);
        ReentryCounters {
            foreign: read(0),
            unparsed: read(1),
            unknown: read(2),
        }
    }
}

impl Drop for Reentry {
    fn drop(&mut self) {
        for key in lock(&self.paths).keys() {
            // A remaining path is harmless: its slot is empty after the chain is removed.
            let _ = self.shared.paths.delete(bytemuck::bytes_of(key));
        }
    }
}

impl PathKey {
    fn new(chain: &LoadedChain, position: u8) -> Self {
        Self {
            spi: chain.spi(),
            generation: chain.generation(),
            position,
            padding: 0,
        }
    }
}

/// Loads the program that transmits packets at an interface. With `ifindex` 0 it transmits packets
/// which an XDP program hands to the stack, at the interface that this program names.
pub(crate) fn load_leave(shared: &PlaneResources, ifindex: u32) -> Result<OwnedFd, Error> {
    let exit = HopExit::Out {
        ifindex,
        peer: false,
        line: 0,
    };
    let hop = Hop::new(shared.counters.counting(), 0, exit, Hook::Tcx.drop());
    LEAVE.load(Hook::Tcx, bytemuck::bytes_of(&hop), &shared.maps(Hook::Tcx))
}

fn load(shared: &PlaneResources, line: u32) -> Result<OwnedFd, Error> {
    let instance = ReentryInstance {
        counting: shared.counters.counting(),
        line,
        padding: 0,
    };
    let mut maps = vec![("paths", shared.paths.as_fd())];
    maps.extend(shared.maps(Hook::Xdp));
    REENTRY.load(Hook::Xdp, bytemuck::bytes_of(&instance), &maps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_same_layout;

    #[test]
    fn paths_and_instances_match_their_c_layout() {
        assert_same_layout!(
            REENTRY,
            "path_key",
            PathKey {
                spi,
                generation,
                position,
                padding
            }
        );
        assert_same_layout!(
            REENTRY,
            "reentry",
            ReentryInstance {
                counting,
                line,
                padding
            }
        );
    }
}
