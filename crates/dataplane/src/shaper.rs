//! The shaper of a chain: a token bucket, and a queue for what comes sooner than the profile allows.
//!
//! A packet that conforms while nothing waits leaves at once. Another one waits in the order of arrival until the bucket has
//! the credit for it. That time is known when it comes, so a packet that would wait longer than it may is dropped then, not
//! after the wait. The bucket is asked again when a packet really leaves: what leaves late, because the worker was kept from
//! running, never leaves faster than the profile afterwards, but for what a tolerance lets it make good: a packet that is late by less counts as if it
//! had left in time.

use std::collections::VecDeque;

use myelin_packet::traffic::TokenBucket;
use myelin_spec::Shaping;
use myelin_spec::chain::MAX_SHAPER_QUEUE;

use crate::port::Buffer;

/// A packet in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Index of the segment that it left: the generation it belongs to, and whose counters count it.
    pub(crate) segment: u32,
    /// Index of the port where it goes.
    pub(crate) port: usize,
    /// The packet as it is to be transmitted.
    pub(crate) buffer: Buffer,
    /// Its length as the profile counts it, bytes: without a header for the way to a kernel function.
    pub(crate) bytes: u32,
    /// Its front-door stamp, if it leaves the chain here.
    pub(crate) stamp_ns: Option<u64>,
    /// When it came.
    pub(crate) came_ns: u64,
}

/// An entry of the queue.
#[derive(Debug)]
struct Entry {
    waiting: Waiting,
    /// When it is to leave if nothing leaves late.
    planned_ns: u64,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It leaves now.
    Leave,
    /// It waits ([`Shaper::push`]).
    Wait,
    /// It is dropped.
    Drop(Reason),
}

/// Why a packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The queue is full, or there is no frame left for it.
    Full,
    /// It would wait longer than it may.
    Late,
    /// It is larger than the burst, so it never conforms.
    Big,
}

/// The shaper of one chain, whichever of its generations the packets belong to.
#[derive(Debug)]
pub(crate) struct Shaper {
    shaping: Shaping,
    /// What has left is taken out of it.
    bucket: TokenBucket,
    /// The same as it will be when all that waits has left in time.
    ahead: TokenBucket,
    /// By how much the queue is behind that.
    late_ns: u64,
    queue: VecDeque<Entry>,
    /// When the first one may leave, ns; `u64::MAX` while none waits.
    due_ns: u64,
}

impl Shaper {
    /// With a full bucket.
    pub(crate) fn new(shaping: Shaping) -> Self {
        let bucket = TokenBucket::new(&shaping.profile());
        Self {
            shaping,
            bucket,
            ahead: bucket,
            late_ns: 0,
            // For any queue that it may be changed to: the loop that changes it allocates nothing.
            queue: VecDeque::with_capacity(MAX_SHAPER_QUEUE as usize),
            due_ns: u64::MAX,
        }
    }

    /// What it is set to.
    pub(crate) fn shaping(&self) -> &Shaping {
        &self.shaping
    }

    /// When the first packet of the queue may leave, ns; `u64::MAX` while none waits.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// What becomes of a packet of that length that comes now. What leaves has been taken out of the bucket; what is to
    /// wait must be handed over with [`Self::push`].
    #[inline]
    pub(crate) fn decide(&mut self, now_ns: u64, bytes: u32) -> Decision {
        if self.queue.is_empty() {
            if self.bucket.take(now_ns, 1, bytes.into()) {
                return Decision::Leave;
            }
            self.ahead = self.bucket;
            self.late_ns = 0;
        }
        self.decide_behind(now_ns, bytes)
    }

    /// The same for one that does not leave at once.
    fn decide_behind(&self, now_ns: u64, bytes: u32) -> Decision {
        let Some(planned_ns) = self.plan(now_ns, bytes) else {
            return Decision::Drop(Reason::Big);
        };
        let limit = self.shaping.queue.min(MAX_SHAPER_QUEUE) as usize;
        if self.queue.len() >= limit {
            return Decision::Drop(Reason::Full);
        }
        let wait_ns = planned_ns
            .saturating_add(self.late_ns)
            .saturating_sub(now_ns);
        if wait_ns > self.shaping.delay_ns {
            return Decision::Drop(Reason::Late);
        }
        Decision::Wait
    }

