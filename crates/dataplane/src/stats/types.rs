//! What a worker counted, as a reader gets it. The order of the fields of a `repr(C)` structure is that of the words in the file.

use bytemuck::{Pod, Zeroable};
use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use serde::{Deserialize, Serialize};

/// What the shaper of a generation of a chain did, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub struct ShaperStats {
    /// Had to wait.
    pub delayed: u64,
    /// Dropped: the queue was full, or the worker had no frame left for it.
    pub full: u64,
    /// Dropped: would have waited longer than agreed.
    pub late: u64,
    /// Dropped: larger than the burst, so never in profile.
    pub big: u64,
    /// Waited in a worker that died, or for a chain that was removed.
    pub lost: u64,
    /// Wait now.
    pub waiting: u64,
    /// The most that ever waited.
    pub most: u64,
    /// How long those waited that have left, together, ns.
    pub waited_ns: u64,
}

impl ShaperStats {
    /// All that did not leave, for whatever reason.
    pub fn drops(&self) -> u64 {
        self.full + self.late + self.big + self.lost
    }

    /// Takes what another generation or another process did along.
    pub fn add(&mut self, other: &Self) {
        self.delayed += other.delayed;
        self.full += other.full;
        self.late += other.late;
        self.big += other.big;
        self.lost += other.lost;
        self.waiting += other.waiting;
        self.most = self.most.max(other.most);
        self.waited_ns += other.waited_ns;
    }
}

/// What a chain took at a front door in a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DoorStats {
    /// Packets.
    pub packets: u64,
    /// Their bytes, Ethernet header included.
    pub bytes: u64,
    /// When the last one came: CLOCK_MONOTONIC, ns.
    pub last_ns: u64,
    /// Those of them above the chain's profile, which were dropped.
    pub policed: u64,
    /// The bytes of these.
    pub policed_bytes: u64,
}

/// What one generation of a chain did in this worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// By position; kernel functions have zeros here.
    pub positions: Vec<HopCounters>,
    /// Packets put into a transmit ring, toward the egress port or back into the kernel.
    pub transmitted: u64,
    /// Packets lost because a transmit ring stayed full or the packet did not fit a frame.
    pub transmit_drops: u64,
    /// Front door to egress port, of packets that leave the chain here; empty when the last function is in the kernel.
    pub sojourn: Histogram,
    /// What its shaper did.
    pub shaper: ShaperStats,
}

/// What a worker did as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Pod, Zeroable)]
#[repr(C)]
pub struct WorkerStats {
    /// Packets taken from its ports.
    pub received: u64,
    /// Packets put into transmit rings.
    pub transmitted: u64,
    /// Packets dropped because no function of this worker stands at their chain, generation and position.
    pub unknown_chain: u64,
    /// Packets dropped because their metadata does not fit them.
    pub malformed: u64,
    /// Emitted packets lost because no frame was free or the packet does not fit one.
    pub no_frame: u64,
    /// Packets lost at transmit, over all chains.
    pub transmit_drops: u64,
    /// System calls made to transmit.
    pub kicks: u64,
    /// Times the worker went to sleep.
    pub sleeps: u64,
    /// Frames that no port had, as of the last time it was idle.
    pub free_frames: u64,
    /// Descriptors the kernel returned that name no frame lent to that port, in this life of the worker; more than none is an error.
    pub invalid_descriptors: u64,
}
