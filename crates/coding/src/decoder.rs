//! The decoder: forwards source packets and recovers lost ones.
//!
//! It keeps the source symbols around the newest one in a ring. A coded packet that covers missing
//! symbols gives an equation (`equations.rs`). Each further packet may solve some (`solving.rs`).

mod equations;
mod ring;
mod solving;

use std::collections::VecDeque;

use crate::coefficients::Ahead;
use crate::kernel::Kernel;
use crate::serial;
use crate::wire::{MAX_WINDOW, RepairId};
use equations::{Equations, MAX_ROWS};
use ring::Ring;

/// Largest lag of a late packet behind the newest. A larger lag means that the stream restarted.
const LATE_RANGE: u32 = 1 << 16;

/// After this many consecutive packets before the ring, the stream restarted there.
const LATE_RUN: u32 = 8;

/// The order in which packets leave the decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Each at its arrival or recovery.
    #[default]
    Immediate,
    /// By their numbers. A packet waits for earlier packets until they arrive, can no longer be
    /// recovered, or have timed out.
    InOrder,
}

/// What the caller must do with a received source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Deliver it now.
    Deliver,
    /// Nothing: the decoder stores it and delivers it later.
    Hold,
    /// Drop it: it was delivered or given up before, or is too long.
    Discard,
}

/// A packet that leaves the decoder's memory.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// Its number.
    pub esi: u32,
    /// The unit.
    pub adu: &'a [u8],
    /// Whether it was recovered; otherwise it was received and stored.
    pub recovered: bool,
}

/// Counters of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Source packets received, including dropped ones.
    pub source: u64,
    /// Coded packets received: repair and recoded packets.
    pub coded: u64,
    /// Coded packets without new information.
    pub redundant: u64,
    /// Source packets recovered.
    pub recovered: u64,
    /// Source packets given up: never delivered.
    pub lost: u64,
    /// Packets that lie wholly or partly before the ring, source packets that arrived after they
    /// were given up, and single packets with a number far away. All are dropped, because they may
    /// be foreign or damaged.
    pub late: u64,
    /// Source packets that were already known.
    pub duplicate: u64,
    /// Packets that exceed the longest length.
    pub oversized: u64,
    /// Recovered symbols without a valid unit, and coded packets that contradict the equations: a
    /// packet was forged or damaged. The decoder then drops all equations.
    pub corrupt: u64,
    /// Restarts of the stream: jumps of the numbers beyond the ring in two consecutive packets, and
    /// runs of 8 packets before the ring.
    pub reset: u64,
}

/// Recovers lost packets.
///
/// Memory, allocated by [`Decoder::new`]: `capacity` symbols of the longest length, and 65
/// equations, each with one such symbol and `capacity` coefficients.
#[derive(Debug)]
pub struct Decoder {
    delivery: Delivery,
    timeout_ns: u64,
    ring: Ring,
    equations: Equations,
    ahead: Box<Ahead>,
    /// Whether a first packet has arrived.
    started: bool,
    /// End of the packet that jumped, if each later packet has jumped too.
    jumped_to: Option<u32>,
    /// Consecutive packets before the ring.
    late_run: u32,
    /// Number behind the newest known source packet. The ring contains its `capacity` predecessors.
    next: u32,
    /// Numbers in the ring before the first packet: they do not count as lost.
    before_first: u32,
    /// In order: the next number to deliver.
    head: u32,
    /// In order: numbers of stored packets, and some that are no longer stored.
    held: VecDeque<u32>,
    /// The first number that later coded packets may cover, according to the latest one.
    covered_from: u32,
    /// Whether a recoded packet has arrived.
    is_recoded: bool,
    /// Immediate delivery: recovered packets that are not yet delivered.
    recovered: Vec<u32>,
    counters: Counters,
}

impl Decoder {
    /// Fewest source symbols a decoder keeps.
    pub const MIN_CAPACITY: usize = 2 * MAX_WINDOW;
    /// Most source symbols a decoder keeps.
    pub const MAX_CAPACITY: usize = 1 << 15;

