//! Calls functions whose timers are due.

use super::Forwarder;
use crate::port::Port;
use crate::segment::Segment;

impl<P: Port> Forwarder<'_, P> {
    /// Returns when the next timer is due, CLOCK_MONOTONIC, ns; `None` if no timer is set.
    #[inline]
    pub fn next_timer_ns(&self) -> Option<u64> {
        (self.next_timer_ns != u64::MAX).then_some(self.next_timer_ns)
    }

    /// Returns whether a timer is set. If so, call [`Self::run_timers`] regularly.
    #[inline]
    pub fn has_timers(&self) -> bool {
        self.next_timer_ns != u64::MAX
    }

    /// Calls the functions whose timers are due. Emitted packets continue at the next function.
    pub fn run_timers(&mut self) {
        let now_ns = (self.clock.read_ns)();
        if now_ns < self.next_timer_ns {
            return;
        }
        for index in 0..self.segments.len() as u32 {
            while self.is_due(index, now_ns) {
                self.run_segment(index, None, |segment, batch, emitter, clock| {
                    segment.run_due_timer(now_ns, batch, emitter, clock)
                });
                let kicks = self.flush_run_ports();
                self.count_departures(0, kicks);
                self.clear_batch();
            }
        }
        self.reclaim_and_refill();
        self.update_next_timer();
    }

    fn is_due(&self, index: u32, now_ns: u64) -> bool {
        let segment = self.segments.get(index as usize).and_then(Option::as_ref);
        segment.is_some_and(|segment| segment.due_ns() <= now_ns)
    }

    /// Finds the next timer. Call this method after you add, remove or call segments.
    pub(super) fn update_next_timer(&mut self) {
        let due = self.segments.iter().flatten().map(Segment::due_ns);
        self.next_timer_ns = due.min().unwrap_or(u64::MAX);
    }
}
