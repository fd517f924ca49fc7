//! The shaper of a chain: a token bucket and a queue.
//!
//! A packet that conforms leaves at once if no packet waits. Other packets wait in the order of
//! arrival until the bucket has enough credit. The shaper computes the departure time on arrival.
//! If the wait would be too long, the shaper drops the packet at once.
//!
//! The shaper checks the bucket again at each departure, because the worker may run late. Late
//! packets never leave faster than the profile, with one exception: a packet that is late by less
//! than the tolerance counts as on time.

use std::collections::VecDeque;

use myelin_packet::traffic::TokenBucket;
use myelin_spec::Shaping;
use myelin_spec::sla::MAX_SHAPER_QUEUE;

use crate::port::Buffer;

/// A waiting packet.
#[derive(Debug)]
pub(crate) struct WaitingPacket {
    /// Index of the segment, which has the packet's counters.
    pub(crate) segment: u32,
    /// Index of the egress port.
    pub(crate) port: usize,
    /// The packet, ready to transmit.
    pub(crate) buffer: Buffer,
    /// Length that the profile counts, bytes. Excludes the NSH header for a kernel function.
    pub(crate) bytes: u32,
    /// The front-door stamp, if the packet leaves the chain at this exit.
    pub(crate) stamp_ns: Option<u64>,
    /// Arrival time, CLOCK_MONOTONIC, ns.
    pub(crate) arrived_ns: u64,
}

/// An entry of the queue.
#[derive(Debug)]
struct QueueEntry {
    waiting: WaitingPacket,
    /// Departure time if the worker is never late, ns.
    planned_ns: u64,
}

/// The decision for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShaperDecision {
    /// The packet leaves now.
    Leave,
    /// The packet waits. Pass the packet to [`Shaper::push`].
    Wait,
    /// Drop the packet.
    Drop(ShaperDrop),
}

/// The reason to drop a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShaperDrop {
    /// The queue is full, or the worker has no free frame.
    Full,
    /// The packet would wait longer than allowed.
    Late,
    /// The packet is larger than the burst, so it never conforms.
    Big,
}

/// The shaper of one chain, for all its generations.
#[derive(Debug)]
pub(crate) struct Shaper {
    shaping: Shaping,
    /// The bucket after the departures so far.
    bucket: TokenBucket,
    /// The bucket after all waiting packets have left on time.
    bucket_after_queue: TokenBucket,
    /// Delay of the queue against the planned departures, ns.
    late_ns: u64,
    queue: VecDeque<QueueEntry>,
    /// Time when the first packet may leave, ns; `u64::MAX` if no packet waits.
    due_ns: u64,
}

impl Shaper {
    /// Makes a shaper with a full bucket.
    pub(crate) fn new(shaping: Shaping) -> Self {
        let bucket = TokenBucket::new(&shaping.profile());
        Self {
            shaping,
            bucket,
            bucket_after_queue: bucket,
            late_ns: 0,
            // Room for the longest queue, because a later change must not allocate.
            queue: VecDeque::with_capacity(MAX_SHAPER_QUEUE as usize),
            due_ns: u64::MAX,
        }
    }

    /// Returns the current settings.
    pub(crate) fn shaping(&self) -> &Shaping {
        &self.shaping
    }

    /// Returns when the first packet of the queue may leave, ns; `u64::MAX` if no packet waits.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Decides on a packet of `bytes` that arrives now. Takes the credit of a packet that leaves.
    /// Pass a packet that waits to [`Self::push`].
    #[inline]
    pub(crate) fn decide(&mut self, now_ns: u64, bytes: u32) -> ShaperDecision {
        if self.queue.is_empty() {
            if self.bucket.take(now_ns, 1, bytes.into()) {
                return ShaperDecision::Leave;
            }
            self.bucket_after_queue = self.bucket;
            self.late_ns = 0;
        }
        self.decide_to_wait(now_ns, bytes)
    }

    /// Decides on a packet that does not leave at once.
    fn decide_to_wait(&self, now_ns: u64, bytes: u32) -> ShaperDecision {
        let Some(planned_ns) = self.plan_departure(now_ns, bytes) else {
            return ShaperDecision::Drop(ShaperDrop::Big);
        };
        let limit = self.shaping.queue.min(MAX_SHAPER_QUEUE) as usize;
        if self.queue.len() >= limit {
            return ShaperDecision::Drop(ShaperDrop::Full);
        }
        let wait_ns = planned_ns
            .saturating_add(self.late_ns)
            .saturating_sub(now_ns);
        if wait_ns > self.shaping.delay_ns {
            return ShaperDecision::Drop(ShaperDrop::Late);
        }
        ShaperDecision::Wait
    }

