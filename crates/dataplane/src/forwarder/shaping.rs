//! Queues and sends the packets of shaped chains.

use myelin_spec::Shaping;

use super::Forwarder;
use super::batch::{MIN_PACKET, RunResult};
use crate::port::{Buffer, FramePool, Port};
use crate::segment::{Exit, ExitTarget, Segment, encapsulate};
use crate::shaper::{Shaper, ShaperDecision, ShaperDrop, WaitingPacket};
use crate::stats::{Counter, ShaperCounter, WorkerCounters};
use crate::umem::FrameMemory;

/// The shaper of all generations of a chain.
#[derive(Debug)]
pub(super) struct ChainShaper {
    spi: u32,
    shaper: Box<Shaper>,
}

impl<P: Port> Forwarder<'_, P> {
    /// Returns when the next waiting packet may leave, CLOCK_MONOTONIC, ns; `None` if no packet
    /// waits.
    #[inline]
    pub fn next_departure_ns(&self) -> Option<u64> {
        (self.next_departure_ns != u64::MAX).then_some(self.next_departure_ns)
    }

    /// Returns whether packets wait. If so, call [`Self::send_due_packets`] no later than
    /// [`Self::next_departure_ns`].
    #[inline]
    pub fn has_shaped_packets(&self) -> bool {
        self.next_departure_ns != u64::MAX
    }

    /// Returns the number of waiting packets of a generation of a chain.
    pub fn shaped_packets(&self, spi: u32, generation: u16) -> u64 {
        let segments = self.segments.iter().flatten();
        segments
            .filter(|segment| (segment.spi, segment.generation) == (spi, generation))
            .map(|segment| segment.counters.waiting_packets())
            .sum()
    }

    /// Passes the run in `self.batch` to a shaper, which sends, queues or drops each packet.
    pub(super) fn shape_run(&mut self, segment: u32, exit: Exit, shaper: u32) {
        let (now_ns, first_stamp) = ((self.clock.read_ns)(), self.stamps.len());
        // Shapers may hold at most half of the worker's frames.
        let mut room = (self.memory.frames() as usize / 2).saturating_sub(self.shaped_frames);
        let (mut sent, mut lost, mut is_stuck) = (0, 0, false);
        let Some(Some(source)) = self.segments.get(segment as usize) else {
            return;
        };
        let Some(Some(ChainShaper { shaper, .. })) = self.shapers.get_mut(shaper as usize) else {
            return;
        };
        for packet in self.batch.packets_mut() {
            let (bytes, stamp_ns) = (packet.len() as u32, packet.meta().stamp_ns);
            let fits = match exit.target {
                ExitTarget::Kernel(position) | ExitTarget::Wire(position) => {
                    encapsulate(packet, position)
                }
                ExitTarget::Egress | ExitTarget::Stage(_) => true,
            };
            let leaves = exit.target.leaves();
            let buffer = self.memory.recover_buffer(packet);
            if !fits || buffer.len < MIN_PACKET {
                lost += 1;
                self.pool.give(buffer.frame);
                continue;
            }
            let decision = match shaper.decide(now_ns, bytes) {
                ShaperDecision::Wait if room == 0 => ShaperDecision::Drop(ShaperDrop::Full),
                decision => decision,
            };
            match decision {
                ShaperDecision::Leave => {
                    let port = self.ports.get_mut(exit.port).and_then(Option::as_mut);
                    let context = TransmitContext {
                        memory: self.memory,
                        pool: &mut self.pool,
                        counters: &self.counters,
                    };
                    if context.transmit_or_drop(port, buffer, &mut is_stuck) {
                        sent += 1;
                        if leaves {
                            self.stamps.push((stamp_ns, 1));
                        }
                    } else {
                        lost += 1;
                    }
                }
                ShaperDecision::Wait => {
                    room -= 1;
                    self.shaped_frames += 1;
                    source.counters.count_wait_start();
                    shaper.push(
                        now_ns,
                        WaitingPacket {
                            segment,
                            port: exit.port,
                            buffer,
                            bytes,
                            stamp_ns: leaves.then_some(stamp_ns),
                            arrived_ns: now_ns,
                        },
                    );
                }
                ShaperDecision::Drop(reason) => {
                    source.counters.count_shaper(counter_of(reason), 1);
                    self.pool.give(buffer.frame);
                }
            }
        }
        self.next_departure_ns = self.next_departure_ns.min(shaper.due_ns());
        self.runs.push(RunResult {
            segment,
            port: exit.port,
            sent,
            lost,
            stamps: self.stamps.len() - first_stamp,
        });
    }

    /// Sends the packets that may leave now. Returns the number of packets.
    pub fn send_due_packets(&mut self) -> u64 {
        let now_ns = (self.clock.read_ns)();
        if now_ns < self.next_departure_ns {
            return 0;
        }
        let mut released = 0;
        self.next_departure_ns = u64::MAX;
        for index in 0..self.shapers.len() {
            released += self.send_due_packets_of(index, now_ns);
        }
        if released > 0 {
            let kicks = self.flush_run_ports();
            self.count_departures(0, kicks);
            self.reclaim_and_refill();
        }
        released
    }

    fn send_due_packets_of(&mut self, index: usize, now_ns: u64) -> u64 {
        let Some(Some(ChainShaper { shaper, .. })) = self.shapers.get_mut(index) else {
            return 0;
        };
        let (mut released, mut is_stuck) = (0, false);
        while let Some(waiting) = shaper.pop_due(now_ns) {
            released += 1;
            self.shaped_frames -= 1;
            if let Some(Some(segment)) = self.segments.get(waiting.segment as usize) {
                segment
                    .counters
                    .count_wait_end(now_ns.saturating_sub(waiting.arrived_ns));
            }
            let port = self.ports.get_mut(waiting.port).and_then(Option::as_mut);
            let context = TransmitContext {
                memory: self.memory,
                pool: &mut self.pool,
                counters: &self.counters,
            };
            let sent = context.transmit_or_drop(port, waiting.buffer, &mut is_stuck);
            let stamp_ns = waiting.stamp_ns.filter(|_| sent);
            self.stamps.extend(stamp_ns.map(|stamp_ns| (stamp_ns, 1)));
            self.runs.push(RunResult {
                segment: waiting.segment,
                port: waiting.port,
                sent: sent.into(),
                lost: (!sent).into(),
                stamps: stamp_ns.is_some().into(),
            });
        }
        self.next_departure_ns = self.next_departure_ns.min(shaper.due_ns());
        released
    }

    /// Returns the index of the shaper for an added segment. If another generation has a shaper,
    /// the segment shares that shaper, which takes the segment's settings. Otherwise adds the
    /// segment's new shaper.
    pub(super) fn attach_shaper(&mut self, segment: &mut Segment) -> Option<u32> {
        let shaping = segment.shaping?;
        let spi = segment.spi;
        let index = self.find_shaper(spi);
        if let Some(index) = index {
            self.change_shaper(index, shaping);
            return Some(index as u32);
        }
        let shaper = segment
            .shaper
            .take()
            .unwrap_or_else(|| Box::new(Shaper::new(shaping)));
        let chain = Some(ChainShaper { spi, shaper });
        let free = self.shapers.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.shapers.push(None);
            self.shapers.len() - 1
        });
        self.shapers[index] = chain;
        Some(index as u32)
    }

    fn find_shaper(&self, spi: u32) -> Option<usize> {
        let is_match =
            |slot: &Option<ChainShaper>| slot.as_ref().is_some_and(|chain| chain.spi == spi);
        self.shapers.iter().position(is_match)
    }

    fn change_shaper(&mut self, index: usize, shaping: Shaping) {
        let now_ns = (self.clock.read_ns)();
        let Some(Some(ChainShaper { shaper, .. })) = self.shapers.get_mut(index) else {
            return;
        };
        if *shaper.shaping() == shaping {
            return;
        }
        let (segments, pool, shaped) = (&self.segments, &mut self.pool, &mut self.shaped_frames);
        shaper.reconfigure(now_ns, shaping, |waiting| {
            if let Some(Some(segment)) = segments.get(waiting.segment as usize) {
                segment.counters.count_waiting_drop(ShaperCounter::Big);
            }
            pool.give(waiting.buffer.frame);
            *shaped -= 1;
        });
        self.update_next_departure();
    }

    /// Drops the waiting packets of a removed segment. If another generation remains, the shaper
    /// takes the settings of that generation. Otherwise moves the shaper into the segment, which
    /// the caller frees.
    pub(super) fn detach_from_shaper(&mut self, index: u32, segment: &mut Segment) {
        let Some(at) = self.find_shaper(segment.spi) else {
            return;
        };
        if let Some(Some(ChainShaper { shaper, .. })) = self.shapers.get_mut(at) {
            let (pool, shaped) = (&mut self.pool, &mut self.shaped_frames);
            shaper.remove_segment(index, |waiting| {
                segment.counters.count_waiting_drop(ShaperCounter::Lost);
                pool.give(waiting.buffer.frame);
                *shaped -= 1;
            });
        }
        let mut rest = self.segments.iter().flatten();
        let other = rest.find(|other| other.spi == segment.spi && other.shaping.is_some());
        match other.and_then(|other| other.shaping) {
            Some(shaping) => self.change_shaper(at, shaping),
            None => segment.shaper = self.shapers[at].take().map(|chain| chain.shaper),
        }
        self.update_next_departure();
    }

    /// Finds the next departure. Call this method after you add, remove or change shapers.
    fn update_next_departure(&mut self) {
        let due = self.shapers.iter().flatten();
        let due = due.map(|chain| chain.shaper.due_ns()).min();
        self.next_departure_ns = due.unwrap_or(u64::MAX);
    }
}

