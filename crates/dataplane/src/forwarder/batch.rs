//! Processes a batch: takes packets from a port, runs the functions, and transmits the packets at
//! the exits.

use myelin_functions::Batch;

use super::Forwarder;
use crate::emitter::FrameEmitter;
use crate::port::{Buffer, Port};
use crate::segment::{CalibratedClock, Exit, ExitTarget, Segment, encapsulate, encapsulate_reply};
use crate::segment_table::SegmentKey;
use crate::stats::Counter;

/// Shortest packet that a port transmits, bytes: an Ethernet header.
pub(super) const MIN_PACKET: u32 = 14;

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunResult {
    pub(super) segment: u32,
    pub(super) port: usize,
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) stamps: usize,
}

impl<'m, P: Port> Forwarder<'m, P> {
    /// Processes one batch from one port. Sends the packets first, then counts them and returns
    /// frames.
    #[inline]
    pub(crate) fn process_port(&mut self, index: usize) -> u32 {
        let Some(Some(port)) = self.ports.get_mut(index) else {
            return 0;
        };
        let arrived = port.poll_arrivals(self.batch_size);
        if arrived == 0 {
            return 0;
        }
        let taken = self.process_arrivals(index, arrived);
        let kicks = self.flush_run_ports();
        self.count_departures(taken, kicks);
        self.clear_batch();
        self.reclaim_and_refill();
        arrived
    }

