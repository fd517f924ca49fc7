//! The ends of the wire between two nodes: where frames of other nodes arrive, and ([`exit`]) where
//! a part's packets leave to the next node, or ([`split`]) to one of several. `wire_in.bpf.c`,
//! `wire_out.bpf.c`, `split.bpf.c` and `door.bpf.c` have the way of a packet, `myelin_packet::wire`
//! the formats.

mod exit;
mod split;

pub use exit::{WireExit, WireExitConfig, WireExitCounters};
pub use split::WireSplit;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use myelin_packet::MacAddr;
use myelin_packet::wire::{FIRST_TTL, Tunnel};

use crate::attach::{AttachTarget, Attachment};
use crate::counters::{COUNTERS, CounterLine, Counting};
use crate::map::{create, put};
use crate::numbers::{NumberAllocator, NumberRange};
use crate::object::WIRE_IN;
use crate::resources::PlaneResources;
use crate::{Error, Hook, lock};

/// Counter lines of an interface: malformed, unknown, foreign, expired.
const IN_LINES: u32 = 4;
/// Counter lines of a part: frames, frames with a stamp of this kernel.
const PART_LINES: u32 = 2;

/// The key in an interface's map of parts that says that users are behind the interface. No part
/// has it, because paths begin above 0.
const USER_PORT: [u8; 4] = [0; 4];

/// `struct wire_in`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct WireInInstance {
    counting: Counting,
    line: u32,
    kernel: u32,
}

/// `struct part`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct PartEntry {
    near: u32,
    ttl: u32,
    family: u32,
    vni: u32,
    remote: [u8; 16],
    local: [u8; 16],
    mac: [u8; 6],
    padding: u16,
    line: u32,
}

/// The node that sends a part's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// On the same Ethernet.
    Ethernet(MacAddr),
    /// Behind a tunnel.
    Vxlan(Tunnel),
}

/// The frames of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartFrames {
    /// Service path identifier of the whole chain.
    pub path: u32,
    /// Service index of the part's first function.
    pub index: u8,
    /// The node that sends the frames.
    pub neighbour: Neighbour,
    /// Index of the near end of the internal link to the front door.
    pub near: u32,
}

/// Frames with NSH that an interface dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireDrops {
    /// With headers that no node of Myelin writes.
    pub malformed: CounterLine,
    /// Of a path or with an index that no part has.
    pub unknown: CounterLine,
    /// Not from the part's neighbour.
    pub foreign: CounterLine,
    /// At the end of their time to live.
    pub expired: CounterLine,
}

impl WireDrops {
    /// Returns the number of all dropped frames.
    pub fn total(&self) -> u64 {
        let lines = [self.malformed, self.unknown, self.foreign, self.expired];
        lines.iter().map(|line| line.packets).sum()
    }
}

/// The times to live of the parts.
#[derive(Debug)]
pub(crate) struct Ttls {
    cells: MapHandle,
    numbers: Arc<Mutex<NumberAllocator>>,
}

impl Ttls {
    /// Creates the cells of `parts` parts. The frames of a first part have the value of cell 0.
    pub(crate) fn new(parts: u32) -> Result<Self, Error> {
        let number = size_of::<u32>();
        let ttls = Self {
            cells: create("ttls", MapType::Array, number, number, parts + 1, 0)?,
            numbers: NumberAllocator::new("parts of chains", 1, parts + 1),
        };
        ttls.set(0)?;
        Ok(ttls)
    }

    fn set(&self, cell: u32) -> Result<(), Error> {
        let action = ("ttls", "set the time to live of a part in");
        put(
            &self.cells,
            action,
            &cell.to_ne_bytes(),
            &FIRST_TTL.to_ne_bytes(),
        )
    }
}

/// The time to live with which a part's frames leave: one less than they arrived with.
#[derive(Debug)]
pub struct PartTtl(NumberRange);

impl PartTtl {
    pub(crate) fn new(shared: &PlaneResources) -> Result<Self, Error> {
        let number = NumberRange::allocate(&shared.ttls.numbers, 1)?;
        shared.ttls.set(number.start())?;
        Ok(Self(number))
    }
}

/// An interface at which frames of other nodes may arrive.
///
/// The drop detaches the program. If the plane is pinned, the program stays until
/// [`WireDoor::detach`].
#[derive(Debug)]
pub struct WireDoor {
    attachment: Mutex<Option<Attachment>>,
    program: OwnedFd,
    parts: Arc<MapHandle>,
    /// Number of [`UserPort`]s.
    user_ports: Arc<Mutex<u32>>,
    lines: NumberRange,
    target: AttachTarget,
    shared: Arc<PlaneResources>,
}

impl WireDoor {
    pub(crate) fn new(
        shared: &Arc<PlaneResources>,
        (interface, ifindex): (&str, u32),
    ) -> Result<Self, Error> {
        let (key, entry) = (size_of::<u32>(), size_of::<PartEntry>());
        let entries = shared.capacity.chains;
        let flags = libbpf_sys::BPF_F_NO_PREALLOC;
        let parts = create("parts", MapType::Hash, key, entry, entries, flags)?;
        let lines = shared.counters.allocate(IN_LINES)?;
        let instance = WireInInstance {
            counting: shared.counters.counting(),
            line: lines.start(),
            kernel: shared.kernel,
        };
        let maps = [
            (COUNTERS, shared.counters.as_fd()),
            ("parts", parts.as_fd()),
            ("ttls", shared.ttls.cells.as_fd()),
        ];
        Ok(Self {
            attachment: Mutex::default(),
            program: WIRE_IN.load(Hook::Tcx, bytemuck::bytes_of(&instance), &maps)?,
            parts: Arc::new(parts),
            user_ports: Arc::default(),
            lines,
            target: AttachTarget {
                interface: interface.to_owned(),
                ifindex,
            },
            shared: Arc::clone(shared),
        })
    }

