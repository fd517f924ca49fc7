//! What a simulation measures.

use myelin_packet::sojourn::Histogram;

use crate::ring::Run;

/// The packets of a chain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChainResult {
    /// Packets that the source sent.
    pub offered: u64,
    /// Packets that backpressure kept out.
    pub shed: u64,
    /// Packets that did not fit into the first ring.
    pub lost_at_entry: u64,
    /// Packets that did not fit into a further ring: work on them was lost.
    pub lost_inside: u64,
    /// Packets that left the chain.
    pub delivered: u64,
    /// Time from the source to the end of the chain.
    pub sojourn: Histogram,
}

impl ChainResult {
    /// Records packets that leave at `leave_ns`.
    #[inline]
    pub(crate) fn deliver(&mut self, run: &Run, leave_ns: u64) {
        let packets = u64::from(run.packets);
        self.delivered += packets;
        let longest_ps = leave_ns.saturating_mul(1000).saturating_sub(run.first_ps);
        self.sojourn.record_series(longest_ps, run.gap_ps, packets);
    }
}

/// The time of a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreResult {
    /// Changes of the running task.
    pub switches: u64,
    /// Time that switches and decisions took, ns.
    pub overhead_ns: u64,
    /// Time that tasks processed packets, ns.
    pub busy_ns: u64,
    /// Reads that found no packet.
    pub empty_reads: u64,
    /// Decisions of the policy.
    pub decisions: u64,
    /// Longest time, ns, that a task with packets was without the core, from the first decision
    /// that found it so.
    pub longest_starvation_ns: u64,
}
