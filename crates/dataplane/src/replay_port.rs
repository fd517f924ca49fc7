//! A port without a device: packets arrive from memory, always or at given times, and packets that
//! leave are freed. So a worker measures with all of its own code and no other core.
//!
//! ```text
//! times --> queue --> front door --> ring of arrivals --> worker --> frames are free again
//!            | missed    | policed      | lost: no room
//! ```
//!
//! The worker looks at the clock when it polls the port. Packets whose time has come pass the front
//! door and wait in the ring, as behind a device. The stamp of a packet is its time of arrival.
//!
//! Of the packets that arrive between two looks, the front door sees at most `MAX_LOOK`, or a
//! ring. The port drops the others, as a device whose queue is full (`rx_missed`). So a replay that
//! is faster than the front door neither delays packets without limit nor takes more memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use myelin_packet::meta::META_LEN;
use myelin_packet::{Meta, parse};
use myelin_spec::ReplayTimes;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde::{Deserialize, Serialize};

use self::times::Times;
use crate::clock::monotonic_ns;
use crate::door::ChainRedirect;
use crate::driver::DrivenPort;
use crate::front_door::{DoorDecision, FrontDoor};
use crate::port::{Buffer, FramePool, Port};
use crate::stats::DoorCounters;
use crate::umem::{Borrower, FrameMemory, HEADROOM};

mod times;

/// The queue before the front door, packets; longer with a longer ring. The worker handles at most
/// a queue in one look, so a look after a long stall ends.
const MAX_LOOK: u64 = 4096;

/// The packets of a [`ReplayPort`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// The packets, which arrive in turn.
    pub packets: Vec<Vec<u8>>,
    /// Service path identifier and generation of the chain that all packets enter; `None` for the
    /// chains that the port's front door chooses.
    pub chain: Option<(u32, u16)>,
    /// The times of the packets. Tasks that share a core see the port as always full, so a worker
    /// with turns needs [`ReplayTimes::Endless`].
    pub times: ReplayTimes,
    /// Number of packets after which none arrives; `None` for no end.
    pub end: Option<u64>,
    /// Most packets that wait. Further packets are lost.
    pub ring: u32,
}

/// The way of an arrived packet into a chain.
#[derive(Debug)]
enum Entry {
    /// One chain takes all packets. Metadata of each packet.
    Chain(Vec<Meta>),
    FrontDoor(FrontDoor),
}

/// A packet that waits.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    /// Index of the packet's bytes.
    index: u32,
    meta: Meta,
}

/// A port that receives packets from memory. Every transmitted packet leaves at once.
#[derive(Debug)]
pub struct ReplayPort {
    borrower: Borrower,
    packets: Vec<Vec<u8>>,
    entry: Entry,
    times: Times,
    end: u64,
    ring: usize,
    /// Most packets that wait for the front door between two looks.
    queue: u64,
    /// The start of the times: the first look after a chain exists.
    start_ns: Option<u64>,
    /// Packets that have arrived, with those that the port missed.
    arrived: u64,
    /// The only packet, which always arrives and whose bytes the chain does not change: with one
    /// chain and without times.
    constant: Option<Arrival>,
    /// For each frame number: whether the frame holds the constant packet.
    written: Vec<bool>,
    waiting: VecDeque<Arrival>,
    /// Addresses of free frames.
    lent: VecDeque<u64>,
    sent: Vec<u64>,
    /// Wakes the worker at the next packet. `None` if packets always arrive.
    timer: Option<TimerFd>,
}

impl ReplayPort {
    /// Makes a port on this memory.
    ///
    /// # Errors
    /// There is no packet, a packet does not fit a frame, or the system call for a timer fails.
    pub fn new(borrower: Borrower, memory: &FrameMemory, replay: Replay) -> Result<Self, String> {
        let Replay {
            packets,
            chain,
            times,
            end,
            ring,
        } = replay;
        let room = (memory.frame_size() - HEADROOM) as usize;
        if packets.is_empty() || packets.iter().any(|packet| packet.len() > room) {
            return Err(format!("a replay needs packets of at most {room} bytes"));
        }
        let entry = match chain {
            Some((spi, generation)) => {
                let meta = |packet: &Vec<u8>| {
                    let headers = parse(packet).map_err(|error| format!("{error:?}"))?;
                    Ok(Meta::new(0, spi, generation, 0, &headers))
                };
                Entry::Chain(packets.iter().map(meta).collect::<Result<_, String>>()?)
            }
            None => Entry::FrontDoor(FrontDoor::new()),
        };
        let times = Times::from(times);
        let constant = match (&entry, &times, &packets[..]) {
            (Entry::Chain(metas), Times::Always, [_]) if end.is_none() => Some(Arrival {
                index: 0,
                meta: metas[0],
            }),
            _ => None,
        };
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = || TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
        let timer = (!matches!(times, Times::Always)).then(timer).transpose();
        let frames = memory.frames() as usize;
        let ring = (ring as usize).min(frames);
        Ok(Self {
            borrower,
            packets,
            entry,
            timer: timer.map_err(|errno| format!("cannot create a timer: {errno}"))?,
            times,
            end: end.unwrap_or(u64::MAX),
            ring,
            queue: MAX_LOOK.max(ring as u64),
            start_ns: None,
            arrived: 0,
            constant,
            written: vec![false; frames],
            waiting: VecDeque::with_capacity(ring),
            lent: VecDeque::with_capacity(ring),
            sent: Vec::with_capacity(frames),
        })
    }

