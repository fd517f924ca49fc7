//! The service function forwarder (RFC 7665): takes packets from ports, runs them through their segment to completion, transmits them.
//!
//! One pass over a batch, no locks, no allocation once the vectors have grown, no dynamic call but one per function and run of packets. A *run*
//! is the longest row of packets in a batch that wait at the same position of the same chain. Here is what a forwarder has, and how that comes and goes;
//! `batch` is the way of the packets.

use std::sync::Arc;

use myelin_functions::{Batch, FlowPage, Packet, States};

use crate::chain::UserChain;
use crate::chain_table::{ChainTable, Key};
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::named::Told;
use crate::port::{Buffer, FramePool, Port};
use crate::segment::{Segment, Timer};
use crate::stats::{Counter, Stats, WorkerCounters};
use crate::umem::{Borrower, FrameMemory};

/// How long a chain that is removed waits for what is in its shaper, at most: less than an agent waits for an answer.
pub(crate) const MAX_DRAIN_NS: u64 = 5_000_000_000;

mod batch;
mod expiry;
mod shaping;
#[cfg(test)]
mod tests;

use batch::Run;
use shaping::ChainShaper;

/// Ports, chains and frames of one worker, and the loop over them.
pub struct Forwarder<'m, P> {
    memory: &'m FrameMemory,
    pool: FramePool,
    ports: Vec<Option<P>>,
    segments: Vec<Option<Segment>>,
    table: ChainTable,
    /// The last look-up.
    last: (Key, Option<u32>),
    counters: WorkerCounters,
    timer: Timer,
    /// For chains that are deployed in this process; a worker's control thread has its own.
    states: States,
    batch_size: u32,
    /// The frames are distributed: from here on the ports are served.
    started: bool,
    /// A port lacks frames or could not send all it has: it needs attention without a packet arriving.
    unsettled: bool,
    /// When the next function wants to be called without a packet, ns; `u64::MAX` for never.
    due_ns: u64,
    shapers: Vec<Option<ChainShaper>>,
    /// Frames of packets that wait in shapers.
    shaped: usize,
    /// When the next packet may leave a shaper, ns; `u64::MAX` while none waits.
    departs_ns: u64,
    // Emptied and reused.
    batch: Batch<'m>,
    emitted: Vec<Packet<'m>>,
    replies: Vec<Buffer>,
    runs: Vec<Run>,
    /// Front-door stamps of the packets that leave the chain in this batch, run by run.
    stamps: Vec<u64>,
}

impl<'m, P: Port> Forwarder<'m, P> {
    /// A forwarder in this process, over ports of the caller's choice: what a worker runs, without the worker.
    pub fn in_process(
        memory: &'m FrameMemory,
        batch_size: u16,
        stats: &Stats,
    ) -> Result<Self, Error> {
        let counters = stats.file().worker_counters()?;
        Ok(Self::new(memory, batch_size, counters, monotonic_ns))
    }

    /// Runs a chain from now on, counting into `stats`.
    pub fn deploy(&mut self, chain: &UserChain, stats: &Stats) -> Result<(), Error> {
        let refused = |message: String| Error::Refused {
            worker: "in this process".into(),
            what: format!("add chain {} generation {}", chain.spi, chain.generation),
            message,
        };
        chain.check().map_err(|problem| refused(problem.into()))?;
        let block = stats
            .allocate(chain.spi, chain.generation, chain.positions)
            .ok_or_else(|| refused("it is there already, or one too many".into()))?;
        let counters = stats.file().chain_counters(block)?;
        let segments =
            Segment::build(chain, &Arc::new(counters), &mut self.states).map_err(refused)?;
        self.add_segments(segments);
        Ok(())
    }

