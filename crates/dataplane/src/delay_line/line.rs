//! The core of a delay line: takes packets from the port, lets them wait, and sends them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use myelin_packet::link_model::{Departure, DropCause, LinkModel};

use super::placement::Arrivals;
use super::table::{Counter, DIRECTIONS, DirectionCounter, LineTable};
use crate::port::{Buffer, FramePool, Port};
use crate::umem::FrameMemory;

/// Most packets that one step takes, and most that it sends.
const BATCH: u32 = 64;
/// Length of the direction's tag, bytes.
const TAG: u32 = 4;
/// The Ethernet header and the tag behind the addresses.
const HEADERS: usize = 14 + TAG as usize;
/// Offset of the tag in a frame.
const TAG_AT: usize = 12;
/// Type of the direction's tag: IEEE 802.1ad.
const SERVICE_TAG: [u8; 2] = [0x88, 0xa8];
/// The VLAN identifier in a tag.
const IDENTIFIER: u16 = 0x0fff;

/// A packet that waits for its departure.
#[derive(Debug)]
struct Waiting {
    at_ns: u64,
    /// Number of the packet. Packets with equal departures leave in the order of arrival.
    order: u64,
    direction: u16,
    buffer: Buffer,
}

/// The heap returns its greatest element first, which is the earliest departure.
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}

/// A direction that the worker knows.
#[derive(Debug)]
struct Direction {
    /// Generation of the profile that was read last.
    generation: u64,
    seed: u64,
    link: Option<LinkModel>,
}

/// The packets and links of a delay line.
#[derive(Debug)]
pub(super) struct Line<'m, P> {
    memory: &'m FrameMemory,
    pool: FramePool,
    port: P,
    table: LineTable,
    directions: Box<[Direction]>,
    waiting: BinaryHeap<Waiting>,
    /// Most packets that may wait. The other frames are for the rings.
    most_waiting: usize,
    /// Number of packets that have arrived.
    arrived: u64,
    /// Begin and end of the last sleep, ns.
    sleep: [u64; 2],
    arrivals: Arrivals,
}

impl<'m, P: Port> Line<'m, P> {
    /// Makes a line over one port, whose rings have `ring_size` entries.
    pub(super) fn new(memory: &'m FrameMemory, port: P, table: LineTable, ring_size: u32) -> Self {
        let frames = memory.frames() as usize;
        // Frames to receive into, arrived frames, and frames to transmit from.
        let rings = 3 * ring_size as usize + FramePool::RESERVE;
        let most_waiting = frames.saturating_sub(rings);
        let direction = |_| Direction {
            generation: 0,
            seed: 0,
            link: None,
        };
        Self {
            memory,
            pool: FramePool::new(memory.held_frames(), frames),
            port,
            table,
            directions: (0..DIRECTIONS).map(direction).collect(),
            waiting: BinaryHeap::with_capacity(most_waiting),
            most_waiting,
            arrived: 0,
            sleep: [0; 2],
            arrivals: Arrivals::default(),
        }
    }

    /// Records a sleep. Returns the arrivals since the previous one.
    pub(super) fn record_sleep(&mut self, sleep: [u64; 2]) -> Arrivals {
        self.sleep = sleep;
        std::mem::take(&mut self.arrivals)
    }

    /// Takes arrived packets and sends due packets. Returns the number of both.
    #[inline]
    pub(super) fn step(&mut self, now_ns: u64) -> u32 {
        let arrived = self.port.poll_arrivals(BATCH);
        for _ in 0..arrived {
            match self.port.take(self.memory) {
                Some(buffer) => self.accept(buffer, now_ns),
                None => self.table.add(Counter::Invalid, 1),
            }
        }
        if arrived > 0 {
            self.port.release();
            let waiting = self.waiting.len() as u64;
            self.table.raise(Counter::MostWaiting, waiting);
        }
        let left = self.send_due(now_ns);
        if arrived + left > 0 {
            self.table.set(Counter::Waiting, self.waiting.len() as u64);
            self.flush_and_refill();
        }
        arrived + left
    }

    /// Transmits what the port has not sent, and gives it frames to receive into. Returns whether
    /// the port needs another call soon.
    pub(super) fn flush_and_refill(&mut self) -> bool {
        let kicks = self.port.flush(self.memory);
        self.table.add(Counter::Kicks, kicks);
        self.port.reclaim(self.memory, &mut self.pool);
        let has_frames = self.port.refill(self.memory, &mut self.pool);
        self.table.set(Counter::FreeFrames, self.pool.len() as u64);
        self.port.is_backlogged() || !has_frames
    }

    /// Returns the time of the next departure.
    #[inline]
    pub(super) fn next_departure_ns(&self) -> Option<u64> {
        self.waiting.peek().map(|packet| packet.at_ns)
    }

    /// Returns the port.
    pub(super) fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Returns the table.
    pub(super) fn table(&self) -> &LineTable {
        &self.table
    }

