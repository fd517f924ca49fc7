//! What stands behind the front door for one generation of a chain, and how a mapping makes it.
//!
//! A mapping is one file with a type that implements [`Layout`] and a function `build`. It makes what its functions need,
//! in steps that each undo themselves when a later one fails, and leads no packet in: that is the front door's part, which is
//! the same for every mapping (`deploy`). Two generations of a chain, also of different mappings, stand side by side during a
//! live change, so nothing that a layout makes may be named after the chain alone.

use std::sync::Arc;

use myelin_dataplane::{ChainStats, Pipeline, ShaperStats};
use myelin_kernel::{Flows, LoadedChain, Policer};
use myelin_packet::HopCounters;
use myelin_packet::sojourn::Histogram;
use myelin_planner::{Hop, Plan};
use myelin_policy::sla::Crossing;
use myelin_spec::{Mapping, ServiceChain};

use crate::api::{ApiError, BlackBoxStatus, SandboxStatus};
use crate::compact;
use crate::deploy::Place;
use crate::distributed;
use crate::node::Node;
use crate::workers::Key;

/// What is to be laid out.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) chain: &'a ServiceChain,
    pub(crate) plan: &'a Plan,
    pub(crate) place: &'a Place,
    pub(crate) spi: u32,
    /// What holds the chain to its profile at the front door.
    pub(crate) policer: Option<&'a Arc<Policer>>,
    pub(crate) generation: u16,
    /// Whether nobody wants it any more.
    pub(crate) is_called_off: &'a dyn Fn() -> bool,
}

/// What a function in the kernel counted.
pub(crate) fn kernel_hop(node: &Node, loaded: &LoadedChain, position: u8) -> HopCounters {
    let slot = loaded.counter_slot(position);
    let line = slot
        .map(|slot| node.plane.counters().read(slot))
        .unwrap_or_default();
    HopCounters {
        packets_in: line.packets,
        bytes_in: Some(line.bytes),
        drops: line.drops,
        samples: line.samples,
        sampled_ns: line.sampled_ns,
        ..HopCounters::default()
    }
}

/// What a function in a worker counted, from what that one counted of the chain.
pub(crate) fn user_hop(chain: Option<&ChainStats>, position: u8) -> HopCounters {
    let counted = chain.and_then(|chain| chain.positions.get(usize::from(position)));
    counted.copied().unwrap_or_default()
}

/// A generation's functions, loaded and connected.
pub(crate) trait Layout: Send {
    /// What the front door leads to.
    fn entry(&self) -> &LoadedChain;

    /// The workers without which it cannot go on, in the order of the chain.
    fn workers(&self) -> Vec<&Key>;

    /// What one of its functions did.
    fn hop(&self, node: &Node, hop: &Hop) -> HopCounters;

    /// What one of its functions stands in, where that is a container or has limits.
    fn sandbox(&self, _node: &Node, _hop: &Hop) -> Option<SandboxStatus> {
        None
    }

    /// The flows that a kernel function knows; `None` for one that keeps none.
    fn kernel_flows(&self, position: u8) -> Result<Option<Flows>, myelin_kernel::Error> {
        self.entry().flows(position)
    }

    /// Packets that left at the egress, and the sojourn of each of them: in one histogram, or, where black boxes cut the way into
    /// sections, in one for each of these.
    fn departures(&self, node: &Node) -> (u64, Vec<Histogram>);

    /// Bytes of the packets that left at the egress, where it counts them.
    fn bytes_out(&self, node: &Node) -> Option<u64>;

    /// Where packets may be lost between functions, with what was lost there.
    fn crossings(&self, node: &Node) -> Vec<Crossing>;

    /// What its shaper did.
    fn shaper(&self, _node: &Node) -> ShaperStats {
        ShaperStats::default()
    }

    /// Who shapes, where anybody does: `worker`, or the queueing discipline's name.
    fn shaped_by(&self, _node: &Node) -> &'static str {
        "worker"
    }

    /// The black box at this position, if there is one.
    fn black_box(&self, _node: &Node, _position: u8) -> Option<BlackBoxStatus> {
        None
    }

    /// Whether a process without which it cannot go on was given up.
    fn is_failed(&self, node: &Node) -> bool {
        let mut workers = self.workers().into_iter();
        workers.any(|key| node.workers.get(key).is_some_and(|entry| entry.failed))
    }

    /// Shows the processes behind its worker and the rings between them, where it has any.
    fn read_pipeline(&self, _node: &Node, _read: &mut dyn FnMut(&mut Pipeline)) {}

    /// Frees it. The front door no longer leads here; packets that are still inside are let through first as far as
    /// user space holds them.
    fn retire(self: Box<Self>, node: &mut Node);
}

/// Lays a generation out as its plan says.
pub(crate) fn build(node: &mut Node, job: Job<'_>) -> Result<Box<dyn Layout>, ApiError> {
    match job.plan.mapping {
        Mapping::Auto | Mapping::Compact | Mapping::Pipeline => compact::build(node, job),
        Mapping::Distributed => distributed::build(node, job),
    }
}
