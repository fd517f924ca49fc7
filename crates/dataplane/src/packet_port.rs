//! A port over a packet socket with virtio-net headers. Packets stay super-packets: the kernel
//! segments them only where an interface behind the chain cannot.
//!
//! The kernel copies each packet between its own buffer and a frame. So a frame is free again as
//! soon as the system call returns, and the port knows which packets the interface refused.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use myelin_packet::meta::META_LEN;
use myelin_packet::offload::{KERNEL_HEADER_LEN, OFFLOAD_LEN};
use myelin_packet::parse::ETHERNET_LEN;

use crate::clock::monotonic_ns;
use crate::door::ChainRedirect;
use crate::driver::DrivenPort;
use crate::front_door::{DoorDecision, FrontDoor};
use crate::packet_io::{Arrival, PACKET_AT, ReceiveSlots, SLOTS};
use crate::port::{Buffer, FramePool, Port};
use crate::stats::DoorCounters;
use crate::umem::{Borrower, Frame, FrameMemory};

/// EtherType of the service tags that carry the stamp over an entry link (`relay.h`).
const RELAY_TYPE: u16 = 0x88a8;
const TAG_LEN: usize = 4;
/// Length of both MAC addresses, bytes.
const ADDRESSES: usize = 12;

/// A port over a packet socket, with the front door behind an entry link.
#[derive(Debug)]
pub struct PacketPort {
    /// Non-blocking. A vectored write sends one packet.
    socket: File,
    /// Sends the packets instead of `socket`: replies, if packets arrive over a link.
    sender: Option<File>,
    memory: &'static FrameMemory,
    borrower: Borrower,
    /// `None` for a port that only transmits.
    receive: Option<ReceiveSlots>,
    door: FrontDoor,
    /// The time of the last system call that received packets.
    now_ns: u64,
    /// Addresses of the frames of packets that were sent.
    sent: Vec<u64>,
    /// Frames of packets that the front door dropped.
    dropped: Vec<u64>,
    /// Packets that are longer than a frame, do not fit their header, or did not cross the link.
    invalid: u64,
}

impl PacketPort {
    /// Makes a port over a socket, and a second socket if another one sends. `receives` tells
    /// whether the first socket receives packets.
    pub(crate) fn new(
        (socket, sender): (OwnedFd, Option<OwnedFd>),
        receives: bool,
        borrower: Borrower,
        memory: &'static FrameMemory,
    ) -> Self {
        Self {
            socket: File::from(socket),
            sender: sender.map(File::from),
            memory,
            borrower,
            receive: receives.then(|| ReceiveSlots::new(borrower)),
            door: FrontDoor::new(),
            now_ns: 0,
            sent: Vec::with_capacity(memory.frames() as usize),
            dropped: Vec::with_capacity(SLOTS),
            invalid: 0,
        }
    }

    /// Decides on an arrived packet. Writes the metadata and the offload of a packet that a chain
    /// takes, and returns the packet's offset and length.
    #[inline]
    fn admit(&mut self, bytes: &mut [u8], len: usize, tag: (u16, u16)) -> Option<(usize, usize)> {
        let header: [u8; KERNEL_HEADER_LEN] = *bytes.first_chunk()?;
        let Some((offset, len, stamp)) = remove_relay_tags(bytes, len, tag) else {
            self.invalid += 1;
            return None;
        };
        let packet = bytes.get(offset..offset + len)?;
        let stamp_ns = restore_stamp(self.now_ns, stamp);
        let (decision, offload) =
            self.door
                .decide_offloaded(packet, stamp_ns, (header, TAG_LEN as u16));
        match decision {
            DoorDecision::Taken(meta) => {
                let (headroom, _) = bytes.split_at_mut_checked(offset)?;
                *headroom.last_chunk_mut::<META_LEN>()? = meta.to_bytes();
                *headroom.first_chunk_mut::<OFFLOAD_LEN>()? = offload.to_bytes();
                Some((offset, len))
            }
            DoorDecision::Policed | DoorDecision::FragmentDropped => None,
            DoorDecision::Unmatched => {
                self.invalid += 1;
                None
            }
        }
    }

    fn keep_dropped(&mut self, memory: &FrameMemory, frame: Frame) {
        self.dropped.push(memory.lend(frame, 0, self.borrower));
    }
}