    /// A forwarder without ports and chains that takes `batch_size` packets at once. `clock` reads CLOCK_MONOTONIC, ns.
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
            table: ChainTable::new(),
            last: (Key::new(0, 0, 0), None),
            counters,
            timer: Timer::new(clock),
            states: States::default(),
            batch_size: u32::from(batch_size),
            started: false,
            unsettled: false,
            due_ns: u64::MAX,
            shapers: Vec::new(),
            shaped: 0,
            departs_ns: u64::MAX,
            batch: Batch::with_capacity(capacity),
            emitted: Vec::with_capacity(capacity),
            replies: Vec::with_capacity(capacity),
            runs: Vec::with_capacity(capacity),
            stamps: Vec::with_capacity(capacity),
        }
    }

    /// Takes all frames that are in no port and lends the ports what they need. Ports and chains of a predecessor are to be added before.
    pub fn start(&mut self) {
        let frames = self.memory.frames() as usize;
        self.pool = FramePool::new(self.memory.held_frames(), frames);
        self.started = true;
        self.settle();
    }

    /// Adds a port under an index that is free.
    pub fn add_port(&mut self, index: usize, port: P) {
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        self.ports[index] = Some(port);
        self.settle();
    }

    /// Gives up a port that no segment leads to. The frames it has come back through [`Self::take_frames_of`], once it is closed.
    pub(crate) fn remove_port(&mut self, index: usize) -> Option<P> {
        let port = self.ports.get_mut(index)?.take();
        self.settle();
        port
    }

    /// Takes the frames that a closed port still had.
    pub(crate) fn take_frames_of(&mut self, port: Borrower) {
        for frame in self.memory.take_all_back(port) {
            self.pool.give(frame);
        }
        self.settle();
    }

    /// The port of an index.
    pub fn port_mut(&mut self, index: usize) -> Option<&mut P> {
        self.ports.get_mut(index)?.as_mut()
    }

    /// The ports there are.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &P> {
        self.ports.iter().flatten()
    }

    /// Adds the segments of a chain.
    pub(crate) fn add_segments(&mut self, segments: Vec<Segment>) {
        for mut segment in segments {
            segment.shaped_by = self.shaper_for(&mut segment);
            let key = Key::new(segment.spi, segment.generation, segment.first_position);
            let free = self.segments.iter().position(Option::is_none);
            let index = free.unwrap_or_else(|| {
                self.segments.push(None);
                self.segments.len() - 1
            });
            self.segments[index] = Some(segment);
            self.table.insert(key, index as u32);
        }
        self.forget_last();
        self.plan_expiry();
    }

    /// Processes what has arrived by now, then takes the segments of a chain out.
    pub(crate) fn remove_segments(&mut self, spi: u32, generation: u16) -> Vec<Segment> {
        self.drain();
        let mut removed = Vec::new();
        for index in 0..self.segments.len() {
            let is_its =
                |segment: &mut Segment| (segment.spi, segment.generation) == (spi, generation);
            if let Some(mut segment) = self.segments[index].take_if(is_its) {
                if segment.shaped_by.take().is_some() {
                    self.leave_shaper(index as u32, &mut segment);
                }
                self.table
                    .remove(Key::new(spi, generation, segment.first_position));
                removed.push(segment);
            }
        }
        self.forget_last();
        self.plan_expiry();
        removed
    }

    /// Has a function tell of the flows it knows; one that is not here leaves the page alone.
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

    /// Has the functions of a chain tell what they count by names of their own.
    pub(crate) fn read_counters(&self, spi: u32, generation: u16, told: &mut Vec<Told>) {
        let segments = self.segments.iter().flatten();
        for segment in segments.filter(|one| (one.spi, one.generation) == (spi, generation)) {
            for (function, position) in segment.functions.iter().zip(segment.first_position..) {
                function.read_counters(&mut |name, count| told.push((position, name, count)));
            }
        }
    }

    /// Processes the packets that wait in the ports now, but none that arrive meanwhile: it ends under load too.
    fn drain(&mut self) {
        for index in 0..self.ports.len() {
            let mut waiting = self.ports[index].as_ref().map_or(0, Port::waiting);
            while waiting > 0 {
                let received = self.serve(index);
                if received == 0 {
                    break;
                }
                waiting = waiting.saturating_sub(received);
            }
        }
    }

    /// One batch from each port. Returns how much there was to do: packets, and frames that came home.
    #[inline]
    pub fn turn(&mut self) -> u32 {
        let mut received = 0;
        for index in 0..self.ports.len() {
            received += self.serve(index);
        }
        received
    }

    /// Runs the receive poll of the devices that are busy-polled.
    #[inline]
    pub(crate) fn busy_poll(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.busy_poll();
        }
    }

    /// Gives up to `count` free frames to the process that is known as `holder`; returns how many.
    pub(crate) fn grant(&mut self, holder: Borrower, count: usize) -> usize {
        let frames = std::iter::from_fn(|| self.pool.take()).take(count);
        frames.map(|frame| self.memory.grant(frame, holder)).count()
    }

    /// Announces to all ports that this worker is about to sleep; returns whether it may. [`Self::disarm`] is to follow in any case.
    pub(crate) fn arm(&mut self) -> bool {
        let mut may = true;
        for port in self.ports.iter_mut().flatten() {
            may &= port.arm();
        }
        may
    }

    /// This worker is awake.
    pub(crate) fn disarm(&mut self) {
        self.ports.iter_mut().flatten().for_each(Port::disarm);
    }

    /// Sends what is stuck, takes back what was sent, refills the ports, and publishes how many frames are free. To be called when idle.
    pub fn settle(&mut self) {
        if !self.started {
            return;
        }
        let mut kicks = 0;
        for port in self.ports.iter_mut().flatten() {
            kicks += port.flush(self.memory);
        }
        self.counters.add(Counter::Kicks, kicks);
        self.recycle();
        self.counters
            .set(Counter::FreeFrames, self.pool.len() as u64);
        let invalid = self.ports().map(Port::invalid).sum();
        self.counters.set(Counter::Invalid, invalid);
    }

    /// Adds to a counter of the worker as a whole.
    pub(crate) fn count(&mut self, counter: Counter, n: u64) {
        self.counters.add(counter, n);
    }

    /// Whether a port needs attention though no packet arrives: it lacks frames, or holds packets that could not be sent.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Frames that are in no port.
    pub fn free_frames(&self) -> usize {
        self.pool.len()
    }

    fn forget_last(&mut self) {
        let key = self.last.0;
        self.last = (key, self.table.get(key));
    }
}
