//! Packets in frames, and the metadata before them.

use myelin_functions::Packet;
use myelin_packet::Meta;
use myelin_packet::meta::META_LEN;

use super::{Frame, FrameMemory};
use crate::port::Buffer;

/// Size of a cache line, bytes.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

impl FrameMemory {
    /// Prefetches the metadata and the whole packet, because another core has just written them.
    /// The worker reads the metadata and headers first, and the kernel then copies the packet.
    #[inline]
    pub(crate) fn prefetch(&self, address: u64, len: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let packet = self.start.as_ptr().wrapping_add(address as usize);
            let metadata = packet.wrapping_sub(META_LEN);
            // SAFETY: a prefetch changes no register and no memory, and never faults.
            let fetch = |at: *mut u8| unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
            fetch(metadata);
            (0..len.min(self.frame_size()) as usize)
                .step_by(CACHE_LINE)
                .for_each(|at| fetch(packet.wrapping_add(at)));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (address, len);
    }

    /// Makes a packet of a buffer, for the functions. [`Self::recover_buffer`] reverses this.
    /// Returns the buffer if the metadata does not match the packet.
    #[inline]
    pub(crate) fn make_packet(&self, buffer: Buffer, meta: Meta) -> Result<Packet<'_>, Buffer> {
        let Buffer { frame, offset, len } = buffer;
        let number = frame.0;
        let packet = Packet::new(
            self.consume_frame(frame),
            offset as usize,
            len as usize,
            meta,
            number,
        );
        packet.ok_or(Buffer {
            frame: Frame(number),
            offset,
            len,
        })
    }

    /// Returns the buffer of a packet from [`Self::make_packet`]. Do not use the packet afterwards.
    ///
    /// # Panics
    /// A function has replaced the packet with another one.
    #[inline]
    pub(crate) fn recover_buffer(&self, packet: &Packet<'_>) -> Buffer {
        let frame = Frame(packet.token());
        let (offset, len) = (packet.start(), packet.len());
        let at = (frame.0 as usize) << self.shift;
        let start = self.start.as_ptr().wrapping_add(at + offset).cast_const();
        assert!(
            packet.bytes().as_ptr() == start,
            "a function has replaced a packet with another one"
        );
        Buffer {
            frame,
            offset: offset as u32,
            len: len as u32,
        }
    }

    /// Reads the metadata before a packet; `None` without enough headroom.
    #[inline]
    pub(crate) fn meta(&self, buffer: &mut Buffer) -> Option<Meta> {
        let end = buffer.offset as usize;
        let bytes = self.bytes_mut(&mut buffer.frame);
        bytes.get(..end)?.last_chunk().map(Meta::from_bytes)
    }

    /// Writes the metadata before a packet; `false` without enough headroom.
    #[inline]
    pub(crate) fn set_meta(&self, buffer: &mut Buffer, meta: &Meta) -> bool {
        let end = buffer.offset as usize;
        let bytes = self.bytes_mut(&mut buffer.frame);
        let room = bytes.get_mut(..end).and_then(<[u8]>::last_chunk_mut);
        room.map(|room| *room = meta.to_bytes()).is_some()
    }
}
