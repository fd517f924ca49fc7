//! The exit of a part to the next node.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapHandle, MapType};
use myelin_packet::wire::{LONGEST_HEADER, Tunnel, WireHeader, header_len};

use super::PartTtl;
use crate::attach::{AttachTarget, Attachment, XdpMode};
use crate::counters::{COUNTERS, CounterLine, Counting};
use crate::map::{create, put};
use crate::numbers::NumberRange;
use crate::object::WIRE_OUT;
use crate::resources::PlaneResources;
use crate::{Error, Hook, lock};

/// Counter lines of an exit: sent, too long, unresolved.
const OUT_LINES: u32 = 3;

/// Bytes of `struct wire_header`: a word that says whether the headers are valid, and the headers.
/// Then a word that says whether the packet gets another destination, and that destination.
const HEADER_ENTRY: usize = size_of::<u32>() + LONGEST_HEADER + size_of::<u32>() + 8;

/// `struct wire_out`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct WireOutInstance {
    counting: Counting,
    line: u32,
    ifindex: u32,
    header: u32,
    longest: u32,
    ttl: u32,
    kernel: u32,
}

/// The packets of an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireExitCounters {
    /// Packets that left with their headers.
    pub sent: CounterLine,
    /// Packets that are, with their headers, too long for the interface.
    pub too_long: CounterLine,
    /// Packets for a neighbour whose Ethernet address is unknown.
    pub unresolved: CounterLine,
}

impl WireExitCounters {
    /// Adds the packets of another exit.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |one: CounterLine, other: CounterLine| CounterLine {
            packets: one.packets + other.packets,
            bytes: one.bytes + other.bytes,
            ..CounterLine::default()
        };
        Self {
            sent: sum(self.sent, other.sent),
            too_long: sum(self.too_long, other.too_long),
            unresolved: sum(self.unresolved, other.unresolved),
        }
    }

    /// Returns the number of all packets, sent and dropped.
    pub fn total(&self) -> u64 {
        let lines = [self.sent, self.too_long, self.unresolved];
        lines.iter().map(|line| line.packets).sum()
    }
}

/// The exit of a part to the next node.
#[derive(Clone, Debug)]
pub struct WireExitConfig<'a> {
    /// The far end of the exit link: name and index.
    pub far: (&'a str, u32),
    /// Index and MTU of the interface that leads to the neighbour.
    pub interface: (u32, u32),
    /// The tunnel to the neighbour; `None` on the same Ethernet.
    pub tunnel: Option<Tunnel>,
    /// Where the part's time to live is; `None` in the first part.
    pub ttl: Option<&'a Arc<PartTtl>>,
}

/// The exit of a part: puts the headers in front of each packet, and transmits it.
///
/// The drop detaches the programs. If the plane is pinned, they stay until [`WireExit::detach`].
#[derive(Debug)]
pub struct WireExit {
    attachments: Mutex<Vec<Attachment>>,
    /// The programs at XDP and at tc.
    programs: [OwnedFd; 2],
    headers: MapHandle,
    lines: NumberRange,
    far: AttachTarget,
    _ttl: Option<Arc<PartTtl>>,
    shared: Arc<PlaneResources>,
}

impl WireExit {
    pub(crate) fn new(
        shared: &Arc<PlaneResources>,
        config: &WireExitConfig<'_>,
    ) -> Result<Self, Error> {
        let key = size_of::<u32>();
        let headers = create("headers", MapType::Array, key, HEADER_ENTRY, 1, 0)?;
        let lines = shared.counters.allocate(OUT_LINES)?;
        let (ifindex, mtu) = config.interface;
        let instance = WireOutInstance {
            counting: shared.counters.counting(),
            line: lines.start(),
            ifindex,
            header: header_len(config.tunnel.as_ref()) as u32,
            longest: mtu + libc::ETH_HLEN as u32,
            ttl: config.ttl.map_or(0, |ttl| ttl.0.start()),
            kernel: shared.kernel,
        };
        let maps = [
            (COUNTERS, shared.counters.as_fd()),
            ("headers", headers.as_fd()),
            ("ttls", shared.ttls.cells.as_fd()),
        ];
        let load = |hook| WIRE_OUT.load(hook, bytemuck::bytes_of(&instance), &maps);
        let programs = [load(Hook::Xdp)?, load(Hook::Tcx)?];
        let (interface, ifindex) = config.far;
        Ok(Self {
            attachments: Mutex::default(),
            programs,
            headers,
            lines,
            far: AttachTarget {
                interface: interface.to_owned(),
                ifindex,
            },
            _ttl: config.ttl.cloned(),
            shared: Arc::clone(shared),
        })
    }

    /// Attaches both programs. Does nothing if they are attached.
    pub fn attach(&self) -> Result<(), Error> {
        let mut attachments = lock(&self.attachments);
        if !attachments.is_empty() {
            return Ok(());
        }
        let pin_dir = self.shared.pin_dir.as_deref();
        let [xdp, tc] = self.programs.each_ref().map(AsFd::as_fd);
        attachments.push(Attachment::attach_tc(tc, &self.far, pin_dir)?);
        let pin = self.far.pin_path(pin_dir, "xdp");
        attachments.push(Attachment::attach_xdp(
            xdp,
            &self.far,
            XdpMode::Native,
            pin,
        )?);
        Ok(())
    }

    /// Detaches the programs, pinned or not.
    pub fn detach(&self) -> Result<(), Error> {
        let attachments = std::mem::take(&mut *lock(&self.attachments));
        let results = attachments.into_iter().map(Attachment::detach);
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// Sets the headers of all packets. With `None`, the neighbour's address is unknown, and the
    /// exit drops packets.
    pub fn set_header(&self, header: Option<&WireHeader>) -> Result<(), Error> {
        let mut entry = [0; HEADER_ENTRY];
        if let Some(header) = header {
            let (is_resolved, rest) = entry.split_at_mut(size_of::<u32>());
            is_resolved.copy_from_slice(&1_u32.to_ne_bytes());
            let (bytes, rest) = rest.split_at_mut(LONGEST_HEADER);
            bytes.copy_from_slice(&header.bytes().0);
            if let Some(destination) = header.destination {
                rest[..4].copy_from_slice(&1_u32.to_ne_bytes());
                rest[4..10].copy_from_slice(&destination.0);
            }
        }
        let headers = ("headers", "set the headers of a part's frames in");
        put(&self.headers, headers, &[0; 4], &entry)
    }

    /// Returns the counters.
    pub fn counters(&self) -> WireExitCounters {
        let read = |line| self.shared.counters.read(self.lines.start() + line);
        WireExitCounters {
            sent: read(0),
            too_long: read(1),
            unresolved: read(2),
        }
    }

    /// Returns the program that puts the headers in front, for test runs.
    #[doc(hidden)]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.programs[0].as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_same_layout;

    #[test]
    fn structures_match_their_c_layout() {
        assert_same_layout!(
            WIRE_OUT,
            "wire_out",
            WireOutInstance {
                counting,
                line,
                ifindex,
                header,
                longest,
                ttl,
                kernel
            }
        );
        let (size, members) = crate::tests::layout(&WIRE_OUT, "wire_header");
        assert_eq!((size, members["bytes"]), (HEADER_ENTRY, 4));
        let place = 4 + LONGEST_HEADER;
        assert_eq!(members["has_destination"], place);
        assert_eq!(members["destination"], place + 4);
    }
}
