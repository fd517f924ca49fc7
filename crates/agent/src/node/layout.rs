//! The functions behind the front door for one generation of a chain: one trait, three layouts.
//!
//! Each file of `deploy/layout` implements [`Layout`] and makes the resources of its functions. The
//! front door sends packets in; a layout does not. Dropping a layout removes its resources in field
//! order. Two generations of a chain exist together during a live change, possibly in different
//! mappings. So no resource has a name from the chain alone.

use std::sync::Arc;

use myelin_dataplane::{PipelineReader, ShaperStats};
use myelin_kernel::{CounterLine, LoadedChain, Plane};
use myelin_packet::sojourn::Histogram;
use myelin_packet::traffic::Profile;
use myelin_packet::{Flows, HopCounters};
use myelin_policy::sla::LossCounter;

use crate::api::{BlackBoxStatus, SandboxStatus};
use crate::node::workers::WorkerLease;

/// The counts of a generation, read at about the same time. The reader takes no lock that a request
/// holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct GenerationCounts {
    /// Packets classified to the generation at the ingress port. A layout leaves this to
    /// [`Generation::read`](super::chains::Generation::read).
    pub(crate) entered: u64,
    /// Bytes of these packets.
    pub(crate) bytes_entered: u64,
    /// The front door's counts. Behind an entry link, packets may be lost before the door.
    pub(crate) door: CounterLine,
    /// Counters of the functions, by position.
    pub(crate) hops: Vec<HopCounters>,
    /// Packets that left at the egress.
    pub(crate) packets_out: u64,
    /// Bytes that left at the egress, if the egress counts bytes.
    pub(crate) bytes_out: Option<u64>,
    /// Sojourns of the packets that left, one histogram for each section between black boxes.
    pub(crate) sections: Vec<Histogram>,
    pub(crate) shaper: ShaperStats,
}

/// The front door of a generation.
pub(crate) enum FrontDoor<'a> {
    /// The eBPF program at the ingress port.
    Kernel(&'a LoadedChain),
    /// The worker that drives the ingress device.
    Worker(&'a WorkerLease, myelin_dataplane::SocketId, Profile),
}

/// The functions of a generation, loaded and connected.
pub(crate) trait Layout: Send + Sync {
    /// Returns the fragments that a front door in the worker dropped.
    fn dropped_fragments(&self) -> u64 {
        0
    }

    /// Returns the packets that a port in memory dropped before its front door.
    fn missed(&self) -> u64 {
        0
    }

    /// The front door that sends packets to this generation.
    fn front_door(&self) -> FrontDoor<'_>;

    /// Reads the counts of this generation.
    fn read(&self, plane: &Plane) -> GenerationCounts;

    /// Returns the losses at the places between functions. The losses of interfaces are 0 here,
    /// because `control::reading` reads those.
    fn loss_counters(&self) -> Vec<LossCounter>;

    /// The workers of the user functions, in the order of the chain.
    fn workers(&self) -> Vec<&WorkerLease>;

    /// In mapping `pipeline`: the processes behind the worker, and the rings between the processes.
    fn pipeline(&self) -> Option<&Arc<PipelineReader>> {
        None
    }

    /// The name of the shaper: `worker`, or the queueing discipline's name.
    fn shaped_by(&self) -> &'static str {
        "worker"
    }

    /// The container or limits of the function at this position.
    fn sandbox(&self, _position: u8) -> Option<SandboxStatus> {
        None
    }

    /// The black box at this position.
    fn black_box(&self, _plane: &Plane, _position: u8) -> Option<BlackBoxStatus> {
        None
    }

    /// The flows of a kernel function; `None` if the function has no flow table.
    fn kernel_flows(&self, position: u8) -> Result<Option<Flows>, myelin_kernel::Error> {
        match self.front_door() {
            FrontDoor::Kernel(loaded) => loaded.flows(position),
            FrontDoor::Worker(..) => Ok(None),
        }
    }

    /// Whether a process of this generation is no longer restarted.
    fn has_failed(&self) -> bool {
        let mut workers = self.workers().into_iter();
        workers.any(|worker| worker.has_failed())
    }
}

/// Reads the counts of a kernel function.
pub(crate) fn read_kernel_counters(
    plane: &Plane,
    loaded: &LoadedChain,
    position: u8,
) -> HopCounters {
    let slot = loaded.counter_slot(position);
    let line = slot.map(|slot| plane.counters().read(slot));
    let line = line.unwrap_or_default();
    HopCounters {
        packets_in: line.packets,
        bytes_in: Some(line.bytes),
        drops: line.drops,
        sampled_ns: line.sampled_ns,
        samples: line.samples,
        ..HopCounters::default()
    }
}
