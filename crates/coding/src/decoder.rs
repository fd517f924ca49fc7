//! The decoder: forwards source packets and recovers lost ones.
//!
//! The decoder keeps the latest source symbols in a ring. A coded packet that covers missing
//! symbols gives an equation (`equations.rs`). Each further packet may solve equations
//! (`solving.rs`).

mod equations;
mod ring;
mod solving;

use std::collections::VecDeque;

use crate::coefficients::CoefficientCache;
use crate::kernel::Kernel;
use crate::serial;
use crate::wire::{MAX_WINDOW, RepairId};
use equations::{Equations, MAX_ROWS};
use ring::Ring;

/// Maximum distance of a late packet's ESI behind the newest. A larger distance means that the
/// stream restarted.
const LATE_RANGE: u32 = 1 << 16;

/// The decoder restarts the stream after this many consecutive packets before the ring.
const LATE_RUN: u32 = 8;

/// The order in which packets leave the decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Each packet leaves at its arrival or recovery.
    #[default]
    Immediate,
    /// Packets leave in the order of their encoding symbol identifiers (ESIs). A packet waits for
    /// earlier packets until they arrive, can no longer be recovered, or have timed out.
    InOrder,
}

/// What the caller must do with a received source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAction {
    /// Deliver the packet now.
    Deliver,
    /// Do nothing: the decoder stores the packet and delivers it later.
    Store,
    /// Drop the packet: the decoder already delivered it or counted it as lost, or it is too long.
    Drop,
}

/// A packet that leaves the decoder's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredPacket<'a> {
    /// The packet's encoding symbol identifier.
    pub esi: u32,
    /// The unit.
    pub adu: &'a [u8],
    /// Whether the packet was recovered. Otherwise it was received and stored.
    pub recovered: bool,
}

/// Counters of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderCounters {
    /// Source packets received, including dropped ones.
    pub source: u64,
    /// Coded packets received: repair and recoded packets.
    pub coded: u64,
    /// Coded packets without new information.
    pub redundant: u64,
    /// Source packets recovered.
    pub recovered: u64,
    /// Source packets that were never delivered.
    pub lost: u64,
    /// Packets that lie wholly or partly before the ring, and source packets that arrived after
    /// they counted as lost. Also single packets with an ESI far from the others, which may be
    /// foreign or damaged. The decoder drops all these packets.
    pub late: u64,
    /// Source packets that the decoder already had.
    pub duplicate: u64,
    /// Packets that exceed the maximum length.
    pub oversized: u64,
    /// Recovered symbols without a valid unit, and coded packets that contradict the equations: a
    /// packet was forged or damaged. The decoder then drops all equations.
    pub corrupt: u64,
    /// Restarts of the stream: two consecutive packets with ESIs beyond the ring, or 8 consecutive
    /// packets before the ring.
    pub reset: u64,
}

/// Recovers lost packets.
///
/// [`Decoder::new`] allocates the memory: `capacity` symbols of the maximum length, and 65
/// equations, each with one such symbol and `capacity` coefficients.
#[derive(Debug)]
pub struct Decoder {
    delivery: Delivery,
    timeout_ns: u64,
    ring: Ring,
    equations: Equations,
    coefficient_cache: Box<CoefficientCache>,
    /// Whether a first packet has arrived.
    has_started: bool,
    /// ESI after the first packet far from the ring, if all later packets were far away too.
    jumped_to: Option<u32>,
    /// Consecutive packets before the ring.
    late_run: u32,
    /// ESI after the newest source packet. The ring contains its `capacity` predecessors.
    next: u32,
    /// Number of ESIs in the ring before the first packet, which do not count as lost.
    before_first: u32,
    /// For delivery in order: the next ESI to deliver.
    next_delivery: u32,
    /// For delivery in order: ESIs of stored packets, and of some delivered packets.
    stored: VecDeque<u32>,
    /// The first ESI that later coded packets may cover, according to the latest coded packet.
    covered_from: u32,
    /// Whether a recoded packet has arrived.
    is_recoded: bool,
    /// For immediate delivery: ESIs of recovered packets that are not yet delivered.
    recovered: Vec<u32>,
    counters: DecoderCounters,
}

impl Decoder {
    /// Minimum number of source symbols in the ring.
    pub const MIN_CAPACITY: usize = 2 * MAX_WINDOW;
    /// Maximum number of source symbols in the ring.
    pub const MAX_CAPACITY: usize = 1 << 15;