/// Removes the two tags that carry the stamp. The stack has removed `tag`, the outer one, from the
/// frame. Returns the new offset and length of the packet, and the low 32 bits of the stamp.
#[inline]
fn remove_relay_tags(
    bytes: &mut [u8],
    len: usize,
    (kind, high): (u16, u16),
) -> Option<(usize, usize, u32)> {
    let packet = bytes.get_mut(PACKET_AT..PACKET_AT + len)?;
    let inner: &[u8; TAG_LEN] = packet.get(ADDRESSES..)?.first_chunk()?;
    let [type_high, type_low, low_high, low_low] = *inner;
    let is_relayed = kind == RELAY_TYPE && u16::from_be_bytes([type_high, type_low]) == RELAY_TYPE;
    if !is_relayed || len < ETHERNET_LEN + TAG_LEN {
        return None;
    }
    packet.copy_within(..ADDRESSES, TAG_LEN);
    let stamp = u32::from(high) << 16 | u32::from(u16::from_be_bytes([low_high, low_low]));
    Some((PACKET_AT + TAG_LEN, len - TAG_LEN, stamp))
}

/// Restores a stamp from its low 32 bits. An entry link holds a packet for less than 4 s.
fn restore_stamp(now_ns: u64, stamp: u32) -> u64 {
    now_ns.saturating_sub((now_ns as u32).wrapping_sub(stamp).into())
}

impl Port for PacketPort {
    #[inline]
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
        let Some(receive) = &mut self.receive else {
            return 0;
        };
        if receive.count_arrived() == 0 {
            // The kernel consumes a packet that it cannot describe by a header (EINVAL).
            if let Err(error) = receive.receive(self.socket.as_fd(), limit as usize)
                && error.raw_os_error() == Some(libc::EINVAL)
            {
                self.invalid += 1;
            }
            if receive.count_arrived() > 0 {
                self.now_ns = monotonic_ns();
            }
        }
        limit.min(receive.count_arrived() as u32)
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let Arrival {
            mut frame,
            len,
            tag,
        } = self.receive.as_mut()?.take(memory)?;
        let (Some(len), Some(tag)) = (len, tag) else {
            self.invalid += 1;
            self.keep_dropped(memory, frame);
            return None;
        };
        let Some((offset, len)) = self.admit(memory.bytes_mut(&mut frame), len, tag) else {
            self.keep_dropped(memory, frame);
            return None;
        };
        Some(Buffer {
            frame,
            offset: offset as u32,
            len: len as u32,
        })
    }

    #[inline]
    fn release(&mut self) {}

    /// Sends the packet. Returns a packet that the interface refuses.
    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, mut buffer: Buffer) -> Result<(), Buffer> {
        let (start, len) = (buffer.offset as usize, buffer.len as usize);
        let bytes = memory.bytes_mut(&mut buffer.frame);
        let (Some(header), Some(packet)) = (
            bytes.get(..KERNEL_HEADER_LEN),
            bytes.get(start..start + len),
        ) else {
            return Err(buffer);
        };
        let parts = [IoSlice::new(header), IoSlice::new(packet)];
        // A packet is sent completely or not at all.
        let socket = self.sender.as_mut().unwrap_or(&mut self.socket);
        if socket.write_vectored(&parts).is_err() {
            return Err(buffer);
        }
        let address = memory.lend(buffer.frame, 0, self.borrower);
        self.sent.push(address);
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _memory: &FrameMemory) -> u64 {
        0
    }

    fn can_make_room(&self) -> bool {
        false
    }

    fn is_backlogged(&self) -> bool {
        false
    }

    #[inline]
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        for address in self.sent.drain(..).chain(self.dropped.drain(..)) {
            if let Some((frame, _)) = memory.take_back(address, self.borrower) {
                pool.give(frame);
            }
        }
    }

    #[inline]
    fn refill(&mut self, _memory: &FrameMemory, pool: &mut FramePool) -> bool {
        let Some(receive) = &mut self.receive else {
            return true;
        };
        while receive.has_room() {
            let Some(frame) = pool.take_for_receive() else {
                return false;
            };
            if let Err(frame) = receive.lend(self.memory, frame) {
                pool.give(frame);
                return false;
            }
        }
        true
    }

    fn count_received(&self) -> u32 {
        self.receive
            .as_ref()
            .map_or(0, |receive| receive.count_arrived() as u32)
    }

    fn readable_fd(&self) -> Option<RawFd> {
        self.receive.as_ref().map(|_| self.socket.as_raw_fd())
    }

    fn count_invalid(&self) -> u64 {
        self.invalid
    }

    fn count_dropped_fragments(&self) -> u64 {
        self.door.dropped_fragments()
    }
}

impl DrivenPort for PacketPort {
    fn close(self) {}

    fn redirect(&mut self, chain: &ChainRedirect, counters: DoorCounters) -> Result<(), String> {
        let redirected = self.door.redirect(chain, counters);
        redirected.map_err(|error| error.to_string())
    }

    fn stop_redirect(&mut self, spi: u32) {
        self.door.stop_redirect(spi);
    }
}

const _: () = assert!(PACKET_AT + TAG_LEN >= OFFLOAD_LEN + META_LEN);

#[cfg(test)]
mod tests;
