//! The service function forwarder (RFC 7665): takes packets from ports, runs them through their segment to completion, transmits them.
//!
//! One pass over a batch, no locks, no allocation once the vectors have grown, no dynamic call but one per function and run of packets. A *run*
//! is the longest row of packets in a batch that wait at the same position of the same chain.

use std::sync::Arc;

use myelin_functions::{Batch, FlowPage, Packet, States};

use crate::chain::UserChain;
use crate::chain_table::{ChainTable, Key};
use crate::clock::monotonic_ns;
use crate::emitter::FrameEmitter;
use crate::error::Error;
use crate::port::{Buffer, FramePool, Port};
use crate::segment::{Exit, Onward, Segment, Timer, encapsulate, encapsulate_reply};
use crate::stats::{Counter, Stats, WorkerCounters};
use crate::umem::{Borrower, FrameMemory};

/// Shortest packet a port transmits, bytes: an Ethernet header.
const MIN_PACKET: u32 = 14;

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
    // Emptied and reused.
    batch: Batch<'m>,
    emitted: Vec<Packet<'m>>,
    replies: Vec<Buffer>,
    runs: Vec<Run>,
    /// Front-door stamps of the packets that leave the chain in this batch, run by run.
    stamps: Vec<u64>,
}

/// What became of a run.
#[derive(Debug, Clone, Copy)]
struct Run {
    segment: u32,
    port: usize,
    sent: u64,
    lost: u64,
    stamps: usize,
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
    pub fn deploy(&mut self, chain: &UserChain, stats: &mut Stats) -> Result<(), Error> {
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

    /// Takes a generation of a chain out, after the packets that have arrived are processed.
    pub fn undeploy(&mut self, spi: u32, generation: u16, stats: &mut Stats) {
        self.remove_segments(spi, generation);
        stats.release(spi, generation);
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
        for segment in segments {
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
    }

    /// Processes what has arrived by now, then takes the segments of a chain out.
    pub(crate) fn remove_segments(&mut self, spi: u32, generation: u16) -> Vec<Segment> {
        self.drain();
        let mut removed = Vec::new();
        for slot in &mut self.segments {
            if let Some(segment) =
                slot.take_if(|segment| (segment.spi, segment.generation) == (spi, generation))
            {
                self.table
                    .remove(Key::new(spi, generation, segment.first_position));
                removed.push(segment);
            }
        }
        self.forget_last();
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

    /// One batch from one port. What has been processed leaves before anything is counted or put in order.
    #[inline]
    fn serve(&mut self, index: usize) -> u32 {
        let Some(Some(port)) = self.ports.get_mut(index) else {
            return 0;
        };
        let arrived = port.arrived(self.batch_size);
        if arrived == 0 {
            return 0;
        }
        let taken = self.process(index, arrived);
        let kicks = self.send();
        self.account(taken, kicks);
        self.clear_batch();
        self.recycle();
        arrived
    }

    /// Sorts the arrivals of a port into runs and processes these. Returns how many were packets: over a ring frames come home without one.
    #[inline]
    fn process(&mut self, ingress: usize, arrived: u32) -> u32 {
        let mut run = None;
        let mut taken = 0;
        for _ in 0..arrived {
            let Some(Some(port)) = self.ports.get_mut(ingress) else {
                return taken;
            };
            let Some(mut buffer) = port.take(self.memory) else {
                continue;
            };
            taken += 1;
            let Some(meta) = self.memory.meta(&mut buffer) else {
                self.refuse(buffer, Counter::Malformed);
                continue;
            };
            let found = self.look_up(Key::of(&meta));
            if found != run {
                self.change_run(ingress, run);
                run = found;
            }
            if found.is_none() {
                self.refuse(buffer, Counter::UnknownChain);
                continue;
            }
            match self.memory.open(buffer, meta) {
                Ok(packet) => self.batch.push(packet),
                Err(buffer) => self.refuse(buffer, Counter::Malformed),
            }
        }
        if let Some(Some(port)) = self.ports.get_mut(ingress) {
            port.release();
        }
        if let Some(segment) = run {
            self.finish_run(ingress, segment);
        }
        taken
    }

    /// Ends a run in the middle of a batch. The slots of what was taken so far are released: ending it may fill a transmit ring, which flushes it.
    fn change_run(&mut self, ingress: usize, run: Option<u32>) {
        let Some(segment) = run else {
            return;
        };
        if let Some(Some(port)) = self.ports.get_mut(ingress) {
            port.release();
        }
        self.finish_run(ingress, segment);
        self.clear_batch();
    }

    #[inline]
    fn look_up(&mut self, key: Key) -> Option<u32> {
        if self.last.0 != key {
            self.last = (key, self.table.get(key));
        }
        self.last.1
    }

    #[cold]
    fn refuse(&mut self, buffer: Buffer, reason: Counter) {
        self.pool.give(buffer.frame);
        self.counters.add(reason, 1);
    }

    /// Takes the run in `self.batch` through its functions and puts what is left of it into the transmit ring.
    #[inline]
    fn finish_run(&mut self, ingress: usize, index: u32) {
        let Some(Some(segment)) = self.segments.get_mut(index as usize) else {
            return;
        };
        if self.batch.is_empty() {
            return;
        }
        let mut emitter = FrameEmitter {
            memory: self.memory,
            pool: &mut self.pool,
            emitted: &mut self.emitted,
            replies: &mut self.replies,
            lost: 0,
        };
        let sampled = segment.sample_now();
        segment.process(&mut self.batch, &mut emitter, &self.timer, sampled);
        if emitter.lost > 0 {
            self.counters.add(Counter::NoFrame, emitter.lost);
        }
        let (exit, entrance) = (segment.exit, segment.entrance(ingress));
        self.leave(index, exit);
        if !self.replies.is_empty() {
            self.send_back(index, entrance);
        }
    }

    /// Puts what the run sends back to its senders into the transmit ring of the port where the chain takes packets in. The chain does not count
    /// it as its own, but what finds no room.
    #[cold]
    fn send_back(&mut self, segment: u32, entrance: Option<usize>) {
        let port = entrance.unwrap_or(usize::MAX);
        let behind = self.segments[segment as usize]
            .as_ref()
            .filter(|segment| segment.is_behind_forwarder(port))
            .map(|segment| (segment.spi, segment.generation));
        let mut lost = 0;
        for mut buffer in self.replies.drain(..) {
            let fits = buffer.len >= MIN_PACKET
                && behind.is_none_or(|chain| encapsulate_reply(self.memory, &mut buffer, chain));
            let unsent = match self.ports.get_mut(port) {
                Some(Some(port)) if fits => port.transmit(self.memory, buffer),
                _ => Err(buffer),
            };
            if let Err(buffer) = unsent {
                lost += 1;
                self.pool.give(buffer.frame);
            }
        }
        self.runs.push(Run {
            segment,
            port,
            sent: 0,
            lost,
            stamps: 0,
        });
    }

    /// Puts the run in `self.batch` into the transmit ring of its exit.
    #[inline]
    fn leave(&mut self, segment: u32, exit: Exit) {
        let first_stamp = self.stamps.len();
        let (mut sent, mut lost) = (0, 0);
        let mut port = self.ports.get_mut(exit.port).and_then(Option::as_mut);
        let mut made_room = false;
        for packet in self.batch.packets_mut() {
            let stamp_ns = packet.meta().stamp_ns;
            let mut fits = true;
            let buffer = match exit.onward {
                Onward::Out => self.memory.close(packet),
                Onward::Kernel(position) => {
                    fits = encapsulate(packet, position);
                    self.memory.close(packet)
                }
                Onward::Stage(position) => {
                    packet.set_position(position);
                    let mut buffer = self.memory.close(packet);
                    fits = self.memory.set_meta(&mut buffer, packet.meta());
                    buffer
                }
            };
            let unsent = match &mut port {
                Some(port) if fits && buffer.len >= MIN_PACKET => {
                    port.transmit(self.memory, buffer).or_else(|buffer| {
                        if made_room {
                            return Err(buffer);
                        }
                        made_room = true;
                        self.counters.add(Counter::Kicks, port.flush(self.memory));
                        port.reclaim(self.memory, &mut self.pool);
                        port.transmit(self.memory, buffer)
                    })
                }
                _ => Err(buffer),
            };
            match unsent {
                Ok(()) => {
                    sent += 1;
                    if exit.onward == Onward::Out {
                        self.stamps.push(stamp_ns);
                    }
                }
                Err(buffer) => {
                    lost += 1;
                    self.pool.give(buffer.frame);
                }
            }
        }
        // A packet that goes on in another process has not left.
        if matches!(exit.onward, Onward::Stage(_)) {
            sent = 0;
        }
        self.runs.push(Run {
            segment,
            port: exit.port,
            sent,
            lost,
            stamps: self.stamps.len() - first_stamp,
        });
    }

    /// Hands over what the runs transmitted: one system call a port and batch, unless the kernel takes less at a time.
    #[inline]
    fn send(&mut self) -> u64 {
        let mut kicks = 0;
        for run in &self.runs {
            if let Some(Some(port)) = self.ports.get_mut(run.port) {
                kicks += port.flush(self.memory);
            }
        }
        kicks
    }

    /// Counts what has left; the sojourn of a packet ends here (see [`stats`](crate::stats)).
    #[inline]
    fn account(&mut self, received: u32, kicks: u64) {
        let now = if self.stamps.is_empty() {
            0
        } else {
            (self.timer.clock)()
        };
        let (mut all_sent, mut all_lost) = (0, 0);
        let mut stamps = self.stamps.drain(..);
        for run in self.runs.drain(..) {
            all_sent += run.sent;
            all_lost += run.lost;
            let Some(Some(segment)) = self.segments.get(run.segment as usize) else {
                continue;
            };
            segment.counters.transmitted(run.sent, run.lost);
            for stamp_ns in stamps.by_ref().take(run.stamps) {
                segment.counters.sojourn(now.saturating_sub(stamp_ns));
            }
        }
        self.counters.add(Counter::Received, received.into());
        self.counters.add(Counter::Transmitted, all_sent);
        self.counters.add(Counter::Kicks, kicks);
        if all_lost > 0 {
            self.counters.add(Counter::TransmitDrops, all_lost);
        }
    }

    /// Empties the batch: what was transmitted is the port's, what was dropped is free.
    #[inline]
    fn clear_batch(&mut self) {
        for packet in self.batch.dropped() {
            self.pool.give(self.memory.close(packet).frame);
        }
        self.batch = std::mem::take(&mut self.batch).recycle();
    }

    /// Moves frames from what was sent to where packets are received.
    #[inline]
    fn recycle(&mut self) {
        let mut settled = true;
        for port in self.ports.iter_mut().flatten() {
            port.reclaim(self.memory, &mut self.pool);
            settled &= !port.is_backlogged();
        }
        for port in self.ports.iter_mut().flatten() {
            settled &= port.refill(self.memory, &mut self.pool);
        }
        self.unsettled = !settled;
    }
}

#[cfg(test)]
mod tests;
