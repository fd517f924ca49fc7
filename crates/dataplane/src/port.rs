//! What the forwarder asks of a port, whatever stands behind it: AF_XDP (a socket), a test's memory, DPDK.

use std::os::fd::RawFd;

use crate::umem::{Frame, FrameMemory};

/// A packet in a frame that the worker holds.
#[derive(Debug)]
pub struct Buffer {
    /// The frame.
    pub frame: Frame,
    /// Where the packet begins in it, bytes.
    pub offset: u32,
    /// Length of the packet, bytes.
    pub len: u32,
}

/// A source and sink of packets in frames.
///
/// A port borrows frames ([`FrameMemory::lend`]) for two purposes, to receive into and to transmit from, and gives every one of them
/// back ([`FrameMemory::take_back`]), as a received [`Buffer`] or through [`Port::reclaim`]. The forwarder is compiled for one type of port, so nothing here
/// is a dynamic call.
pub trait Port {
    /// How many packets, at most `limit`, have arrived and may be taken.
    fn arrived(&mut self, limit: u32) -> u32;

    /// The next packet that has arrived. `None` for a descriptor that names no frame of this port; these are counted in [`Port::invalid`].
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer>;

    /// Gives the slots of the packets taken back to whoever receives. Before anything is flushed, so that a packet never is in two rings.
    fn release(&mut self);

    /// Puts a packet into the transmit ring; gives it back when the ring is full.
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer>;

    /// Makes what was transmitted leave, waking whoever sends it if that is necessary; returns the system calls it took.
    fn flush(&mut self, memory: &FrameMemory) -> u64;

    /// Whether packets stay in the transmit ring that another [`Port::flush`] may move.
    fn is_backlogged(&self) -> bool;

    /// Puts the frames of transmitted packets into the pool.
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool);

    /// Lends frames of the pool to receive into; returns whether the port has all it wants.
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool;

    /// Packets that have arrived and were not taken yet.
    fn waiting(&self) -> u32;

    /// What becomes readable when a packet arrives; `None` for a port that does not receive.
    fn readable_fd(&self) -> Option<RawFd>;

    /// Announces that the worker is about to sleep on [`Port::readable_fd`]. Returns whether it may: not when something has arrived that will
    /// not make it readable.
    fn arm(&mut self) -> bool {
        true
    }

    /// The worker is awake again.
    fn disarm(&mut self) {}

    /// Runs the device's receive poll in this thread, where busy polling is on.
    fn busy_poll(&mut self) {}

    /// Descriptors that named no frame of this port, so far.
    fn invalid(&self) -> u64 {
        0
    }
}

/// The frames that are in no ring and carry no packet. Last in, first out: the frame used last is the one in the cache.
#[derive(Debug, Default)]
pub struct FramePool {
    free: Vec<Frame>,
}

impl FramePool {
    /// Frames that stay in the pool when receive rings are refilled, so that functions can emit packets.
    pub const RESERVE: usize = 64;

    /// These frames, with room for so many.
    pub fn new(frames: impl Iterator<Item = Frame>, capacity: usize) -> Self {
        let mut free = Vec::with_capacity(capacity);
        free.extend(frames);
        Self { free }
    }

    /// A free frame, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// A free frame for receiving, if there is one beyond the reserve.
    #[inline]
    pub fn take_for_receive(&mut self) -> Option<Frame> {
        if self.free.len() > Self::RESERVE {
            self.free.pop()
        } else {
            None
        }
    }

    /// Puts a frame back.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        debug_assert!(
            self.free.len() < self.free.capacity(),
            "more frames than there are"
        );
        self.free.push(frame);
    }

    /// Free frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umem::Umem;

    #[test]
    fn receiving_leaves_frames_for_functions_that_emit() {
        let umem = Umem::create(FramePool::RESERVE as u32 + 3, 2048).unwrap();
        let memory = FrameMemory::map(&umem).unwrap();
        let mut pool = FramePool::new(memory.held_frames(), umem.frames() as usize);
        let lent: Vec<Frame> = std::iter::from_fn(|| pool.take_for_receive()).collect();
        assert_eq!((lent.len(), pool.len()), (3, FramePool::RESERVE));
        assert!(pool.take().is_some(), "a function gets one");
        for frame in lent {
            pool.give(frame);
        }
        assert_eq!(pool.len(), FramePool::RESERVE + 2);
        assert!(!pool.is_empty());
    }
}