    /// When one more packet would leave, were nothing late; `None`: never.
    fn plan(&self, now_ns: u64, bytes: u32) -> Option<u64> {
        let eligible_ns = self.ahead.eligible_ns(1, bytes.into())?;
        Some(eligible_ns.max(now_ns.saturating_sub(self.late_ns)))
    }

    /// Queues a packet that was told to wait, at the same `now_ns`.
    pub(crate) fn push(&mut self, now_ns: u64, waiting: Waiting) {
        let bytes = waiting.bytes;
        let planned_ns = self.plan(now_ns, bytes).unwrap_or(now_ns);
        let taken = self.ahead.take(planned_ns, 1, bytes.into());
        debug_assert!(taken, "a packet was queued that never conforms");
        if self.queue.is_empty() {
            self.due_ns = planned_ns;
        }
        self.queue.push_back(Entry {
            waiting,
            planned_ns,
        });
    }

    /// The next packet whose time has come.
    pub(crate) fn release(&mut self, now_ns: u64) -> Option<Waiting> {
        if now_ns < self.due_ns {
            return None;
        }
        let bytes = self.queue.front()?.waiting.bytes;
        // The bucket's time is never ahead of the clock, and behind by the tolerance at most.
        let counts_ns = now_ns
            .saturating_sub(self.shaping.tolerance_ns)
            .max(self.due_ns);
        if !self.bucket.take(counts_ns, 1, bytes.into()) {
            self.look_ahead();
            return None;
        }
        let released = self.queue.pop_front()?;
        self.look_ahead();
        Some(released.waiting)
    }

    /// Works out when the first one may leave.
    fn look_ahead(&mut self) {
        let first = self.queue.front().map(|entry| {
            let eligible_ns = self.bucket.eligible_ns(1, entry.waiting.bytes.into());
            (eligible_ns.unwrap_or(u64::MAX), entry.planned_ns)
        });
        // Credit that a full bucket could not take, since the one before left late, is lost to all behind it.
        (self.due_ns, self.late_ns) = first.map_or((u64::MAX, 0), |(eligible_ns, planned_ns)| {
            (eligible_ns, eligible_ns.saturating_sub(planned_ns))
        });
    }

    /// Goes on with other settings. What waits stays, in a new order of times; `drop` gets what never conforms to the new
    /// profile. The same profile goes on with what is in its bucket.
    pub(crate) fn change(&mut self, now_ns: u64, shaping: Shaping, mut drop: impl FnMut(Waiting)) {
        let same = self.shaping.profile() == shaping.profile();
        self.shaping = shaping;
        if same {
            return;
        }
        self.bucket = TokenBucket::new(&shaping.profile());
        self.ahead = self.bucket;
        self.late_ns = 0;
        for _ in 0..self.queue.len() {
            let Some(Entry { waiting, .. }) = self.queue.pop_front() else {
                break;
            };
            match self.plan(now_ns, waiting.bytes) {
                Some(planned_ns) => {
                    self.ahead.take(planned_ns, 1, waiting.bytes.into());
                    self.queue.push_back(Entry {
                        waiting,
                        planned_ns,
                    });
                }
                None => drop(waiting),
            }
        }
        self.look_ahead();
        // A full bucket that nothing was taken from would have let it go at any time.
        self.due_ns = self.due_ns.max(now_ns);
    }

    /// Takes the packets of a segment out that is to go.
    pub(crate) fn forget(&mut self, segment: u32, mut drop: impl FnMut(Waiting)) {
        for _ in 0..self.queue.len() {
            match self.queue.pop_front() {
                Some(entry) if entry.waiting.segment == segment => drop(entry.waiting),
                Some(entry) => self.queue.push_back(entry),
                None => break,
            }
        }
        self.look_ahead();
    }
}

#[cfg(test)]
mod tests;