    /// Makes a decoder for units of up to `max_len` bytes that keeps `capacity` of them: a power of
    /// two from [`MIN_CAPACITY`](Self::MIN_CAPACITY) to [`MAX_CAPACITY`](Self::MAX_CAPACITY). Other
    /// values are rounded and clamped.
    pub fn new(capacity: usize, max_len: usize) -> Self {
        let capacity = capacity
            .clamp(Self::MIN_CAPACITY, Self::MAX_CAPACITY)
            .next_power_of_two();
        Self {
            delivery: Delivery::Immediate,
            timeout_ns: u64::MAX,
            ring: Ring::new(capacity, max_len),
            equations: Equations::new(capacity, max_len),
            ahead: Box::new(Ahead::new()),
            started: false,
            jumped_to: None,
            late_run: 0,
            next: 0,
            before_first: 0,
            head: 0,
            // The oldest is in the ring, and so was each of the others when it came.
            held: VecDeque::with_capacity(2 * capacity),
            covered_from: 0,
            is_recoded: false,
            // A ring's turn may solve as many as there are equations, more than once.
            recovered: Vec::with_capacity(capacity + MAX_ROWS),
            counters: Counters::default(),
        }
    }

    /// Changes the order of delivery. In order, the decoder waits `timeout_ns` for a missing
    /// packet.
    pub fn tune(&mut self, delivery: Delivery, timeout_ns: u64) {
        if self.delivery != delivery {
            if self.delivery == Delivery::InOrder {
                // Stored packets leave with the next packet.
                let held = serial::range(self.head, self.next);
                self.recovered
                    .extend(held.filter(|&esi| self.ring.slot(esi).known));
            }
            self.delivery = delivery;
            self.head = self.next;
            self.held.clear();
            self.covered_from = self.next;
        }
        self.timeout_ns = timeout_ns;
    }