    /// Whether no chain takes packets.
    fn is_closed(&self) -> bool {
        matches!(&self.entry, Entry::FrontDoor(door) if door.is_empty())
    }

    /// Puts the packets whose time has come into the ring, at least `wanted` if packets always
    /// arrive.
    fn look(&mut self, wanted: u32) {
        if self.is_closed() {
            return;
        }
        let now_ns = monotonic_ns();
        let start_ns = *self.start_ns.get_or_insert(now_ns);
        let until = if matches!(self.times, Times::Always) {
            let missing = (wanted as usize).min(self.lent.len());
            let missing = missing.saturating_sub(self.waiting.len());
            self.arrived.saturating_add(missing as u64)
        } else {
            self.times.count(now_ns.saturating_sub(start_ns))
        };
        let until = until.min(self.end);
        let queued = until.min(self.arrived.saturating_add(self.queue));
        while self.arrived < queued {
            let stamp_ns = match self.times {
                Times::Always => now_ns,
                _ => start_ns.saturating_add(self.times.time_ns(self.arrived)),
            };
            let index = (self.arrived % self.packets.len() as u64) as usize;
            self.arrived += 1;
            self.admit(index, stamp_ns);
        }
        if let Entry::FrontDoor(door) = &self.entry {
            door.count_missed(until.saturating_sub(self.arrived));
        }
        self.arrived = self.arrived.max(until);
    }

    /// Lets a packet that arrives enter its chain.
    #[inline]
    fn admit(&mut self, index: usize, stamp_ns: u64) {
        let has_room = self.waiting.len() < self.lent.len();
        let meta = match &mut self.entry {
            Entry::Chain(metas) => Meta {
                stamp_ns,
                ..metas[index]
            },
            Entry::FrontDoor(door) => match door.decide(&self.packets[index], stamp_ns) {
                DoorDecision::Taken(meta) if has_room => meta,
                DoorDecision::Taken(meta) => return door.count_lost(meta.spi),
                DoorDecision::Policed | DoorDecision::FragmentDropped | DoorDecision::Unmatched => {
                    return;
                }
            },
        };
        if has_room {
            let index = index as u32;
            self.waiting.push_back(Arrival { index, meta });
        }
    }
}

impl Port for ReplayPort {
    #[inline]
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
        if self.constant.is_none() {
            self.look(limit);
        }
        limit.min(self.count_received())
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let arrival = self.constant.or_else(|| self.waiting.pop_front())?;
        let address = self.lent.pop_front()?;
        let (mut frame, offset) = memory.take_back(address, self.borrower)?;
        let number = memory.frame_number(&frame) as usize;
        let packet = &self.packets[arrival.index as usize];
        let start = HEADROOM as usize;
        let bytes = memory.bytes_mut(&mut frame);
        // A function may have changed the metadata.
        bytes[start - META_LEN..start].copy_from_slice(&arrival.meta.to_bytes());
        let is_written = &mut self.written[number];
        if self.constant.is_none() || !std::mem::replace(is_written, true) {
            bytes[start..][..packet.len()].copy_from_slice(packet);
        }
        let len = packet.len() as u32;
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
        while self.lent.len() < self.ring {
            let Some(frame) = pool.take_for_receive() else {
                break;
            };
            self.lent
                .push_back(memory.lend(frame, HEADROOM, self.borrower));
        }
        !self.lent.is_empty()
    }

    #[inline]
    fn count_received(&self) -> u32 {
        match self.constant {
            Some(_) => self.lent.len() as u32,
            None => self.waiting.len() as u32,
        }
    }

    fn readable_fd(&self) -> Option<RawFd> {
        let timer = self.timer.as_ref();
        timer.map(|timer| timer.as_fd().as_raw_fd())
    }

    /// Sets the timer to the next packet.
    fn arm(&mut self) -> bool {
        if self.count_received() > 0 {
            return false;
        }
        if self.arrived >= self.end || self.is_closed() {
            return true;
        }
        // Without a timer, packets always arrive.
        let Some(timer) = &self.timer else {
            return false;
        };
        if let Some(start_ns) = self.start_ns {
            let time_ns = start_ns.saturating_add(self.times.time_ns(self.arrived));
            let time = std::time::Duration::from_nanos(time_ns);
            let expiration = Expiration::OneShot(TimeSpec::from_duration(time));
            // The timer reports a time in the past at once. If it fails, the worker polls.
            return timer
                .set(expiration, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
                .is_ok();
        }
        true
    }

    /// Resets the timer, which else would prevent every sleep.
    fn disarm(&mut self) {
        if let Some(timer) = &self.timer {
            let _ = timer.unset();
        }
    }

    fn count_dropped_fragments(&self) -> u64 {
        match &self.entry {
            Entry::Chain(_) => 0,
            Entry::FrontDoor(door) => door.dropped_fragments(),
        }
    }
}

impl DrivenPort for ReplayPort {
    fn close(self) {}

    fn redirect(&mut self, chain: &ChainRedirect, counters: DoorCounters) -> Result<(), String> {
        match &mut self.entry {
            Entry::Chain(_) => Err("all packets of this replay enter one chain".into()),
            Entry::FrontDoor(door) => door
                .redirect(chain, counters)
                .map_err(|error| format!("replay: {error}")),
        }
    }

    fn stop_redirect(&mut self, spi: u32) {
        if let Entry::FrontDoor(door) = &mut self.entry {
            door.stop_redirect(spi);
        }
    }
}

#[cfg(test)]
mod tests;