    /// Makes a decoder that keeps `capacity` units of up to `max_len` bytes. `capacity` is a power
    /// of two from [`MIN_CAPACITY`](Self::MIN_CAPACITY) to [`MAX_CAPACITY`](Self::MAX_CAPACITY).
    /// Other values are rounded and clamped.
    pub fn new(capacity: usize, max_len: usize) -> Self {
        let capacity = capacity
            .clamp(Self::MIN_CAPACITY, Self::MAX_CAPACITY)
            .next_power_of_two();
        Self {
            delivery: Delivery::Immediate,
            timeout_ns: u64::MAX,
            ring: Ring::new(capacity, max_len),
            equations: Equations::new(capacity, max_len),
            coefficient_cache: Box::new(CoefficientCache::new()),
            has_started: false,
            jumped_to: None,
            late_run: 0,
            next: 0,
            before_first: 0,
            next_delivery: 0,
            // At most `capacity` stored packets, and as many delivered packets.
            stored: VecDeque::with_capacity(2 * capacity),
            covered_from: 0,
            is_recoded: false,
            // One packet may recover the missing packets of the whole ring and of all equations.
            recovered: Vec::with_capacity(capacity + MAX_ROWS),
            counters: DecoderCounters::default(),
        }
    }

    /// Changes the delivery mode. With delivery in order, the decoder waits `timeout_ns` for a
    /// missing packet.
    pub fn configure(&mut self, delivery: Delivery, timeout_ns: u64) {
        if self.delivery != delivery {
            if self.delivery == Delivery::InOrder {
                // Stored packets leave with the next packet.
                let stored = serial::range(self.next_delivery, self.next);
                self.recovered
                    .extend(stored.filter(|&esi| self.ring.slot(esi).is_known));
            }
            self.delivery = delivery;
            self.next_delivery = self.next;
            self.stored.clear();
            self.covered_from = self.next;
        }
        self.timeout_ns = timeout_ns;
    }

    /// Changes the kernel. For measurements.
    pub fn set_kernel(&mut self, kernel: Kernel) {
        self.equations.set_kernel(kernel);
    }

    /// Returns the counters.
    pub fn counters(&self) -> &DecoderCounters {
        &self.counters
    }

