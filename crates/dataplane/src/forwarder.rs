//! The service function forwarder (RFC 7665) takes packets from ports, runs each packet through its
//! segment to completion, and transmits the packet.
//!
//! Processing a batch takes no lock, and allocates no memory after the vectors have grown. It makes
//! one dynamic call per function and run of packets. A *run* is a longest sequence of packets in
//! a batch at the same position of the same chain. This file adds and removes ports, chains and
//! frames. `batch` processes packets.

use std::sync::Arc;

use myelin_functions::{Batch, FlowPage, Packet, States};

use crate::chain::UserChain;
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::named_counters::CounterReading;
use crate::port::{Buffer, FramePool, Port};
use crate::segment::{CalibratedClock, Segment};
use crate::segment_table::{SegmentKey, SegmentTable};
use crate::stats::{Counter, Stats, WorkerCounters};
use crate::umem::{Borrower, FrameMemory};

/// Longest wait for the packets in the shaper of a chain that is removed, ns. Shorter than the
/// agent's timeout for an answer.
pub(crate) const MAX_DRAIN_NS: u64 = 5_000_000_000;

mod batch;
mod expiry;
mod shaping;
#[cfg(test)]
mod tests;

use batch::RunResult;
use shaping::ChainShaper;

/// Ports, chains and frames of one worker, and the loop over them.
pub struct Forwarder<'m, P> {
    memory: &'m FrameMemory,
    pool: FramePool,
    ports: Vec<Option<P>>,
    segments: Vec<Option<Segment>>,
    table: SegmentTable,
    /// The last look-up: the key and the index of its segment.
    last_lookup: (SegmentKey, Option<u32>),
    counters: WorkerCounters,
    clock: CalibratedClock,
    /// States of the chains that [`Self::deploy`] added. A worker's control thread keeps its own
    /// states.
    states: States,
    batch_size: u32,
    /// Whether the frames are distributed and the loop serves the ports.
    started: bool,
    /// Whether a port lacks frames or has unsent packets.
    has_pending_ports: bool,
    /// The time when the next timer of a function is due, ns; `u64::MAX` if no timer is set.
    next_timer_ns: u64,
    shapers: Vec<Option<ChainShaper>>,
    /// Number of frames with packets in shapers.
    shaped_frames: usize,
    /// The time when the next packet may leave a shaper, ns; `u64::MAX` if no packet waits.
    next_departure_ns: u64,
    // Vectors that every batch empties and reuses.
    batch: Batch<'m>,
    emitted: Vec<Packet<'m>>,
    replies: Vec<Buffer>,
    runs: Vec<RunResult>,
    /// Front-door stamps of the packets that leave the chain in this batch, run by run, each with
    /// its number of packets on the wire.
    stamps: Vec<(u64, u64)>,
}

impl<'m, P: Port> Forwarder<'m, P> {
    /// Makes a forwarder in this process, without a worker. The caller adds ports.
    pub fn in_process(
        memory: &'m FrameMemory,
        batch_size: u16,
        stats: &Stats,
    ) -> Result<Self, Error> {
        let counters = stats.file().worker_counters()?;
        Ok(Self::new(memory, batch_size, counters, monotonic_ns))
    }

    /// Deploys a chain. The chain's functions count into `stats`.
    pub fn deploy(&mut self, chain: &UserChain, stats: &Stats) -> Result<(), Error> {
        let refused = |message: String| Error::Refused {
            worker: "in this process".into(),
            what: format!("add chain {} generation {}", chain.spi, chain.generation),
            message,
        };
        chain.check().map_err(|problem| refused(problem.into()))?;
        let block = stats
            .allocate(chain.spi, chain.generation, chain.positions)
            .ok_or_else(|| refused("the chain exists already, or 4096 chains exist".into()))?;
        let counters = stats.file().chain_counters(block)?;
        let segments =
            Segment::build(chain, &Arc::new(counters), &mut self.states).map_err(refused)?;
        self.add_segments(segments);
        Ok(())
    }

