//! What stands behind the front door for one generation of a chain: four mappings, one trait.
//!
//! A mapping is one file of `deploy/lay_out` with a type that implements [`Layout`]. It makes what its functions need and leads no
//! packet in: that is the front door's part. Dropping a layout takes away what it made, in the order of its fields. Two
//! generations of a chain, also of different mappings, stand side by side during a live change, so nothing that a layout makes
//! may be named after the chain alone.

use std::sync::Arc;

use myelin_dataplane::{PipelineReader, ShaperStats};
use myelin_kernel::{CounterLine, LoadedChain, Plane};
use myelin_packet::sojourn::Histogram;
use myelin_packet::traffic::Profile;
use myelin_packet::{Flows, HopCounters};
use myelin_policy::sla::Crossing;

use crate::api::{BlackBoxStatus, SandboxStatus};
use crate::node::workers::WorkerLease;

/// What a generation counted, all read at about the same time. Reading takes no lock that a request holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) door: CounterLine,
    /// By position.
    pub(crate) hops: Vec<HopCounters>,
    /// Packets that left at the egress.
    pub(crate) packets_out: u64,
    /// Their bytes, where the way out counts them.
    pub(crate) bytes_out: Option<u64>,
    /// The sojourn of each of them: in one histogram, or, where black boxes cut the way into sections, in one for each.
    pub(crate) sections: Vec<Histogram>,
    pub(crate) shaper: ShaperStats,
}

/// Where packets are led to a generation.
pub(crate) enum FrontDoor<'a> {
    /// The eBPF program at the ingress port.
    Kernel(&'a LoadedChain),
    /// The worker that drives the ingress device.
    Worker(&'a WorkerLease, myelin_dataplane::Direction, Profile),
}

/// A generation's functions, loaded and connected.
pub(crate) trait Layout: Send + Sync {
    /// What leads packets to it.
    fn front_door(&self) -> FrontDoor<'_>;

    /// What it counted.
    fn read(&self, plane: &Plane) -> Figures;

    /// Where packets may be lost between functions, with what was lost there. What an interface lost is not filled in.
    fn crossings(&self) -> Vec<Crossing>;

    /// The workers without which it cannot go on, in the order of the chain.
    fn workers(&self) -> Vec<&WorkerLease>;

    /// The processes behind its worker and the rings between them, where it has any.
    fn pipeline(&self) -> Option<&Arc<PipelineReader>> {
        None
    }

    /// What shapes the traffic, if anything does: `worker`, or the queueing discipline's name.
    fn shaped_by(&self) -> &'static str {
        "worker"
    }

    /// What one of its functions stands in, where that is a container or has limits.
    fn sandbox(&self, _position: u8) -> Option<SandboxStatus> {
        None
    }

    /// The black box at this position, if there is one.
    fn black_box(&self, _plane: &Plane, _position: u8) -> Option<BlackBoxStatus> {
        None
    }

    /// The flows that a kernel function knows; `None` for one that keeps none.
    fn kernel_flows(&self, position: u8) -> Result<Option<Flows>, myelin_kernel::Error> {
        match self.front_door() {
            FrontDoor::Kernel(loaded) => loaded.flows(position),
            FrontDoor::Worker(..) => Ok(None),
        }
    }

    /// Whether a process without which it cannot go on was given up.
    fn has_failed(&self) -> bool {
        let mut workers = self.workers().into_iter();
        workers.any(|worker| worker.has_failed())
    }
}

/// What a function in the kernel counted.
pub(crate) fn kernel_hop(plane: &Plane, loaded: &LoadedChain, position: u8) -> HopCounters {
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
