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
/// Implement [`process`](Self::process) only. An instance belongs to one chain and one worker; one
/// thread at a time calls it.
pub trait Function: Send {
    /// Processes one packet in place.
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict;

    /// Returns whether the worker must call [`set_time`](Self::set_time) before each batch. The
    /// worker asks once.
    fn needs_time(&self) -> bool {
        false
    }

    /// Sets the time of the next packets: CLOCK_MONOTONIC, nanoseconds.
    fn set_time(&mut self, _now_ns: u64) {}

    /// Period of [`expire`](Self::expire) in nanoseconds, with or without packets. `None` for
    /// never. The worker asks once.
    fn timer_ns(&self) -> Option<u64> {
        None
    }

    /// Does the work that is due at `now_ns` (CLOCK_MONOTONIC) without a packet: ends waits, sends
    /// stored packets. The worker calls it between two batches.
    fn expire(&mut self, _now_ns: u64, _emitter: &mut dyn Emitter) {}

    /// Returns whether [`expire`](Self::expire) will have work even if no packet comes. The worker
    /// asks after each call. After `false`, it calls `expire` again only after a packet, so that an
    /// idle worker sleeps.
    fn awaits_timer(&self) -> bool {
        true
    }

    /// Passes each of its own counters to `sink`, with its name: a few words in lower case with
    /// hyphens. Packets in, out and dropped are not among them.
    fn read_counters(&self, _sink: &mut dyn FnMut(&'static str, u64)) {}

    /// Writes its flows into the page. A function without flows leaves the page unchanged.
    fn read_flows(&self, _page: &mut FlowPage) {}

    /// Processes a batch. Moves dropped packets to [`Batch::dropped`] and returns their number.
    fn process_batch(&mut self, batch: &mut Batch<'_>, emitter: &mut dyn Emitter) -> usize {
        batch.retain(|packet| self.process(packet, emitter))
    }
}