    /// Decides about an arrived packet.
    #[inline]
    fn accept(&mut self, mut buffer: Buffer, now_ns: u64) {
        let Some(direction) = self.read_direction(&mut buffer) else {
            self.table.add(Counter::Untagged, 1);
            return self.pool.give(buffer.frame);
        };
        if self.table.generation(direction) != self.directions[usize::from(direction)].generation {
            self.read_profile(direction);
        }
        let Some(link) = &mut self.directions[usize::from(direction)].link else {
            self.table.add(Counter::Unknown, 1);
            return self.pool.give(buffer.frame);
        };
        let length = buffer.len - TAG;
        self.table.count(direction, DirectionCounter::Arrived, 1);
        let bytes = DirectionCounter::ArrivedBytes;
        self.table.count(direction, bytes, length.into());
        // The kernel wrote the stamp. Without it the packet arrives now.
        let stamp_ns = self.memory.meta(&mut buffer).map(|meta| meta.stamp_ns);
        let arrived_ns = stamp_ns.unwrap_or(now_ns).min(now_ns);
        let [slept_ns, woke_ns] = self.sleep;
        self.arrivals.all += 1;
        self.arrivals.asleep += u64::from((slept_ns..woke_ns).contains(&arrived_ns));
        let drop = if self.waiting.len() >= self.most_waiting {
            DirectionCounter::MemoryDrops
        } else {
            match link.offer(arrived_ns, length) {
                Departure::At(at_ns) => {
                    self.table.count(direction, DirectionCounter::Waiting, 1);
                    self.arrived += 1;
                    return self.waiting.push(Waiting {
                        at_ns,
                        order: self.arrived,
                        direction,
                        buffer,
                    });
                }
                Departure::Dropped(DropCause::Queue) => DirectionCounter::QueueDrops,
                Departure::Dropped(DropCause::Loss) => DirectionCounter::Lost,
            }
        };
        self.table.count(direction, drop, 1);
        self.pool.give(buffer.frame);
    }

    /// Returns the number in the direction's tag; `None` for a frame without such a tag.
    #[inline]
    fn read_direction(&self, buffer: &mut Buffer) -> Option<u16> {
        let (start, len) = (buffer.offset as usize, buffer.len as usize);
        if len < HEADERS {
            return None;
        }
        let bytes = self.memory.bytes_mut(&mut buffer.frame);
        let tag: &[u8; 4] = bytes.get(start + TAG_AT..)?.first_chunk()?;
        let &[type_high, type_low, high, low] = tag;
        let is_tag = [type_high, type_low] == SERVICE_TAG;
        let direction = u16::from_be_bytes([high, low]) & IDENTIFIER;
        (is_tag && usize::from(direction) < DIRECTIONS).then_some(direction)
    }

    /// Applies a changed profile. While the agent writes it, the former one applies.
    #[cold]
    fn read_profile(&mut self, direction: u16) {
        let Some(read) = self.table.read_profile(direction) else {
            return;
        };
        let known = &mut self.directions[usize::from(direction)];
        known.generation = read.generation;
        match (read.profile, &mut known.link) {
            (Some((profile, seed)), Some(link)) if seed == known.seed => link.set_profile(profile),
            (Some((profile, seed)), link) => {
                *link = Some(LinkModel::new(profile, seed));
                known.seed = seed;
            }
            (None, link) => *link = None,
        }
    }

    /// Sends packets whose departure is not after `now_ns`. Returns their number.
    #[inline]
    fn send_due(&mut self, now_ns: u64) -> u32 {
        let mut left = 0;
        while left < BATCH
            && let Some(next) = self.waiting.peek()
            && next.at_ns <= now_ns
            && let Some(packet) = self.waiting.pop()
        {
            left += 1;
            self.send(packet, now_ns);
        }
        left
    }

    #[inline]
    fn send(&mut self, packet: Waiting, now_ns: u64) {
        let Waiting {
            at_ns,
            direction,
            buffer,
            ..
        } = packet;
        let waiting = DirectionCounter::Waiting;
        self.table.count(direction, waiting, 1_u64.wrapping_neg());
        let length = buffer.len - TAG;
        let mut sent = self.port.transmit(self.memory, buffer);
        if let Err(buffer) = sent {
            // The ring is full: send what it has.
            let kicks = self.port.flush(self.memory);
            self.table.add(Counter::Kicks, kicks);
            self.port.reclaim(self.memory, &mut self.pool);
            sent = self.port.transmit(self.memory, buffer);
        }
        match sent {
            Ok(()) => {
                self.table.count(direction, DirectionCounter::Left, 1);
                let bytes = DirectionCounter::LeftBytes;
                self.table.count(direction, bytes, length.into());
                self.table.record_lateness(now_ns.saturating_sub(at_ns));
            }
            Err(buffer) => {
                let drops = DirectionCounter::TransmitDrops;
                self.table.count(direction, drops, 1);
                self.pool.give(buffer.frame);
            }
        }
    }
}

#[cfg(test)]
mod tests;
