//! The statistics of a worker, for readers. The fields of `repr(C)` structures have the order of
//! the words in the file.

use bytemuck::{Pod, Zeroable};
use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use serde::{Deserialize, Serialize};

/// Statistics of the shaper of one generation of a chain, packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub struct ShaperStats {
    /// Packets that had to wait.
    pub delayed: u64,
    /// Dropped packets: the queue was full, or the worker had no free frame.
    pub full: u64,
    /// Dropped packets that would have waited longer than allowed.
    pub late: u64,
    /// Dropped packets larger than the burst, which never conform.
    pub big: u64,
    /// Packets that were waiting when the worker died or the chain was removed.
    pub lost: u64,
    /// Packets that wait now.
    pub waiting: u64,
    /// Most packets that waited at the same time.
    pub most: u64,
    /// Total waiting time of the packets that left, ns.
    pub waited_ns: u64,
}

impl ShaperStats {
    /// Returns the number of packets that did not leave.
    pub fn drops(&self) -> u64 {
        self.full + self.late + self.big + self.lost
    }

    /// Adds the statistics of another generation or process.
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

/// Statistics of a chain at a front door in a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DoorStats {
    /// Packets of the chain.
    pub packets: u64,
    /// Bytes of these packets, Ethernet header included.
    pub bytes: u64,
    /// Arrival time of the last packet: CLOCK_MONOTONIC, ns.
    pub last_ns: u64,
    /// Packets above the chain's profile, which were dropped.
    pub policed: u64,
    /// The bytes of these packets.
    pub policed_bytes: u64,
    /// Packets that found no room behind the door, of ports in memory.
    pub lost: u64,
    /// Packets that the port dropped before the door, for all its chains, of ports in memory.
    pub missed: u64,
}

/// Statistics of one generation of a chain in a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// Counters by position, with zeros for kernel functions.
    pub positions: Vec<HopCounters>,
    /// Packets put into a transmit ring to the egress port or back into the kernel.
    pub transmitted: u64,
    /// Packets lost because a transmit ring stayed full or the packet did not fit a frame.
    pub transmit_drops: u64,
    /// Sojourn from the front door to the egress port, of packets that leave the chain in this
    /// worker. Empty if the last function is in the kernel.
    pub sojourn: Histogram,
    /// Statistics of the chain's shaper.
    pub shaper: ShaperStats,
}

/// Statistics of a whole worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Pod, Zeroable)]
#[repr(C)]
pub struct WorkerStats {
    /// Packets taken from the worker's ports.
    pub received: u64,
    /// Packets put into transmit rings.
    pub transmitted: u64,
    /// Packets dropped because this worker has no segment for their chain, generation and position.
    pub unknown_chain: u64,
    /// Packets dropped because their metadata does not match the packet.
    pub malformed: u64,
    /// Emitted packets lost because no frame was free or the packet did not fit one.
    pub no_frame: u64,
    /// Packets lost at transmit, over all chains.
    pub transmit_drops: u64,
    /// System calls for transmission.
    pub kicks: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Frames that no port held when the worker was last idle.
    pub free_frames: u64,
    /// Descriptors from the kernel that named no frame of their port, since the process started.
    /// Any such descriptor is an error.
    pub invalid_descriptors: u64,
    /// Fragments that the front doors in the worker dropped, since the process started.
    pub dropped_fragments: u64,
}
