//! A port that receives the same packet again and again: as fast as the forwarder takes packets, or
//! at even times with stamps. Measurements use this port to find cost and delay of chains without a
//! device.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use myelin_packet::Meta;
use serde::{Deserialize, Serialize};

use crate::clock::monotonic_ns;
use crate::port::{Buffer, FramePool, Port};
use crate::umem::{Borrower, FrameMemory, HEADROOM};

/// The packets of a [`ReplayPort`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// The packet.
    pub packet: Vec<u8>,
    /// Service path identifier and generation of the chain that it enters.
    pub chain: (u32, u16),
    /// Packets a second, with stamps, at even times; `None`: as many as the worker takes. Tasks
    /// that share a core see the port as always full, so a worker with turns needs `None`.
    pub rate_pps: Option<u64>,
}

/// Picoseconds of a nanosecond, because packets are parts of one apart.
const PS: u64 = 1000;

/// The times of packets that arrive at even times.
#[derive(Debug)]
struct Pace {
    gap_ps: u64,
    start_ns: u64,
    /// Packets that the forwarder has taken, or that found no frame.
    passed: u64,
}

impl Pace {
    fn new(rate_pps: u64) -> Self {
        Self {
            gap_ps: (1_000_000_000 * PS / rate_pps.max(1)).max(1),
            start_ns: monotonic_ns(),
            passed: 0,
        }
    }

    /// Packets that have arrived and wait. All but `room` of them are lost.
    fn waiting(&mut self, now_ns: u64, room: u64) -> u64 {
        let time_ns = now_ns.saturating_sub(self.start_ns);
        let arrived = time_ns.saturating_mul(PS) / self.gap_ps;
        let waiting = arrived.saturating_sub(self.passed).min(room);
        self.passed = self.passed.max(arrived - waiting);
        waiting
    }

    /// The time at which the next packet arrived, ns.
    fn take(&mut self) -> u64 {
        self.passed += 1;
        let time_ps = self.passed.saturating_mul(self.gap_ps);
        self.start_ns.saturating_add(time_ps / PS)
    }
}

/// A port that receives one packet repeatedly. Without a pace, every lent frame arrives at once
/// with the packet. Every transmitted packet leaves at once.
#[derive(Debug)]
pub struct ReplayPort {
    borrower: Borrower,
    packet: Vec<u8>,
    meta: Meta,
    pace: Option<Pace>,
    /// Packets that wait, at the last look.
    waiting: u32,
    /// For each frame number: whether the frame holds the packet.
    written: Vec<bool>,
    arrivals: VecDeque<u64>,
    sent: Vec<u64>,
}

impl ReplayPort {
    /// Makes a port on a memory of `frames` frames. `packet` must fit a frame. Packets arrive at
    /// this rate, or always.
    pub fn new(
        borrower: Borrower,
        frames: u32,
        (meta, packet): (Meta, Vec<u8>),
        rate_pps: Option<u64>,
    ) -> Self {
        Self {
            borrower,
            packet,
            meta,
            pace: rate_pps.map(Pace::new),
            waiting: 0,
            written: vec![false; frames as usize],
            arrivals: VecDeque::with_capacity(frames as usize),
            sent: Vec::with_capacity(frames as usize),
        }
    }

    /// Looks how many packets wait.
    #[inline]
    fn look(&mut self) {
        let room = self.arrivals.len() as u64;
        let pace = self.pace.as_mut();
        let waiting = pace.map_or(room, |pace| pace.waiting(monotonic_ns(), room));
        self.waiting = waiting as u32;
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
        self.look();
        limit.min(self.waiting)
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let address = self.arrivals.pop_front()?;
        let (mut frame, offset) = memory.take_back(address, self.borrower)?;
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(pace) = &mut self.pace {
            self.meta.stamp_ns = pace.take();
            let (start, meta) = (HEADROOM as usize, self.meta.to_bytes());
            memory.bytes_mut(&mut frame)[start - meta.len()..start].copy_from_slice(&meta);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_at_even_times_and_those_without_room_are_lost() {
        let mut pace = Pace {
            start_ns: 1000,
            ..Pace::new(4_000_000)
        };
        assert_eq!(pace.waiting(1249, 8), 0);
        assert_eq!(pace.waiting(1500, 8), 2);
        assert_eq!([pace.take(), pace.take()], [1250, 1500]);
        assert_eq!(pace.waiting(1500, 8), 0);
        // Of 12 packets, the first 4 find no frame.
        assert_eq!(pace.waiting(4500, 8), 8);
        assert_eq!(pace.take(), 2750);
        assert_eq!(pace.waiting(0, 8), 0, "a clock that goes back");
        assert_eq!(pace.waiting(u64::MAX, 8), 8);
    }
}
