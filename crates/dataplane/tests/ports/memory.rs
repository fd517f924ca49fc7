//! A port without a device, for tests. The caller injects and collects packets.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use myelin_packet::Meta;

use crate::port::{Buffer, FramePool, Port};
use crate::umem::{Borrower, FrameMemory, HEADROOM};

/// A port in memory, with the rings of a socket.
#[derive(Debug)]
pub struct MemoryPort {
    borrower: Borrower,
    ring_size: usize,
    fill: VecDeque<u64>,
    arrivals: VecDeque<(u64, u32)>,
    transmit: VecDeque<(u64, u32)>,
    completion: VecDeque<u64>,
    sent: Vec<Vec<u8>>,
    link_up: bool,
    invalid: u64,
}

impl MemoryPort {
    /// Makes a port with its link up.
    pub fn new(borrower: Borrower, ring_size: usize) -> Self {
        Self {
            borrower,
            ring_size,
            fill: VecDeque::with_capacity(ring_size),
            arrivals: VecDeque::with_capacity(ring_size),
            transmit: VecDeque::with_capacity(ring_size),
            completion: VecDeque::with_capacity(ring_size),
            sent: Vec::new(),
            link_up: true,
            invalid: 0,
        }
    }

    /// Injects a packet. Writes the metadata in front of the packet, as the kernel does. Returns
    /// `false` if no frame is free or the packet is longer than a frame.
    pub fn inject(&mut self, memory: &FrameMemory, meta: &Meta, packet: &[u8]) -> bool {
        let end = HEADROOM as usize + packet.len();
        if end > memory.frame_size() as usize {
            return false;
        }
        let Some((mut frame, _)) = self
            .fill
            .pop_front()
            .and_then(|address| memory.take_back(address, self.borrower))
        else {
            return false;
        };
        let meta = meta.to_bytes();
        let bytes = memory.bytes_mut(&mut frame);
        bytes[HEADROOM as usize - meta.len()..HEADROOM as usize].copy_from_slice(&meta);
        bytes[HEADROOM as usize..end].copy_from_slice(packet);
        let address = memory.lend(frame, HEADROOM, self.borrower);
        self.arrivals.push_back((address, packet.len() as u32));
        true
    }

    /// Returns the packets that left since the last call, in order.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    /// Sets the link up or down. While it is down, transmitted packets stay in the ring.
    pub fn set_link(&mut self, up: bool) {
        self.link_up = up;
    }

    /// Returns the number of frames in this port.
    pub fn frames(&self) -> usize {
        self.fill.len() + self.arrivals.len() + self.transmit.len() + self.completion.len()
    }

    /// Completes the transmitted packets, and keeps their content for [`Self::take_sent`].
    fn send(&mut self, memory: &FrameMemory) {
        while self.link_up
            && let Some((address, len)) = self.transmit.pop_front()
        {
            let Some((mut frame, offset)) = memory.take_back(address, self.borrower) else {
                self.invalid += 1;
                continue;
            };
            let bytes = &memory.bytes_mut(&mut frame)[offset as usize..][..len as usize];
            self.sent.push(bytes.to_vec());
            let address = memory.lend(frame, offset, self.borrower);
            self.completion.push_back(address);
        }
    }
}

impl Port for MemoryPort {
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
        limit.min(self.arrivals.len() as u32)
    }

    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let (address, len) = self.arrivals.pop_front()?;
        let taken = memory.take_back(address, self.borrower);
        self.invalid += u64::from(taken.is_none());
        taken.map(|(frame, offset)| Buffer { frame, offset, len })
    }

    fn release(&mut self) {}

    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        if self.transmit.len() == self.ring_size {
            return Err(buffer);
        }
        let address = memory.lend(buffer.frame, buffer.offset, self.borrower);
        self.transmit.push_back((address, buffer.len));
        Ok(())
    }

    fn flush(&mut self, _memory: &FrameMemory) -> u64 {
        u64::from(!self.transmit.is_empty())
    }

    fn is_backlogged(&self) -> bool {
        false
    }

    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        self.send(memory);
        for address in self.completion.drain(..) {
            match memory.take_back(address, self.borrower) {
                Some((frame, _)) => pool.give(frame),
                None => self.invalid += 1,
            }
        }
    }

    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        while self.fill.len() + self.arrivals.len() < self.ring_size {
            let Some(frame) = pool.take_for_receive() else {
                return false;
            };
            self.fill.push_back(memory.lend(frame, 0, self.borrower));
        }
        true
    }

    fn count_received(&self) -> u32 {
        self.arrivals.len() as u32
    }

    fn readable_fd(&self) -> Option<RawFd> {
        None
    }

    fn count_invalid(&self) -> u64 {
        self.invalid
    }
}
