//! A port that receives the same packet again and again, as fast as the forwarder takes packets.
//! Measurements use this port to find the cost of chains without a device.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use myelin_packet::Meta;

use crate::port::{Buffer, FramePool, Port};
use crate::umem::{Borrower, FrameMemory, HEADROOM};

/// A port that receives one packet repeatedly. Every lent frame arrives at once with the packet.
/// Every transmitted packet leaves at once.
#[derive(Debug)]
pub struct ReplayPort {
    borrower: Borrower,
    packet: Vec<u8>,
    meta: Meta,
    /// For each frame number: whether the frame holds the packet.
    written: Vec<bool>,
    arrivals: VecDeque<u64>,
    sent: Vec<u64>,
}

impl ReplayPort {
    /// Makes a port on a memory of `frames` frames. `packet` must fit a frame.
    pub fn new(borrower: Borrower, frames: u32, meta: Meta, packet: Vec<u8>) -> Self {
        Self {
            borrower,
            packet,
            meta,
            written: vec![false; frames as usize],
            arrivals: VecDeque::with_capacity(frames as usize),
            sent: Vec::with_capacity(frames as usize),
        }
    }

    fn write(&mut self, memory: &FrameMemory, frame: &mut crate::umem::Frame) {
        let number = memory.frame_number(frame) as usize;
        let has_packet = std::mem::replace(&mut self.written[number], true);
        let start = HEADROOM as usize;
        let meta = self.meta.to_bytes();
        let bytes = memory.bytes_mut(frame);
        // Another process of a pipeline has changed the position.
        bytes[start - meta.len()..start].copy_from_slice(&meta);
        if !has_packet {
            bytes[start..][..self.packet.len()].copy_from_slice(&self.packet);
        }
    }
}

impl Port for ReplayPort {
    #[inline]
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
        limit.min(self.arrivals.len() as u32)
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let address = self.arrivals.pop_front()?;
        let (frame, offset) = memory.take_back(address, self.borrower)?;
        let len = self.packet.len() as u32;
        Some(Buffer { frame, offset, len })
    }

    #[inline]
    fn release(&mut self) {}

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        let address = memory.lend(buffer.frame, buffer.offset, self.borrower);
        self.sent.push(address);
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _memory: &FrameMemory) -> u64 {
        0
    }

    fn is_backlogged(&self) -> bool {
        false
    }

    #[inline]
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        for address in self.sent.drain(..) {
            if let Some((frame, _)) = memory.take_back(address, self.borrower) {
                pool.give(frame);
            }
        }
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        while let Some(mut frame) = pool.take_for_receive() {
            self.write(memory, &mut frame);
            self.arrivals
                .push_back(memory.lend(frame, HEADROOM, self.borrower));
        }
        true
    }

    fn count_received(&self) -> u32 {
        self.arrivals.len() as u32
    }

    fn readable_fd(&self) -> Option<RawFd> {
        None
    }
}
