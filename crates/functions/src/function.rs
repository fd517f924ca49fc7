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

impl From<Option<()>> for Verdict {
    /// What was done goes on; what could not be done ends here.
    #[inline]
    fn from(done: Option<()>) -> Self {
        done.map_or(Self::Drop, |()| Self::Forward)
    }
}

/// A service function.
///
/// Implement [`process`](Self::process) alone. State is the function's own; an instance belongs to
/// one chain and one worker and is called from one thread at a time.
pub trait Function: Send {
    /// Handles one packet, in place.
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict;

    /// Whether [`set_time`](Self::set_time) is to be called before each batch. Asked once.
    fn needs_time(&self) -> bool {
        false
    }

    /// Tells the time at which the next packets are handled: CLOCK_MONOTONIC, nanoseconds.
    fn set_time(&mut self, _now_ns: u64) {}

    /// How often, in nanoseconds, [`expire`](Self::expire) is to be called, packets or not; `None`
    /// for never. Asked once.
    fn timer_ns(&self) -> Option<u64> {
        None
    }

    /// Does what is due by `now_ns` (CLOCK_MONOTONIC) though no packet came: gives up waiting, sends
    /// what it holds. Called between two batches.
    fn expire(&mut self, _now_ns: u64, _emitter: &mut dyn Emitter) {}

    /// Whether [`expire`](Self::expire) will have anything to do though no packet comes; asked after each call of it. If not, it is
    /// not called again until a packet has come, so that an idle worker sleeps.
    fn awaits_timer(&self) -> bool {
        true
    }

    /// Tells `sink` what it counts besides packets in, out and dropped, each count by its name: a
    /// few words in small letters with hyphens.
    fn read_counters(&self, _sink: &mut dyn FnMut(&'static str, u64)) {}

    /// Tells of the flows it knows, a page at a time; a function without any leaves the page alone.
    fn read_flows(&self, _page: &mut FlowPage) {}

    /// Handles a batch; the packets it drops are moved to [`Batch::dropped`]. Returns how many
    /// these are.
    fn process_batch(&mut self, batch: &mut Batch<'_>, emitter: &mut dyn Emitter) -> usize {
        batch.retain(|packet| self.process(packet, emitter))
    }
}