    /// Makes a forwarder without ports and chains. `batch_size` is in packets. `clock` reads
    /// CLOCK_MONOTONIC, ns.
    pub(crate) fn new(
        memory: &'m FrameMemory,
        batch_size: u16,
        counters: WorkerCounters,
        clock: fn() -> u64,
    ) -> Self {
        let capacity = usize::from(batch_size);
        Self {
            memory,
            pool: FramePool::default(),
            ports: Vec::new(),
            segments: Vec::new(),
            table: SegmentTable::new(),
            last_lookup: (SegmentKey::new(0, 0, 0), None),
            counters,
            clock: CalibratedClock::new(clock),
            states: States::default(),
            batch_size: u32::from(batch_size),
            started: false,
            has_pending_ports: false,
            next_timer_ns: u64::MAX,
            shapers: Vec::new(),
            shaped_frames: 0,
            next_departure_ns: u64::MAX,
            batch: Batch::with_capacity(capacity),
            emitted: Vec::with_capacity(capacity),
            replies: Vec::with_capacity(capacity),
            runs: Vec::with_capacity(capacity),
            stamps: Vec::with_capacity(capacity),
        }
    }

    /// Takes all frames that no port holds, and refills the ports. Call this method after you add
    /// the ports and chains of a predecessor.
    pub fn start(&mut self) {
        let frames = self.memory.frames() as usize;
        self.pool = FramePool::new(self.memory.held_frames(), frames);
        self.started = true;
        self.flush_and_refill();
    }

    /// Adds a port under a free index.
    pub fn add_port(&mut self, index: usize, port: P) {
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        self.ports[index] = Some(port);
        self.flush_and_refill();
    }

    /// Removes a port that is no segment's exit. Close the port, then call
    /// [`Self::take_frames_of`].
    pub(crate) fn remove_port(&mut self, index: usize) -> Option<P> {
        let port = self.ports.get_mut(index)?.take();
        self.flush_and_refill();
        port
    }

    /// Takes back the frames of a closed port.
    pub(crate) fn take_frames_of(&mut self, port: Borrower) {
        for frame in self.memory.take_all_back(port) {
            self.pool.give(frame);
        }
        self.flush_and_refill();
    }

    /// Returns the port at `index`.
    pub fn port_mut(&mut self, index: usize) -> Option<&mut P> {
        self.ports.get_mut(index)?.as_mut()
    }

