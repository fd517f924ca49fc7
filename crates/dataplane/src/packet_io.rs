//! Receives packets from a packet socket into frames, several packets in one system call
//! (`recvmmsg`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use myelin_packet::offload::KERNEL_HEADER_LEN;

use crate::umem::{Borrower, Frame, FrameMemory};

/// Number of packets that one system call receives at most, and of frames that a port borrows.
pub(crate) const SLOTS: usize = 8;
/// Offset of a received packet in its frame. The IP header behind an Ethernet header is aligned
/// after the removal of a tag.
pub(crate) const PACKET_AT: usize = 250;
/// Longest packet, bytes: 64 KiB behind an Ethernet header and two tags.
pub(crate) const LONGEST_PACKET: usize = (64 << 10) + 22;

/// `struct cmsghdr` and `struct tpacket_auxdata`, rounded up to whole words.
const CONTROL_WORDS: usize = 5;
const CONTROL_LEN: usize = CONTROL_WORDS * size_of::<u64>();
/// Offset of the data behind `struct cmsghdr`.
const DATA: usize = size_of::<libc::cmsghdr>();
/// `PACKET_AUXDATA` (linux/if_packet.h).
const PACKET_AUXDATA: i32 = 8;
/// `TP_STATUS_VLAN_VALID` and `TP_STATUS_VLAN_TPID_VALID`.
const TAG_IS_VALID: u32 = 1 << 4 | 1 << 6;

/// A received packet.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The frame. The packet begins at [`PACKET_AT`], the kernel's header at 0.
    pub(crate) frame: Frame,
    /// Length of the packet without the kernel's header, bytes. `None` for a packet that was too
    /// long for the frame, or shorter than the header.
    pub(crate) len: Option<usize>,
    /// The VLAN tag that the stack removed from the packet: type and tag control information.
    pub(crate) tag: Option<(u16, u16)>,
}

/// Frames that a port borrows to receive into.
pub(crate) struct ReceiveSlots {
    messages: [libc::mmsghdr; SLOTS],
    /// For each slot: the parts of the frame for the kernel's header and for the packet.
    parts: Box<[[libc::iovec; 2]; SLOTS]>,
    controls: Box<[[u64; CONTROL_WORDS]; SLOTS]>,
    /// The address of each slot's frame; `None` for an empty slot.
    frames: [Option<u64>; SLOTS],
    borrower: Borrower,
    /// The slots of arrived packets that the port has not taken.
    arrived: std::ops::Range<usize>,
}

// SAFETY: the pointers lead to the boxes of this structure and to frames of a `FrameMemory`, which
// belongs to the process and not to a thread.
unsafe impl Send for ReceiveSlots {}

impl ReceiveSlots {
    /// Makes empty slots. `memory` lends its frames to `borrower`.
    pub(crate) fn new(borrower: Borrower) -> Self {
        // SAFETY: the structures are plain data, for which zero is a valid value.
        let mut messages: [libc::mmsghdr; SLOTS] = unsafe { std::mem::zeroed() };
        let nowhere = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let mut parts = Box::new([[nowhere; 2]; SLOTS]);
        let mut controls = Box::new([[0; CONTROL_WORDS]; SLOTS]);
        for ((message, parts), control) in messages.iter_mut().zip(&mut *parts).zip(&mut *controls)
        {
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = parts.len();
            message.msg_hdr.msg_control = control.as_mut_ptr().cast();
        }
        Self {
            messages,
            parts,
            controls,
            frames: [None; SLOTS],
            borrower,
            arrived: 0..0,
        }
    }

    /// Returns whether a slot has no frame. Slots of arrived packets are not empty.
    pub(crate) fn has_room(&self) -> bool {
        self.frames.iter().any(Option::is_none)
    }

    /// Borrows a frame of `memory`. Returns the frame if all slots have one, or if it is too small.
    pub(crate) fn lend(
        &mut self,
        memory: &'static FrameMemory,
        mut frame: Frame,
    ) -> Result<(), Frame> {
        let Some(slot) = self.frames.iter().position(Option::is_none) else {
            return Err(frame);
        };
        let bytes = memory.bytes_mut(&mut frame);
        let Some((start, packet)) = bytes.split_at_mut_checked(PACKET_AT) else {
            return Err(frame);
        };
        if packet.len() < LONGEST_PACKET {
            return Err(frame);
        }
        self.parts[slot] = [
            libc::iovec {
                iov_base: start.as_mut_ptr().cast(),
                iov_len: KERNEL_HEADER_LEN,
            },
            libc::iovec {
                iov_base: packet.as_mut_ptr().cast(),
                iov_len: LONGEST_PACKET,
            },
        ];
        let address = memory.lend(frame, 0, self.borrower);
        self.frames[slot] = Some(address);
        Ok(())
    }