    /// Adds a source packet, whose unit is given in parts. Passes packets that leave before this
    /// packet to `sink`. Call [`deliver`](Self::deliver) afterwards.
    pub fn add_source(
        &mut self,
        esi: u32,
        parts: &[&[u8]],
        now_ns: u64,
        sink: &mut dyn FnMut(DeliveredPacket<'_>),
    ) -> SourceAction {
        self.counters.source += 1;
        if !self.has_started {
            self.start(esi, esi);
        }
        if !self.advance_to(esi, esi.wrapping_add(1), sink) {
            self.counters.late += 1;
            return SourceAction::Drop;
        }
        let slot = self.ring.slot_mut(esi);
        if slot.is_known {
            self.counters.duplicate += 1;
            return SourceAction::Drop;
        }
        if self.delivery == Delivery::InOrder && serial::is_before(esi, self.next_delivery) {
            self.counters.late += 1;
            return SourceAction::Drop;
        }
        if slot.symbol.set_unit(parts).is_none() {
            self.counters.oversized += 1;
            return SourceAction::Drop;
        }
        slot.is_known = true;
        slot.is_recovered = false;
        slot.known_ns = now_ns;
        self.equations
            .substitute(esi, slot.symbol.bytes(), self.next);
        self.collect_solved(now_ns);
        match self.delivery {
            Delivery::Immediate => SourceAction::Deliver,
            Delivery::InOrder if esi == self.next_delivery => {
                self.next_delivery = esi.wrapping_add(1);
                SourceAction::Deliver
            }
            Delivery::InOrder => {
                self.store_for_later(esi);
                SourceAction::Store
            }
        }
    }

    /// Adds a repair packet. Call [`deliver`](Self::deliver) afterwards.
    pub fn add_repair(
        &mut self,
        id: RepairId,
        symbol: &[u8],
        now_ns: u64,
        sink: &mut dyn FnMut(DeliveredPacket<'_>),
    ) {
        let mut all = [0; MAX_WINDOW];
        let count = usize::from(id.count).min(MAX_WINDOW);
        let missing = self.missing_symbols(id.first, count as u32, false, sink);
        if missing != 0 {
            self.coefficient_cache
                .generate_received(id.key, id.density, &mut all[..count]);
            self.add_combination(id.first, &all[..count], missing, symbol, now_ns);
        }
    }

    /// Adds a recoded packet: a combination of the source packets from `first` on, with one
    /// coefficient for each, at most [`MAX_WINDOW`]. Call [`deliver`](Self::deliver) afterwards.
    pub fn add_recoded(
        &mut self,
        first: u32,
        coefficients: &[u8],
        symbol: &[u8],
        now_ns: u64,
        sink: &mut dyn FnMut(DeliveredPacket<'_>),
    ) {
        let coefficients = &coefficients[..coefficients.len().min(MAX_WINDOW)];
        let missing = self.missing_symbols(first, coefficients.len() as u32, true, sink);
        if missing != 0 {
            self.add_combination(first, coefficients, missing, symbol, now_ns);
        }
    }

    /// Delivers all packets that can leave now. Call this method after each packet, and also
    /// periodically for delivery in order.
    pub fn deliver(&mut self, now_ns: u64, sink: &mut dyn FnMut(DeliveredPacket<'_>)) {
        match self.delivery {
            Delivery::Immediate => {
                for esi in self.recovered.drain(..) {
                    deliver_slot(&self.ring, esi, sink);
                }
            }
            Delivery::InOrder => self.deliver_in_order(now_ns, sink),
        }
    }

    fn deliver_in_order(&mut self, now_ns: u64, sink: &mut dyn FnMut(DeliveredPacket<'_>)) {
        while self.next_delivery != self.next {
            if self.ring.slot(self.next_delivery).is_known {
                deliver_slot(&self.ring, self.next_delivery, sink);
            } else if self.is_lost(self.next_delivery, now_ns) {
                self.counters.lost += 1;
            } else {
                break;
            }
            self.next_delivery = self.next_delivery.wrapping_add(1);
        }
    }

    /// Returns whether the decoder stops waiting for a missing packet. That is so if the equations
    /// cannot solve the packet and no later coded packet covers it, or if a later stored packet has
    /// timed out.
    fn is_lost(&mut self, esi: u32, now_ns: u64) -> bool {
        if serial::is_before(esi, self.covered_from)
            && !self.equations.may_solve(esi, self.covered_from)
        {
            return true;
        }
        self.forget_delivered();
        self.stored.front().is_some_and(|&oldest| {
            let known_ns = self.ring.slot(oldest).known_ns;
            now_ns.saturating_sub(known_ns) >= self.timeout_ns
        })
    }

    fn store_for_later(&mut self, esi: u32) {
        self.forget_delivered();
        self.stored.push_back(esi);
    }

    /// Removes delivered packets from the front of `stored`.
    fn forget_delivered(&mut self) {
        while let Some(&esi) = self.stored.front()
            && serial::is_before(esi, self.next_delivery)
        {
            self.stored.pop_front();
        }
    }

    /// Advances the ring to a coded packet that combines `count` symbols. Returns the mask of the
    /// missing symbols among them. Bit 0 is `first`. The mask is 0 if the packet is useless.
    fn missing_symbols(
        &mut self,
        first: u32,
        count: u32,
        is_recoded: bool,
        sink: &mut dyn FnMut(DeliveredPacket<'_>),
    ) -> u64 {
        self.counters.coded += 1;
        if count == 0 {
            self.counters.redundant += 1;
            return 0;
        }
        if !self.has_started {
            self.start(first, first.wrapping_add(count));
        }
        if !self.advance_to(first, first.wrapping_add(count), sink) {
            self.counters.late += 1;
            return 0;
        }
        // Windows only advance, so no later repair packet begins before this one. But a recoder may
        // combine any packets within the maximum window before its newest packet.
        let is_first_recoded = is_recoded && !self.is_recoded;
        self.is_recoded |= is_recoded;
        let from = if self.is_recoded {
            first.wrapping_add(count).wrapping_sub(MAX_WINDOW as u32)
        } else {
            first
        };
        if is_first_recoded || serial::is_before(self.covered_from, from) {
            self.covered_from = from;
        }
        let missing = self.ring.missing_mask(first, count);
        self.counters.redundant += u64::from(missing == 0);
        missing
    }

    /// Starts a stream at `first`, with the ring's end at `next`.
    fn start(&mut self, first: u32, next: u32) {
        self.has_started = true;
        self.jumped_to = None;
        self.late_run = 0;
        self.next = next;
        self.next_delivery = first;
        self.covered_from = first;
        self.is_recoded = false;
        self.before_first = self.ring.capacity() - next.wrapping_sub(first);
        self.ring.mark_all_missing();
        self.equations.clear();
        self.recovered.clear();
        self.stored.clear();
    }

    /// Advances the ring's end to `end` or later. Returns whether `first` is then in the ring.
    ///
    /// A single packet far from the ring may be foreign or damaged. So the decoder restarts only in
    /// two cases: a second consecutive packet has an ESI near the first one, or eight consecutive
    /// packets lie before the ring.
    fn advance_to(
        &mut self,
        first: u32,
        end: u32,
        sink: &mut dyn FnMut(DeliveredPacket<'_>),
    ) -> bool {
        if self.delivery == Delivery::Immediate {
            // Stored packets remain after a change of the delivery mode.
            self.deliver(0, sink);
        }
        let capacity = self.ring.capacity();
        let ahead = end.wrapping_sub(self.next).cast_signed();
        if ahead > capacity.cast_signed() || ahead < -LATE_RANGE.cast_signed() {
            let is_near = |before: u32| {
                // The same ESI twice may be one duplicated packet.
                end != before && end.wrapping_sub(before).wrapping_add(capacity) <= 2 * capacity
            };
            let is_confirmed = self.jumped_to.is_some_and(is_near);
            if is_confirmed {
                self.restart(first, end, sink);
            } else {
                self.jumped_to = Some(end);
            }
            return is_confirmed;
        }
        for esi in serial::range(self.next, end).take(ahead.max(0) as usize) {
            self.evict(esi.wrapping_sub(capacity), sink);
            self.ring.slot_mut(esi).is_known = false;
            self.next = esi.wrapping_add(1);
        }
        if self.next.wrapping_sub(first) <= capacity {
            self.jumped_to = None;
            self.late_run = 0;
            return true;
        }
        self.late_run += 1;
        let is_restart = self.late_run == LATE_RUN;
        if is_restart {
            self.restart(first, end, sink);
        }
        is_restart
    }

    /// Counts all missing packets as lost and restarts with `first`.
    fn restart(&mut self, first: u32, end: u32, sink: &mut dyn FnMut(DeliveredPacket<'_>)) {
        self.counters.reset += 1;
        self.evict_all(sink);
        let (before, capacity) = (self.next, self.ring.capacity());
        self.start(first, end);
        let gap = first.wrapping_sub(before);
        if gap <= LATE_RANGE {
            // The gap is a long burst of losses. With immediate delivery, late packets may still
            // arrive in the ring.
            self.counters.lost += u64::from(match self.delivery {
                Delivery::Immediate => end.wrapping_sub(before).saturating_sub(capacity),
                Delivery::InOrder => gap,
            });
            self.before_first = 0;
        }
    }

    /// Removes a source packet from the ring.
    fn evict(&mut self, esi: u32, sink: &mut dyn FnMut(DeliveredPacket<'_>)) {
        let is_known = self.ring.slot(esi).is_known;
        if self.before_first > 0 {
            self.before_first -= 1;
        } else if self.delivery == Delivery::Immediate {
            self.counters.lost += u64::from(!is_known);
        } else if !serial::is_before(esi, self.next_delivery) {
            if is_known {
                deliver_slot(&self.ring, esi, sink);
            } else {
                self.counters.lost += 1;
            }
            self.next_delivery = esi.wrapping_add(1);
        }
        if !is_known {
            self.equations.remove_equations_with(esi);
        }
    }

    /// Ends the stream: delivers stored packets and counts missing packets as lost.
    fn evict_all(&mut self, sink: &mut dyn FnMut(DeliveredPacket<'_>)) {
        self.deliver(0, sink);
        let capacity = self.ring.capacity();
        for esi in serial::range(self.next.wrapping_sub(capacity), self.next) {
            self.evict(esi, sink);
        }
    }
}

fn deliver_slot(ring: &Ring, esi: u32, sink: &mut dyn FnMut(DeliveredPacket<'_>)) {
    let slot = ring.slot(esi);
    if let Some(adu) = slot.symbol.adu() {
        sink(DeliveredPacket {
            esi,
            adu,
            recovered: slot.is_recovered,
        });
    }
}