    /// Returns all ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &P> {
        self.ports.iter().flatten()
    }

    /// Adds the segments of a chain.
    pub(crate) fn add_segments(&mut self, segments: Vec<Segment>) {
        for mut segment in segments {
            segment.set_clock(self.clock.read_ns);
            segment.shaper_index = self.attach_shaper(&mut segment);
            let key = SegmentKey::new(segment.spi, segment.generation, segment.first_position);
            let free = self.segments.iter().position(Option::is_none);
            let index = free.unwrap_or_else(|| {
                self.segments.push(None);
                self.segments.len() - 1
            });
            self.segments[index] = Some(segment);
            self.table.insert(key, index as u32);
        }
        self.refresh_last_lookup();
        self.update_next_timer();
    }

    /// Processes the packets that have arrived, then removes the segments of a chain.
    pub(crate) fn remove_segments(&mut self, spi: u32, generation: u16) -> Vec<Segment> {
        self.drain();
        let mut removed = Vec::new();
        for index in 0..self.segments.len() {
            let is_match =
                |segment: &mut Segment| (segment.spi, segment.generation) == (spi, generation);
            if let Some(mut segment) = self.segments[index].take_if(is_match) {
                if segment.shaper_index.take().is_some() {
                    self.detach_from_shaper(index as u32, &mut segment);
                }
                self.table
                    .remove(SegmentKey::new(spi, generation, segment.first_position));
                removed.push(segment);
            }
        }
        self.refresh_last_lookup();
        self.update_next_timer();
        removed
    }

    /// Reads the flows of a function into `page`. Leaves the page unchanged if this worker does not
    /// run the function.
    pub(crate) fn read_flows(&self, spi: u32, generation: u16, position: u8, page: &mut FlowPage) {
        let function = self
            .segments
            .iter()
            .flatten()
            .filter(|segment| (segment.spi, segment.generation) == (spi, generation))
            .find_map(|segment| {
                let index = position.checked_sub(segment.first_position)?;
                segment.functions.get(usize::from(index))
            });
        if let Some(function) = function {
            function.read_flows(page);
        }
    }

    /// Reads the counters that the functions of a chain name.
    pub(crate) fn read_counters(
        &self,
        spi: u32,
        generation: u16,
        readings: &mut Vec<CounterReading>,
    ) {
        let segments = self.segments.iter().flatten();
        for segment in
            segments.filter(|segment| (segment.spi, segment.generation) == (spi, generation))
        {
            for (function, position) in segment.functions.iter().zip(segment.first_position..) {
                function.read_counters(&mut |name, count| readings.push((position, name, count)));
            }
        }
    }

    /// Processes the packets that wait in the ports now. Does not process later arrivals, so that
    /// the call ends under load too.
    fn drain(&mut self) {
        for index in 0..self.ports.len() {
            let mut remaining = self.ports[index].as_ref().map_or(0, Port::count_received);
            while remaining > 0 {
                let received = self.process_port(index);
                if received == 0 {
                    break;
                }
                remaining = remaining.saturating_sub(received);
            }
        }
    }

    /// Processes one batch from each port. Returns the number of arrivals: packets, and frames that
    /// a ring returns.
    #[inline]
    pub fn process_batches(&mut self) -> u32 {
        let mut received = 0;
        for index in 0..self.ports.len() {
            received += self.process_port(index);
        }
        received
    }

    /// Largest number of packets of a batch.
    pub(crate) fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// The number of port indices in use.
    #[inline]
    pub(crate) fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// Polls the receive queues of busy-polled devices.
    #[inline]
    pub(crate) fn busy_poll(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.busy_poll();
        }
    }

    /// Grants up to `count` free frames to the process `holder`. Returns the number of frames
    /// granted.
    pub(crate) fn grant(&mut self, holder: Borrower, count: usize) -> usize {
        let frames = std::iter::from_fn(|| self.pool.take()).take(count);
        frames.map(|frame| self.memory.grant(frame, holder)).count()
    }

    /// Announces to all ports that the worker is about to sleep. Returns whether it may sleep.
    /// Always call [`Self::disarm`] afterwards.
    pub(crate) fn arm(&mut self) -> bool {
        let mut may_sleep = true;
        for port in self.ports.iter_mut().flatten() {
            may_sleep &= port.arm();
        }
        may_sleep
    }

    /// Announces to all ports that the worker is awake.
    pub(crate) fn disarm(&mut self) {
        self.ports.iter_mut().flatten().for_each(Port::disarm);
    }

    /// Sends pending packets, reclaims sent frames, refills the ports, and updates the counters of
    /// free frames and invalid descriptors. Call this method when the worker is idle.
    pub fn flush_and_refill(&mut self) {
        if !self.started {
            return;
        }
        let mut kicks = 0;
        for port in self.ports.iter_mut().flatten() {
            kicks += port.flush(self.memory);
        }
        self.counters.add(Counter::Kicks, kicks);
        self.reclaim_and_refill();
        self.counters
            .set(Counter::FreeFrames, self.pool.len() as u64);
        let invalid = self.ports().map(Port::count_invalid).sum();
        self.counters.set(Counter::Invalid, invalid);
        let fragments = self.ports().map(Port::count_dropped_fragments).sum();
        self.counters.set(Counter::Fragments, fragments);
    }

    /// Adds to a counter of the whole worker.
    pub(crate) fn count(&mut self, counter: Counter, n: u64) {
        self.counters.add(counter, n);
    }

    /// Returns whether a port lacks frames or has unsent packets, so that the loop must call
    /// [`Self::flush_and_refill`] even without arrivals.
    pub(crate) fn has_pending_ports(&self) -> bool {
        self.has_pending_ports
    }

    /// Returns the number of frames that no port holds.
    pub fn free_frames(&self) -> usize {
        self.pool.len()
    }

    fn refresh_last_lookup(&mut self) {
        let key = self.last_lookup.0;
        self.last_lookup = (key, self.table.get(key));
    }
}