    /// Returns the number of arrived packets that the port has not taken.
    #[inline]
    pub(crate) fn count_arrived(&self) -> usize {
        self.arrived.len()
    }

    /// Receives up to `limit` packets without waiting, after the port has taken all earlier ones.
    #[inline]
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, limit: usize) -> io::Result<()> {
        if !self.arrived.is_empty() {
            return Ok(());
        }
        let filled = self.frames.iter().take_while(|frame| frame.is_some());
        let count = filled.take(limit).count();
        if count == 0 {
            return Ok(());
        }
        for message in &mut self.messages[..count] {
            // The kernel replaces the length by the length that it wrote.
            message.msg_hdr.msg_controllen = CONTROL_LEN;
        }
        // SAFETY: the first `count` messages lead to parts of frames that the memory has lent to
        // this port, and to the control buffers. All live as long as `self`, because the memory is
        // static, and no other code accesses a lent frame. The kernel writes only during the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        self.arrived = 0..(received as usize).min(count);
        Ok(())
    }

    /// Takes the next arrived packet. `memory` is that of [`Self::lend`].
    #[inline]
    pub(crate) fn take(&mut self, memory: &FrameMemory) -> Option<Arrival> {
        let slot = self.arrived.next()?;
        let (frame, _) = memory.take_back(self.frames[slot].take()?, self.borrower)?;
        let message = &self.messages[slot];
        let is_cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let len = (message.msg_len as usize).checked_sub(KERNEL_HEADER_LEN);
        let control_len = message.msg_hdr.msg_controllen.min(CONTROL_LEN);
        let control: &[u8] = bytemuck::cast_slice(&self.controls[slot]);
        Some(Arrival {
            frame,
            len: len.filter(|len| !is_cut && *len <= LONGEST_PACKET),
            tag: read_tag(&control[..control_len]),
        })
    }
}

impl std::fmt::Debug for ReceiveSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveSlots")
            .field("frames", &self.frames)
            .field("arrived", &self.arrived)
            .finish_non_exhaustive()
    }
}

/// Reads the removed VLAN tag from a control message with `struct tpacket_auxdata`.
fn read_tag(control: &[u8]) -> Option<(u16, u16)> {
    let word = |at| Some(u32::from_ne_bytes(*control.get(at..)?.first_chunk()?));
    let half = |at| Some(u16::from_ne_bytes(*control.get(at..)?.first_chunk()?));
    let (level, kind) = (word(DATA - 8)?, word(DATA - 4)?);
    if (level.cast_signed(), kind.cast_signed()) != (libc::SOL_PACKET, PACKET_AUXDATA) {
        return None;
    }
    // tp_status, tp_len, tp_snaplen; tp_mac, tp_net, tp_vlan_tci, tp_vlan_tpid.
    let is_valid = word(DATA)? & TAG_IS_VALID == TAG_IS_VALID;
    let (control_information, kind) = (half(DATA + 16)?, half(DATA + 18)?);
    is_valid.then_some((kind, control_information))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn control(status: u32, kind: i32) -> Vec<u8> {
        let words = [
            0,
            0,
            libc::SOL_PACKET.cast_unsigned(),
            kind.cast_unsigned(),
            status,
            0,
            0,
            0,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend([0x1234_u16, 0x88a8].map(u16::to_ne_bytes).concat());
        bytes
    }

    #[test]
    fn the_removed_tag_is_in_the_control_message() {
        let whole = control(TAG_IS_VALID | 1, PACKET_AUXDATA);
        assert_eq!(read_tag(&whole), Some((0x88a8, 0x1234)));
        assert_eq!(read_tag(&control(1 << 4, PACKET_AUXDATA)), None);
        assert_eq!(read_tag(&control(TAG_IS_VALID, 9)), None);
        for len in 0..whole.len() {
            assert_eq!(read_tag(&whole[..len]), None, "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_control_message_is_read_without_panic(bytes: Vec<u8>) {
            read_tag(&bytes);
        }
    }
}