    /// Attaches the program behind the existing ones. Does nothing if it is attached.
    pub fn attach(&self) -> Result<(), Error> {
        let mut attachment = lock(&self.attachment);
        if attachment.is_none() {
            let pin_dir = self.shared.pin_dir.as_deref();
            let attached = Attachment::attach_wire(self.program.as_fd(), &self.target, pin_dir)?;
            *attachment = Some(attached);
        }
        Ok(())
    }

    /// Detaches the program, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let attachment = lock(&self.attachment).take();
        attachment.map_or(Ok(()), Attachment::detach)
    }

    /// Declares that users are behind the interface, until the drop of the returned value. Then
    /// frames with NSH to other stations are dropped too; else a bridge may forward them to other
    /// nodes.
    pub fn add_user_port(&self) -> Result<UserPort, Error> {
        let mut count = lock(&self.user_ports);
        if *count == 0 {
            let entry = PartEntry::zeroed();
            let action = ("parts", "record users in");
            put(&self.parts, action, &USER_PORT, bytemuck::bytes_of(&entry))?;
        }
        *count += 1;
        Ok(UserPort {
            parts: Arc::clone(&self.parts),
            count: Arc::clone(&self.user_ports),
        })
    }

    /// Takes the frames of a part from now on, until the drop of the returned value.
    ///
    /// # Errors
    /// Another part takes frames of this path and index at this interface.
    pub fn insert(&self, frames: &PartFrames, ttl: &Arc<PartTtl>) -> Result<PartArrival, Error> {
        let lines = self.shared.counters.allocate(PART_LINES)?;
        let entry = PartEntry {
            line: lines.start(),
            ..PartEntry::new(frames, ttl.0.start())
        };
        let key = (frames.path << 8 | u32::from(frames.index)).to_ne_bytes();
        let inserted = self
            .parts
            .update(&key, bytemuck::bytes_of(&entry), MapFlags::NO_EXIST);
        inserted.map_err(|cause| Error::map("parts", "add a part of a chain to", &cause))?;
        Ok(PartArrival {
            key,
            parts: Arc::clone(&self.parts),
            lines,
            _ttl: Arc::clone(ttl),
            shared: Arc::clone(&self.shared),
        })
    }

    /// Returns the counters of dropped frames.
    pub fn drops(&self) -> WireDrops {
        let read = |line| self.shared.counters.read(self.lines.start() + line);
        WireDrops {
            malformed: read(0),
            unknown: read(1),
            foreign: read(2),
            expired: read(3),
        }
    }

    /// Returns the program, for test runs.
    #[doc(hidden)]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

impl PartEntry {
    fn new(frames: &PartFrames, ttl: u32) -> Self {
        let entry = Self {
            near: frames.near,
            ttl,
            ..Self::zeroed()
        };
        let Tunnel { local, remote, vni } = match frames.neighbour {
            Neighbour::Ethernet(mac) => {
                return Self {
                    mac: mac.0,
                    ..entry
                };
            }
            Neighbour::Vxlan(tunnel) => tunnel,
        };
        Self {
            family: if local.is_ipv4() { 4 } else { 6 },
            vni: (vni << 8).to_be(),
            remote: octets(remote),
            local: octets(local),
            ..entry
        }
    }
}

/// Returns an address in network order; IPv4 in the first four bytes.
fn octets(address: IpAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => octets = address.octets(),
    }
    octets
}

/// Users behind an interface.
#[derive(Debug)]
pub struct UserPort {
    parts: Arc<MapHandle>,
    count: Arc<Mutex<u32>>,
}

impl Drop for UserPort {
    fn drop(&mut self) {
        let mut count = lock(&self.count);
        *count -= 1;
        if *count == 0 {
            // A remaining entry only drops more.
            let _ = self.parts.delete(&USER_PORT);
        }
    }
}

/// A part's frames, which arrive at an interface. The drop ends the arrival.
#[derive(Debug)]
pub struct PartArrival {
    key: [u8; 4],
    parts: Arc<MapHandle>,
    lines: NumberRange,
    _ttl: Arc<PartTtl>,
    shared: Arc<PlaneResources>,
}

impl PartArrival {
    /// Returns the counters of the part's frames.
    pub fn frames(&self) -> CounterLine {
        self.shared.counters.read(self.lines.start())
    }

    /// Returns the number of frames whose stamp is of this agent's clock. The sojourn of their
    /// packets begins where they entered the whole chain.
    pub fn stamped(&self) -> u64 {
        self.shared.counters.read(self.lines.start() + 1).packets
    }

    /// Whether all packets carry a stamp of this agent's clock.
    pub fn is_stamped(&self) -> bool {
        // In this order: a frame that arrives between both reads has a stamp more, never one less.
        let frames = self.frames().packets;
        self.stamped() >= frames
    }
}

impl Drop for PartArrival {
    fn drop(&mut self) {
        // A remaining entry leads to an internal link that no longer exists.
        let _ = self.parts.delete(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_same_layout;

    #[test]
    fn structures_match_their_c_layout() {
        assert_same_layout!(
            WIRE_IN,
            "wire_in",
            WireInInstance {
                counting,
                line,
                kernel
            }
        );
        assert_same_layout!(
            WIRE_IN,
            "part",
            PartEntry {
                near,
                ttl,
                family,
                vni,
                remote,
                local,
                mac,
                padding,
                line
            }
        );
    }
}
