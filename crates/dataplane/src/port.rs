//! The interface between the forwarder and a port: an AF_XDP socket, memory in a test, DPDK.

use std::os::fd::RawFd;

use crate::umem::{Frame, FrameMemory};

/// A packet in a frame that the worker holds.
#[derive(Debug)]
pub struct Buffer {
    /// The frame.
    pub frame: Frame,
    /// Offset of the packet in the frame, bytes.
    pub offset: u32,
    /// Length of the packet, bytes.
    pub len: u32,
}

/// A source and sink of packets in frames.
///
/// A port borrows frames ([`FrameMemory::lend`]) to receive into and to transmit from. It returns
/// every frame ([`FrameMemory::take_back`]), as a received [`Buffer`] or through [`Port::reclaim`].
/// The forwarder is compiled for one type of port, so no call here is dynamic.
pub trait Port {
    /// Looks for packets. Returns how many the caller may take, at most `limit`.
    fn poll_arrivals(&mut self, limit: u32) -> u32;

    /// Takes the next arrived packet. Returns `None` for a descriptor that names no frame of this
    /// port; [`Port::count_invalid`] counts such descriptors.
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer>;

    /// Frees the ring slots of the taken packets. Call this method before a flush, so that a packet
    /// is never in two rings.
    fn release(&mut self);

    /// Puts a packet into the transmit ring. Returns the packet if the ring is full.
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer>;

    /// Like [`Port::transmit`], with the packet's stamp, for a port that passes it on.
    #[inline]
    fn transmit_stamped(
        &mut self,
        memory: &FrameMemory,
        buffer: Buffer,
        _stamp_ns: u64,
    ) -> Result<(), Buffer> {
        self.transmit(memory, buffer)
    }

    /// Starts the transmission, and wakes the sender if necessary. Returns the number of system
    /// calls.
    fn flush(&mut self, memory: &FrameMemory) -> u64;

    /// Returns whether a flush may make room for a packet that [`Port::transmit`] returned.
    fn can_make_room(&self) -> bool {
        true
    }

    /// Returns whether packets remain in the transmit ring that another [`Port::flush`] may send.
    fn is_backlogged(&self) -> bool;

    /// Puts the frames of transmitted packets into the pool.
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool);

    /// Lends frames of the pool to the port for receiving. Returns whether the port has enough.
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool;

    /// Returns the number of arrived packets that the caller has not taken.
    fn count_received(&self) -> u32;

    /// Returns the descriptor that becomes readable when a packet arrives; `None` for a port that
    /// does not receive.
    fn readable_fd(&self) -> Option<RawFd>;

    /// Announces that the worker is about to sleep on [`Port::readable_fd`]. Returns whether the
    /// worker may sleep. It must not sleep if a packet has already arrived.
    fn arm(&mut self) -> bool {
        true
    }

    /// Announces that the worker is awake.
    fn disarm(&mut self) {}

    /// Polls the device's receive queue in this thread, if busy polling is enabled.
    fn busy_poll(&mut self) {}

    /// Returns the number of descriptors that named no frame of this port.
    fn count_invalid(&self) -> u64 {
        0
    }

    /// Returns the number of fragments that the port's front door dropped.
    fn count_dropped_fragments(&self) -> u64 {
        0
    }
}

/// Frames that are in no ring and carry no packet. Last in, first out, because the last used frame
/// is still in the cache.
#[derive(Debug, Default)]
pub struct FramePool {
    free: Vec<Frame>,
}

impl FramePool {
    /// Number of frames that a refill leaves in the pool for packets that functions emit.
    pub const RESERVE: usize = 64;

    /// Makes a pool of `frames` with room for `capacity`.
    pub fn new(frames: impl Iterator<Item = Frame>, capacity: usize) -> Self {
        let mut free = Vec::with_capacity(capacity);
        free.extend(frames);
        Self { free }
    }

    /// Takes a free frame.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Takes a free frame for receiving, if the pool exceeds the reserve.
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
            "the pool got more frames than exist"
        );
        self.free.push(frame);
    }

    /// Returns the number of free frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Returns whether no frame is free.
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
        assert!(pool.take().is_some(), "a function gets a frame");
        for frame in lent {
            pool.give(frame);
        }
        assert_eq!(pool.len(), FramePool::RESERVE + 2);
        assert!(!pool.is_empty());
    }
}