    /// Divides the arrivals of a port into runs, and processes the runs. Returns the number of
    /// packets, without the empty frames that a ring returns.
    #[inline]
    fn process_arrivals(&mut self, ingress: usize, arrived: u32) -> u32 {
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
                self.drop_and_count(buffer, Counter::Malformed);
                continue;
            };
            let found = self.find_segment(SegmentKey::of(&meta));
            if found != run {
                self.end_run(ingress, run);
                run = found;
            }
            if found.is_none() {
                self.drop_and_count(buffer, Counter::UnknownChain);
                continue;
            }
            match self.memory.make_packet(buffer, meta) {
                Ok(packet) => {
                    taken += packet.segments() as u32 - 1;
                    self.batch.push(packet);
                }
                Err(buffer) => self.drop_and_count(buffer, Counter::Malformed),
            }
        }
        if let Some(Some(port)) = self.ports.get_mut(ingress) {
            port.release();
        }
        if let Some(segment) = run {
            self.process_run(ingress, segment);
        }
        taken
    }

    /// Ends a run in the middle of a batch. Releases the ring slots first, because the run may fill
    /// and flush a transmit ring.
    fn end_run(&mut self, ingress: usize, run: Option<u32>) {
        let Some(segment) = run else {
            return;
        };
        if let Some(Some(port)) = self.ports.get_mut(ingress) {
            port.release();
        }
        self.process_run(ingress, segment);
        self.clear_batch();
    }

    #[inline]
    fn find_segment(&mut self, key: SegmentKey) -> Option<u32> {
        if self.last_lookup.0 != key {
            self.last_lookup = (key, self.table.get(key));
        }
        self.last_lookup.1
    }

    #[cold]
    fn drop_and_count(&mut self, buffer: Buffer, reason: Counter) {
        self.pool.give(buffer.frame);
        self.counters.add(reason, 1);
    }

    /// Processes the run in `self.batch`. Puts the remaining packets into the transmit ring.
    #[inline]
    fn process_run(&mut self, ingress: usize, index: u32) {
        if self.batch.is_empty() {
            return;
        }
        self.run_segment(index, Some(ingress), |segment, batch, emitter, clock| {
            let sampled = segment.sample_now();
            segment.process(batch, emitter, clock, sampled);
        });
        let segment = self.segments.get_mut(index as usize);
        if let Some(Some(segment)) = segment
            && segment.has_stopped_timers()
        {
            let due_ns = segment.restart_timers((self.clock.read_ns)());
            self.next_timer_ns = self.next_timer_ns.min(due_ns);
        }
    }

    /// Calls `work` with a segment and `self.batch`, and puts the remaining packets into the
    /// transmit ring.
    #[inline]
    pub(super) fn run_segment<T: Default>(
        &mut self,
        index: u32,
        ingress: Option<usize>,
        work: impl FnOnce(
            &mut Segment,
            &mut Batch<'m>,
            &mut FrameEmitter<'_, 'm>,
            &CalibratedClock,
        ) -> T,
    ) -> T {
        let Some(Some(segment)) = self.segments.get_mut(index as usize) else {
            return T::default();
        };
        let mut emitter = FrameEmitter {
            memory: self.memory,
            pool: &mut self.pool,
            emitted: &mut self.emitted,
            emitted_count: 0,
            replies: &mut self.replies,
            lost: 0,
        };
        let outcome = work(segment, &mut self.batch, &mut emitter, &self.clock);
        if emitter.lost > 0 {
            self.counters.add(Counter::NoFrame, emitter.lost);
        }
        let (exit, ingress_port) = (segment.exit, segment.ingress_port(ingress));
        match segment.shaper_index {
            None => self.transmit_run(index, exit),
            Some(shaper) => self.shape_run(index, exit, shaper),
        }
        if !self.replies.is_empty() {
            self.send_replies(index, ingress_port);
        }
        outcome
    }

    /// Puts the replies of a run into the transmit ring of the chain's ingress port. The chain
    /// counts only lost replies.
    #[cold]
    fn send_replies(&mut self, segment: u32, ingress_port: Option<usize>) {
        let port = ingress_port.unwrap_or(usize::MAX);
        let sff_chain = self.segments[segment as usize]
            .as_ref()
            .filter(|segment| segment.is_behind_sff(port))
            .map(|segment| (segment.spi, segment.generation));
        let mut lost = 0;
        for mut buffer in self.replies.drain(..) {
            let fits = buffer.len >= MIN_PACKET
                && sff_chain.is_none_or(|chain| encapsulate_reply(self.memory, &mut buffer, chain));
            let unsent = match self.ports.get_mut(port) {
                Some(Some(port)) if fits => port.transmit(self.memory, buffer),
                _ => Err(buffer),
            };
            if let Err(buffer) = unsent {
                lost += 1;
                self.pool.give(buffer.frame);
            }
        }
        self.runs.push(RunResult {
            segment,
            port,
            sent: 0,
            lost,
            stamps: 0,
        });
    }

    /// Puts the run in `self.batch` into the transmit ring of its exit. Emitted packets can make a
    /// run longer than the ring. Flushes a full ring as long as a flush makes room.
    #[inline]
    fn transmit_run(&mut self, segment: u32, exit: Exit) {
        let first_stamp = self.stamps.len();
        let (mut sent, mut lost) = (0, 0);
        let mut port = self.ports.get_mut(exit.port).and_then(Option::as_mut);
        let mut is_stuck = false;
        for packet in self.batch.packets_mut() {
            let (stamp_ns, segments) = (packet.meta().stamp_ns, packet.segments());
            let mut fits = true;
            let buffer = match exit.target {
                ExitTarget::Egress => self.memory.recover_buffer(packet),
                ExitTarget::Kernel(position) | ExitTarget::Wire(position) => {
                    fits = encapsulate(packet, position);
                    self.memory.recover_buffer(packet)
                }
                ExitTarget::Stage(position) => {
                    packet.set_position(position);
                    let mut buffer = self.memory.recover_buffer(packet);
                    fits = self.memory.set_meta(&mut buffer, packet.meta());
                    buffer
                }
            };
            let unsent = match &mut port {
                Some(port) if fits && buffer.len >= MIN_PACKET => {
                    let sent = port.transmit_stamped(self.memory, buffer, stamp_ns);
                    sent.or_else(|buffer| {
                        if is_stuck || !port.can_make_room() {
                            return Err(buffer);
                        }
                        self.counters.add(Counter::Kicks, port.flush(self.memory));
                        port.reclaim(self.memory, &mut self.pool);
                        let unsent = port.transmit_stamped(self.memory, buffer, stamp_ns);
                        is_stuck = unsent.is_err();
                        unsent
                    })
                }
                _ => Err(buffer),
            };
            match unsent {
                Ok(()) => {
                    sent += segments;
                    if exit.target.leaves() {
                        self.stamps.push((stamp_ns, segments));
                    }
                }
                Err(buffer) => {
                    lost += segments;
                    self.pool.give(buffer.frame);
                }
            }
        }
        // Packets that continue in another process do not count as transmitted.
        if matches!(exit.target, ExitTarget::Stage(_)) {
            sent = 0;
        }
        self.runs.push(RunResult {
            segment,
            port: exit.port,
            sent,
            lost,
            stamps: self.stamps.len() - first_stamp,
        });
    }

    /// Sends the packets of the runs. Makes one system call per port and batch, unless the kernel
    /// takes fewer packets at a time. Returns the number of calls.
    #[inline]
    pub(super) fn flush_run_ports(&mut self) -> u64 {
        let mut kicks = 0;
        for run in &self.runs {
            if let Some(Some(port)) = self.ports.get_mut(run.port) {
                kicks += port.flush(self.memory);
            }
        }
        kicks
    }

    /// Counts the packets that left, and records their sojourn, which ends now (see
    /// [`stats`](crate::stats)).
    #[inline]
    pub(super) fn count_departures(&mut self, received: u32, kicks: u64) {
        let now = if self.stamps.is_empty() {
            0
        } else {
            (self.clock.read_ns)()
        };
        let (mut all_sent, mut all_lost) = (0, 0);
        let mut stamps = self.stamps.drain(..);
        for run in self.runs.drain(..) {
            all_sent += run.sent;
            all_lost += run.lost;
            let Some(Some(segment)) = self.segments.get(run.segment as usize) else {
                continue;
            };
            segment.counters.count_transmitted(run.sent, run.lost);
            for (stamp_ns, packets) in stamps.by_ref().take(run.stamps) {
                let ns = now.saturating_sub(stamp_ns);
                segment.counters.record_sojourn(ns, packets);
            }
        }
        self.counters.add(Counter::Received, received.into());
        self.counters.add(Counter::Transmitted, all_sent);
        self.counters.add(Counter::Kicks, kicks);
        if all_lost > 0 {
            self.counters.add(Counter::TransmitDrops, all_lost);
        }
    }

    /// Empties the batch and frees the frames of dropped packets.
    #[inline]
    pub(super) fn clear_batch(&mut self) {
        for packet in self.batch.dropped() {
            self.pool.give(self.memory.recover_buffer(packet).frame);
        }
        self.batch = std::mem::take(&mut self.batch).recycle();
    }

    /// Reclaims the frames of sent packets and refills the receive rings.
    #[inline]
    pub(super) fn reclaim_and_refill(&mut self) {
        let mut is_settled = true;
        for port in self.ports.iter_mut().flatten() {
            port.reclaim(self.memory, &mut self.pool);
            is_settled &= !port.is_backlogged();
        }
        for port in self.ports.iter_mut().flatten() {
            is_settled &= port.refill(self.memory, &mut self.pool);
        }
        self.has_pending_ports = !is_settled;
    }
}
