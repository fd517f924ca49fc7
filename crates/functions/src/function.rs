//! What every service function is.

use crate::{Batch, Emitter, FlowPage, Packet};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on to the next function, or out.
    Forward,
    /// It ends here and is counted as dropped.
    Drop,
}

/// A service function.
///
/// Implement [`process`](Self::process) alone. State is the function's own; an instance belongs to
/// one chain and one worker and is called from one thread at a time.
pub trait Function: Send {
    /// Handles one packet, in place. A function that moved the headers calls [`Packet::reparse`]
    /// before it returns.
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict;

    /// Whether [`set_time`](Self::set_time) is to be called before each batch. Asked once.
    fn needs_time(&self) -> bool {
        false
    }

    /// Tells the time at which the next packets are handled: CLOCK_MONOTONIC, nanoseconds.
    fn set_time(&mut self, _now_ns: u64) {}

    /// Tells of the flows it knows, a page at a time; a function without any leaves the page alone.
    fn read_flows(&self, _page: &mut FlowPage) {}

    /// Handles a batch; the packets it drops are moved to [`Batch::dropped`]. Returns how many
    /// these are.
    fn process_batch(&mut self, batch: &mut Batch<'_>, emitter: &mut dyn Emitter) -> usize {
        batch.retain(|packet| self.process(packet, emitter))
    }
}
