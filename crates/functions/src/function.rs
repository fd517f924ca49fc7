//! The interface of all service functions.

use crate::{Batch, Emitter, FlowPage, Packet};

/// Whether the chain forwards a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet continues to the next function, or leaves the chain.
    Forward,
    /// The worker drops the packet and counts it.
    Drop,
}

impl From<Option<()>> for Verdict {
    /// `Some` forwards the packet, `None` drops it.
    #[inline]
    fn from(done: Option<()>) -> Self {
        done.map_or(Self::Drop, |()| Self::Forward)
    }
}

/// A service function.
///
/// Only [`process`](Self::process) is required. An instance belongs to one chain and one worker.
/// One thread at a time calls the instance.
pub trait Function: Send {
    /// Processes one packet in place.
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict;

    /// Returns whether the worker must call [`set_time`](Self::set_time) before each batch. The
    /// worker calls this method once.
    fn needs_time(&self) -> bool {
        false
    }

    /// Sets the time of the next packets: CLOCK_MONOTONIC, nanoseconds.
    fn set_time(&mut self, _now_ns: u64) {}

    /// Sets the clock for a function that needs the time at the end of a packet's processing.
    fn set_clock(&mut self, _read_ns: fn() -> u64) {}

    /// Returns the period of [`run_timer`](Self::run_timer) in nanoseconds, with or without
    /// packets; `None` if the function has no timer. The worker calls this method once.
    fn timer_period_ns(&self) -> Option<u64> {
        None
    }

    /// Does the work that is due at `now_ns` (CLOCK_MONOTONIC) without a packet: ends waits, sends
    /// stored packets. The worker calls this method between two batches.
    fn run_timer(&mut self, _now_ns: u64, _emitter: &mut dyn Emitter) {}

    /// Returns whether [`run_timer`](Self::run_timer) will have work even if no packet arrives. The
    /// worker calls this method after each `run_timer`. After `false`, it calls `run_timer` again
    /// only after a packet, so that an idle worker sleeps.
    fn needs_timer(&self) -> bool {
        true
    }

    /// Passes the function's own counters and their names to `sink`. A name is a few lower-case
    /// words with hyphens. The worker itself counts received, sent and dropped packets.
    fn read_counters(&self, _sink: &mut dyn FnMut(&'static str, u64)) {}

    /// Writes the function's flows into the page. A function without flows leaves the page
    /// unchanged.
    fn read_flows(&self, _page: &mut FlowPage) {}

    /// Processes a batch. Moves dropped packets to [`Batch::dropped`] and returns their number.
    fn process_batch(&mut self, batch: &mut Batch<'_>, emitter: &mut dyn Emitter) -> usize {
        batch.retain(|packet| self.process(packet, emitter))
    }
}
