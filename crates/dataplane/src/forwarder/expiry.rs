//! Calls functions whose timers are due.

use super::Forwarder;
use crate::port::Port;
use crate::segment::Segment;

impl<P: Port> Forwarder<'_, P> {
    /// Returns when the next timer is due, CLOCK_MONOTONIC, ns; `None` if no timer is set.
    #[inline]
    pub fn due_ns(&self) -> Option<u64> {
        (self.due_ns != u64::MAX).then_some(self.due_ns)
    }

    /// Returns whether a timer is set. If so, call [`Self::expire`] regularly.
    #[inline]
    pub fn has_timers(&self) -> bool {
        self.due_ns != u64::MAX
    }

    /// Calls the functions whose timers are due. Emitted packets continue at the next function.
    pub fn expire(&mut self) {
        let now_ns = (self.timer.clock)();
        if now_ns < self.due_ns {
            return;
        }
        for index in 0..self.segments.len() as u32 {
            while self.is_due(index, now_ns) {
                self.run(index, None, |segment, batch, emitter, timer| {
                    segment.expire(now_ns, batch, emitter, timer)
                });
                let kicks = self.send();
                self.account(0, kicks);
                self.clear_batch();
            }
        }
        self.recycle();
        self.plan_expiry();
    }

    fn is_due(&self, index: u32, now_ns: u64) -> bool {
        let segment = self.segments.get(index as usize).and_then(Option::as_ref);
        segment.is_some_and(|segment| segment.due_ns() <= now_ns)
    }

    /// Finds the next timer after segments were added, removed or called.
    pub(super) fn plan_expiry(&mut self) {
        let due = self.segments.iter().flatten().map(Segment::due_ns);
        self.due_ns = due.min().unwrap_or(u64::MAX);
    }
}
