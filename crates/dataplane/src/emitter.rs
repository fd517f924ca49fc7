//! Puts the packets that functions emit into frames.

use myelin_functions::{Emitter, Packet};
use myelin_packet::offload::OFFLOAD_LEN;
use myelin_packet::{Meta, parse};

use crate::port::{Buffer, FramePool};
use crate::umem::{FrameMemory, HEADROOM};

/// Copies emitted packets into free frames.
pub(crate) struct FrameEmitter<'f, 'm> {
    pub(crate) memory: &'m FrameMemory,
    pub(crate) pool: &'f mut FramePool,
    pub(crate) emitted: &'f mut Vec<Packet<'m>>,
    /// Length of `emitted`. The loop checks this length after each function, and the vector's own
    /// length would cost one more read.
    pub(crate) emitted_count: usize,
    /// Replies to the senders of the chain's packets.
    pub(crate) replies: &'f mut Vec<Buffer>,
    /// Number of packets that got no frame.
    pub(crate) lost: u64,
}

impl Emitter for FrameEmitter<'_, '_> {
    fn emit(&mut self, origin: &Meta, frame: &[u8]) {
        if self.emit_packet(origin, frame).is_none() {
            self.lost += 1;
        }
    }

    fn reply(&mut self, _origin: &Meta, frame: &[u8]) {
        match self.copy_to_frame(frame) {
            Some(buffer) => self.replies.push(buffer),
            None => self.lost += 1,
        }
    }
}

impl FrameEmitter<'_, '_> {
    fn emit_packet(&mut self, origin: &Meta, packet: &[u8]) -> Option<()> {
        let headers = parse(packet).ok()?;
        let buffer = self.copy_to_frame(packet)?;
        let mut meta = *origin;
        meta.set_headers(&headers);
        match self.memory.make_packet(buffer, meta) {
            Ok(packet) => {
                self.emitted.push(packet);
                self.emitted_count += 1;
                Some(())
            }
            Err(buffer) => {
                self.pool.give(buffer.frame);
                None
            }
        }
    }

    /// Copies the packet into a free frame.
    fn copy_to_frame(&mut self, packet: &[u8]) -> Option<Buffer> {
        let end = HEADROOM as usize + packet.len();
        if end > self.memory.frame_size() as usize {
            return None;
        }
        let mut frame = self.pool.take()?;
        let bytes = self.memory.bytes_mut(&mut frame);
        // The frame may begin with the offload of an earlier packet.
        bytes[..OFFLOAD_LEN].fill(0);
        bytes[HEADROOM as usize..end].copy_from_slice(packet);
        Some(Buffer {
            frame,
            offset: HEADROOM,
            len: packet.len() as u32,
        })
    }
}