/// The parts of the forwarder that transmit a packet.
struct TransmitContext<'a, 'm> {
    memory: &'m FrameMemory,
    pool: &'a mut FramePool,
    counters: &'a WorkerCounters,
}

impl TransmitContext<'_, '_> {
    /// Puts a packet into a port's transmit ring. Flushes a full ring as long as a flush makes
    /// room. Drops the packet if no room remains. Returns whether the packet is in the ring.
    fn transmit_or_drop<P: Port>(
        self,
        port: Option<&mut P>,
        buffer: Buffer,
        is_stuck: &mut bool,
    ) -> bool {
        let Some(port) = port else {
            self.pool.give(buffer.frame);
            return false;
        };
        let unsent = port.transmit(self.memory, buffer).or_else(|buffer| {
            if *is_stuck {
                return Err(buffer);
            }
            let kicks = port.flush(self.memory);
            self.counters.add(Counter::Kicks, kicks);
            port.reclaim(self.memory, self.pool);
            let unsent = port.transmit(self.memory, buffer);
            *is_stuck = unsent.is_err();
            unsent
        });
        match unsent {
            Ok(()) => true,
            Err(buffer) => {
                self.pool.give(buffer.frame);
                false
            }
        }
    }
}

fn counter_of(reason: ShaperDrop) -> ShaperCounter {
    match reason {
        ShaperDrop::Full => ShaperCounter::Full,
        ShaperDrop::Late => ShaperCounter::Late,
        ShaperDrop::Big => ShaperCounter::Big,
    }
}