    /// Returns when one more packet would leave if no packet were late; `None` if the packet never
    /// conforms.
    fn plan_departure(&self, now_ns: u64, bytes: u32) -> Option<u64> {
        let eligible_ns = self.bucket_after_queue.eligible_ns(1, bytes.into())?;
        Some(eligible_ns.max(now_ns.saturating_sub(self.late_ns)))
    }

    /// Queues a packet after [`ShaperDecision::Wait`], with the same `now_ns`.
    pub(crate) fn push(&mut self, now_ns: u64, waiting: WaitingPacket) {
        let bytes = waiting.bytes;
        let planned_ns = self.plan_departure(now_ns, bytes).unwrap_or(now_ns);
        let taken = self.bucket_after_queue.take(planned_ns, 1, bytes.into());
        debug_assert!(taken, "a packet larger than the burst was queued");
        if self.queue.is_empty() {
            self.due_ns = planned_ns;
        }
        self.queue.push_back(QueueEntry {
            waiting,
            planned_ns,
        });
    }

    /// Takes the next packet that may leave.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<WaitingPacket> {
        if now_ns < self.due_ns {
            return None;
        }
        let bytes = self.queue.front()?.waiting.bytes;
        // Take the credit at a time between `now_ns` minus the tolerance and `now_ns`.
        let departure_ns = now_ns
            .saturating_sub(self.shaping.tolerance_ns)
            .max(self.due_ns);
        if !self.bucket.take(departure_ns, 1, bytes.into()) {
            self.update_due();
            return None;
        }
        let released = self.queue.pop_front()?;
        self.update_due();
        Some(released.waiting)
    }

    /// Computes when the first packet may leave.
    fn update_due(&mut self) {
        let first = self.queue.front().map(|entry| {
            let eligible_ns = self.bucket.eligible_ns(1, entry.waiting.bytes.into());
            (eligible_ns.unwrap_or(u64::MAX), entry.planned_ns)
        });
        // While a packet is late, credit overflows a full bucket and is lost. So all later packets
        // leave later.
        (self.due_ns, self.late_ns) = first.map_or((u64::MAX, 0), |(eligible_ns, planned_ns)| {
            (eligible_ns, eligible_ns.saturating_sub(planned_ns))
        });
    }

    /// Changes the settings. Waiting packets stay and get new departure times, except that packets
    /// that never conform to the new profile are passed to `drop`. An unchanged profile keeps the
    /// bucket.
    pub(crate) fn reconfigure(
        &mut self,
        now_ns: u64,
        shaping: Shaping,
        mut drop: impl FnMut(WaitingPacket),
    ) {
        let same = self.shaping.profile() == shaping.profile();
        self.shaping = shaping;
        if same {
            return;
        }
        self.bucket = TokenBucket::new(&shaping.profile());
        self.bucket_after_queue = self.bucket;
        self.late_ns = 0;
        for _ in 0..self.queue.len() {
            let Some(QueueEntry { waiting, .. }) = self.queue.pop_front() else {
                break;
            };
            match self.plan_departure(now_ns, waiting.bytes) {
                Some(planned_ns) => {
                    self.bucket_after_queue
                        .take(planned_ns, 1, waiting.bytes.into());
                    self.queue.push_back(QueueEntry {
                        waiting,
                        planned_ns,
                    });
                }
                None => drop(waiting),
            }
        }
        self.update_due();
        // A new bucket is full, and would give a departure time in the past.
        self.due_ns = self.due_ns.max(now_ns);
    }

    /// Removes the packets of a segment, and passes each to `drop`.
    pub(crate) fn remove_segment(&mut self, segment: u32, mut drop: impl FnMut(WaitingPacket)) {
        for _ in 0..self.queue.len() {
            match self.queue.pop_front() {
                Some(entry) if entry.waiting.segment == segment => drop(entry.waiting),
                Some(entry) => self.queue.push_back(entry),
                None => break,
            }
        }
        self.update_due();
    }
}

#[cfg(test)]
mod tests;