    /// Changes the kernel, for measurements.
    pub fn set_kernel(&mut self, kernel: Kernel) {
        self.equations.set_kernel(kernel);
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Adds a source packet, whose unit is given in parts. Passes packets that leave before it to
    /// `sink`. Call [`release`](Self::release) afterwards.
    pub fn source(
        &mut self,
        esi: u32,
        parts: &[&[u8]],
        now_ns: u64,
        sink: &mut dyn FnMut(Delivered<'_>),
    ) -> Arrival {
        self.counters.source += 1;
        if !self.started {
            self.start(esi, esi);
        }
        if !self.reach(esi, esi.wrapping_add(1), sink) {
            self.counters.late += 1;
            return Arrival::Discard;
        }
        let slot = self.ring.slot_mut(esi);
        if slot.known {
            self.counters.duplicate += 1;
            return Arrival::Discard;
        }
        if self.delivery == Delivery::InOrder && serial::before(esi, self.head) {
            self.counters.late += 1;
            return Arrival::Discard;
        }
        if slot.symbol.set(parts).is_none() {
            self.counters.oversized += 1;
            return Arrival::Discard;
        }
        slot.known = true;
        slot.recovered = false;
        slot.known_ns = now_ns;
        self.equations
            .substitute(esi, slot.symbol.bytes(), self.next);
        self.collect_solved(now_ns);
        match self.delivery {
            Delivery::Immediate => Arrival::Deliver,
            Delivery::InOrder if esi == self.head => {
                self.head = esi.wrapping_add(1);
                Arrival::Deliver
            }
            Delivery::InOrder => {
                self.hold(esi);
                Arrival::Hold
            }
        }
    }

    /// Adds a repair packet. Call [`release`](Self::release) afterwards.
    pub fn repair(
        &mut self,
        id: RepairId,
        symbol: &[u8],
        now_ns: u64,
        sink: &mut dyn FnMut(Delivered<'_>),
    ) {
        let mut all = [0; MAX_WINDOW];
        let count = usize::from(id.count).min(MAX_WINDOW);
        let missing = self.missing_in(id.first, count as u32, false, sink);
        if missing != 0 {
            self.ahead
                .generate_received(id.key, id.density, &mut all[..count]);
            self.combination(id.first, &all[..count], missing, symbol, now_ns);
        }
    }

    /// Adds a recoded packet: a combination of the source packets from `first`, one for each
    /// coefficient, at most [`MAX_WINDOW`]. Call [`release`](Self::release) afterwards.
    pub fn recoded(
        &mut self,
        first: u32,
        coefficients: &[u8],
        symbol: &[u8],
        now_ns: u64,
        sink: &mut dyn FnMut(Delivered<'_>),
    ) {
        let coefficients = &coefficients[..coefficients.len().min(MAX_WINDOW)];
        let missing = self.missing_in(first, coefficients.len() as u32, true, sink);
        if missing != 0 {
            self.combination(first, coefficients, missing, symbol, now_ns);
        }
    }

    /// Delivers all packets that can leave now. Call it after each packet, and periodically for
    /// delivery in order.
    pub fn release(&mut self, now_ns: u64, sink: &mut dyn FnMut(Delivered<'_>)) {
        match self.delivery {
            Delivery::Immediate => {
                for esi in self.recovered.drain(..) {
                    hand_out(&self.ring, esi, sink);
                }
            }
            Delivery::InOrder => self.release_in_order(now_ns, sink),
        }
    }

    fn release_in_order(&mut self, now_ns: u64, sink: &mut dyn FnMut(Delivered<'_>)) {
        while self.head != self.next {
            if self.ring.slot(self.head).known {
                hand_out(&self.ring, self.head, sink);
            } else if self.is_given_up(self.head, now_ns) {
                self.counters.lost += 1;
            } else {
                break;
            }
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Whether the decoder stops waiting for a missing packet: later coded packets do not cover it
    /// and the present ones do not suffice, or a packet behind it has timed out.
    fn is_given_up(&mut self, esi: u32, now_ns: u64) -> bool {
        if serial::before(esi, self.covered_from)
            && !self.equations.may_solve(esi, self.covered_from)
        {
            return true;
        }
        self.forget_delivered();
        self.held.front().is_some_and(|&oldest| {
            let known_ns = self.ring.slot(oldest).known_ns;
            now_ns.saturating_sub(known_ns) >= self.timeout_ns
        })
    }

    fn hold(&mut self, esi: u32) {
        self.forget_delivered();
        self.held.push_back(esi);
    }

    /// Removes numbers from the front of `held` that are no longer stored.
    fn forget_delivered(&mut self) {
        while let Some(&esi) = self.held.front()
            && serial::before(esi, self.head)
        {
            self.held.pop_front();
        }
    }

    /// The missing ones of the symbols that a coded packet is made of, the first by the lowest bit;
    /// moves on to where it is. Where there is none, the packet is of no use.
    fn missing_in(
        &mut self,
        first: u32,
        count: u32,
        is_recoded: bool,
        sink: &mut dyn FnMut(Delivered<'_>),
    ) -> u64 {
        self.counters.coded += 1;
        if count == 0 {
            self.counters.redundant += 1;
            return 0;
        }
        if !self.started {
            self.start(first, first.wrapping_add(count));
        }
        if !self.reach(first, first.wrapping_add(count), sink) {
            self.counters.late += 1;
            return 0;
        }
        // Windows only advance, so no later repair packet begins before this one. But a recoder may
        // combine any packets within the longest window of its newest one.
        let is_first_recoded = is_recoded && !self.is_recoded;
        self.is_recoded |= is_recoded;
        let from = if self.is_recoded {
            first.wrapping_add(count).wrapping_sub(MAX_WINDOW as u32)
        } else {
            first
        };
        if is_first_recoded || serial::before(self.covered_from, from) {
            self.covered_from = from;
        }
        let missing = self.ring.missing(first, count);
        self.counters.redundant += u64::from(missing == 0);
        missing
    }

    /// Starts with `first`, with the ring's end at `next`.
    fn start(&mut self, first: u32, next: u32) {
        self.started = true;
        self.jumped_to = None;
        self.late_run = 0;
        self.next = next;
        self.head = first;
        self.covered_from = first;
        self.is_recoded = false;
        self.before_first = self.ring.capacity() - next.wrapping_sub(first);
        self.ring.forget_all();
        self.equations.clear();
        self.recovered.clear();
        self.held.clear();
    }

    /// Advances the ring's end to `end` or later. Returns whether `first` is in the ring then, and
    /// not before it.
    ///
    /// A single packet far away may be foreign or damaged. So the decoder restarts only when a
    /// second consecutive packet comes from near there, or when packets before the ring continue.
    fn reach(&mut self, first: u32, end: u32, sink: &mut dyn FnMut(Delivered<'_>)) -> bool {
        if self.delivery == Delivery::Immediate {
            // After a change of the order, stored packets remain.
            self.release(0, sink);
        }
        let capacity = self.ring.capacity();
        let ahead = end.wrapping_sub(self.next).cast_signed();
        if ahead > capacity.cast_signed() || ahead < -LATE_RANGE.cast_signed() {
            let is_near = |before: u32| {
                // The same number twice may be one duplicated packet.
                end != before && end.wrapping_sub(before).wrapping_add(capacity) <= 2 * capacity
            };
            let is_confirmed = self.jumped_to.is_some_and(is_near);
            if is_confirmed {
                self.begin_anew(first, end, sink);
            } else {
                self.jumped_to = Some(end);
            }
            return is_confirmed;
        }
        for esi in serial::range(self.next, end).take(ahead.max(0) as usize) {
            self.leave(esi.wrapping_sub(capacity), sink);
            self.ring.slot_mut(esi).known = false;
            self.next = esi.wrapping_add(1);
        }
        if self.next.wrapping_sub(first) <= capacity {
            self.jumped_to = None;
            self.late_run = 0;
            return true;
        }
        self.late_run += 1;
        let is_anew = self.late_run == LATE_RUN;
        if is_anew {
            self.begin_anew(first, end, sink);
        }
        is_anew
    }

    /// Gives up all missing packets and restarts with `first`.
    fn begin_anew(&mut self, first: u32, end: u32, sink: &mut dyn FnMut(Delivered<'_>)) {
        self.counters.reset += 1;
        self.leave_all(sink);
        let (before, capacity) = (self.next, self.ring.capacity());
        self.start(first, end);
        let gap = first.wrapping_sub(before);
        if gap <= LATE_RANGE {
            // A long burst of losses. Of those in the ring, some may still come where packets need
            // no order.
            self.counters.lost += u64::from(match self.delivery {
                Delivery::Immediate => end.wrapping_sub(before).saturating_sub(capacity),
                Delivery::InOrder => gap,
            });
            self.before_first = 0;
        }
    }

    /// Removes a number from the ring.
    fn leave(&mut self, esi: u32, sink: &mut dyn FnMut(Delivered<'_>)) {
        let is_known = self.ring.slot(esi).known;
        if self.before_first > 0 {
            self.before_first -= 1;
        } else if self.delivery == Delivery::Immediate {
            self.counters.lost += u64::from(!is_known);
        } else if !serial::before(esi, self.head) {
            if is_known {
                hand_out(&self.ring, esi, sink);
            } else {
                self.counters.lost += 1;
            }
            self.head = esi.wrapping_add(1);
        }
        if !is_known {
            self.equations.forget(esi);
        }
    }

    /// Ends the stream: stored packets leave, missing ones are lost.
    fn leave_all(&mut self, sink: &mut dyn FnMut(Delivered<'_>)) {
        self.release(0, sink);
        let capacity = self.ring.capacity();
        for esi in serial::range(self.next.wrapping_sub(capacity), self.next) {
            self.leave(esi, sink);
        }
    }
}

fn hand_out(ring: &Ring, esi: u32, sink: &mut dyn FnMut(Delivered<'_>)) {
    let slot = ring.slot(esi);
    if let Some(adu) = slot.symbol.adu() {
        sink(Delivered {
            esi,
            adu,
            recovered: slot.recovered,
        });
    }
}
