//! Step 5: builds the functions behind the front door. Five layouts implement one trait
//! ([`Layout`]).

mod compact;
mod devices;
mod distributed;
mod memory;
mod super_packets;
mod worker_door;

use std::ops::Range;
use std::sync::Arc;

use myelin_kernel::{Hook, Policer};
use myelin_planner::{Plan, WorkerPlan};
use myelin_spec::{FunctionInstance, Mapping, ServiceChain};

use crate::api::{ApiError, ChainSource};
use crate::deploy::place::PlacedChain;
use crate::deploy::plan::PlannedChain;
use crate::deploy::with_chain_name;
use crate::node::Parts;
use crate::node::chains::{ChainPorts, Generation, RunningChain, kernel_hook};
use crate::node::entrance::Entrance;
use crate::node::layout::{FrontDoor, Layout};
use crate::node::ports::{PortLease, XdpAttachment};
use crate::node::router_messages::{self, RouterMessages};
use crate::node::workers::WorkerChange;

/// The input of a layout's build step: the chain to build, its plan and its ports.
#[derive(Clone, Copy)]
struct LayoutJob<'a> {
    chain: &'a ServiceChain,
    plan: &'a Plan,
    ports: &'a ChainPorts,
    /// The way to the front door; `None` between ports of the worker.
    entrance: Option<&'a Entrance>,
    spi: u32,
    generation: u16,
    /// The policer of the kernel's front door.
    policer: Option<&'a Arc<Policer>>,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> LayoutJob<'a> {
    /// The chain's worker.
    fn worker(&self) -> Result<&'a WorkerPlan, ApiError> {
        let worker = self.plan.worker.as_ref();
        worker.ok_or_else(|| ApiError::failed("a plan with user functions names no worker"))
    }

    /// The longest IP packet of the chain's ports, bytes.
    fn longest_mtu(&self) -> Result<u32, ApiError> {
        let (_, ingress, egress) = self.ports.kernel_ports()?;
        Ok(ingress.mtu.max(egress.mtu))
    }

    /// The functions at `positions`. They know the MTU of the egress interface, if there is one.
    fn functions(&self, positions: Range<usize>) -> Vec<FunctionInstance> {
        let mtu = self
            .ports
            .kernel_ports()
            .ok()
            .map(|(_, _, egress)| egress.mtu);
        let instances = self.chain.instances(positions).into_iter();
        instances.map(|instance| instance.behind_mtu(mtu)).collect()
    }

    /// The port with the front door.
    fn door(&self) -> Result<&PortLease, ApiError> {
        let door = self.entrance.map(|entrance| &entrance.door);
        door.ok_or_else(|| {
            ApiError::failed("a chain between ports of its worker has no front door in the kernel")
        })
    }
}

/// A complete generation that gets no packets yet. Dropping the value removes the generation.
pub(crate) struct BuiltChain {
    // Fields drop in this order.
    pub(crate) xdp: Option<XdpAttachment>,
    pub(crate) generation: Generation,
    pub(crate) spi: u32,
    /// The running chain, if this is a change.
    pub(crate) running: Option<Arc<RunningChain>>,
    /// The new settings of a running worker.
    pub(crate) worker_change: WorkerChange,
}

/// Builds a chain between its ports, and attaches the front door at XDP if the plan needs it.
///
/// # Errors
/// A system error, or the request is cancelled. Nothing of the new generation is left.
pub(crate) fn build_chain(
    parts: &Parts,
    placed: PlacedChain,
    source: &Arc<ChainSource>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<BuiltChain, ApiError> {
    let PlacedChain {
        planned,
        ports,
        entrance,
        spi,
        claims,
    } = placed;
    let PlannedChain {
        chain,
        plan,
        running,
        ..
    } = planned;
    let previous = running.as_ref().map(|running| running.generation());
    let next = |previous: &Arc<Generation>| previous.number.wrapping_add(1);
    let number = previous.as_ref().map_or(0, next);
    let policer = keep_or_create_policer(parts, (&chain, &plan), previous.as_deref())?;
    // A new chain adapts to the worker that it finds.
    let worker_change = match &running {
        Some(_) => WorkerChange::apply(parts, &chain, &plan),
        None => Ok(WorkerChange::default()),
    };
    let worker_change = worker_change.map_err(|error| with_chain_name(&chain, error))?;
    let job = LayoutJob {
        chain: &chain,
        plan: &plan,
        ports: &ports,
        entrance: entrance.as_ref(),
        spi,
        generation: number,
        policer: policer.as_ref(),
        is_cancelled,
    };
    let layout = build_layout(parts, job).map_err(|error| with_chain_name(&chain, error))?;
    let router_messages = start_router_messages(job, &*layout);
    let router_messages = router_messages.map_err(|error| with_chain_name(&chain, error))?;
    // From here on the worker's sockets claim the queues.
    drop(claims);
    let generation = Generation {
        source: Arc::clone(source),
        number,
        policer,
        layout,
        entrance,
        chain,
        plan,
        _router_messages: router_messages,
        ports,
    };
    let xdp = attach_xdp_door(&generation, running.as_deref());
    let xdp = xdp.map_err(|error| with_chain_name(&generation.chain, error))?;
    Ok(BuiltChain {
        xdp,
        generation,
        spi,
        running,
        worker_change,
    })
}

fn build_layout(parts: &Parts, job: LayoutJob<'_>) -> Result<Box<dyn Layout>, ApiError> {
    Ok(match job.plan.mapping {
        _ if job.chain.is_over_dpdk() => Box::new(devices::build(parts, job)?),
        _ if job.chain.is_driven_by_worker() => Box::new(memory::build(parts, job)?),
        _ if job.plan.super_packets => Box::new(super_packets::build(parts, job)?),
        Mapping::Distributed => Box::new(distributed::build(parts, job)?),
        Mapping::Auto | Mapping::Compact | Mapping::Pipeline => {
            Box::new(compact::build(parts, job)?)
        }
    })
}

fn start_router_messages(
    job: LayoutJob<'_>,
    layout: &dyn Layout,
) -> Result<Vec<RouterMessages>, ApiError> {
    let FrontDoor::Kernel(loaded) = layout.front_door() else {
        return Ok(Vec::new());
    };
    let (_, ingress, _) = job.ports.kernel_ports()?;
    let functions = job.functions(0..job.chain.functions.len());
    router_messages::start_all(loaded, &functions, ingress.ifindex)
}

/// Whether the chain's worker has the front door, which polices.
fn has_door_in_worker(chain: &ServiceChain) -> bool {
    chain.is_driven_by_worker() || chain.worker.super_packets
}

/// Returns the policer of the kernel's front door. A live change with the same profile keeps the
/// previous policer, so the bucket is not refilled.
fn keep_or_create_policer(
    parts: &Parts,
    (chain, plan): (&ServiceChain, &Plan),
    previous: Option<&Generation>,
) -> Result<Option<Arc<Policer>>, ApiError> {
    let Some(profile) = plan.policing.filter(|_| !has_door_in_worker(chain)) else {
        return Ok(None);
    };
    let same = previous
        .and_then(|generation| generation.policer.as_ref())
        .filter(|policer| *policer.profile() == profile);
    if let Some(policer) = same {
        return Ok(Some(Arc::clone(policer)));
    }
    let policer = parts.plane.policer(&profile).map_err(ApiError::failed);
    policer.map_err(|error| with_chain_name(chain, error))
}

/// Attaches the front door at XDP, unless the running chain has done so.
fn attach_xdp_door(
    generation: &Generation,
    running: Option<&RunningChain>,
) -> Result<Option<XdpAttachment>, ApiError> {
    let FrontDoor::Kernel(loaded) = generation.layout.front_door() else {
        return Ok(None);
    };
    if kernel_hook(&generation.plan) != Hook::Xdp {
        return Ok(None);
    }
    let port = &generation.entrance()?.door;
    let is_attached = |running: &RunningChain| {
        running.change(|generations| generations.xdp.iter().any(|xdp| xdp.is_at(port)))
    };
    if running.is_some_and(is_attached) {
        return Ok(None);
    }
    if running.is_none() {
        // Set the entry before the door attaches, because a later change must wait for running
        // programs.
        port.door().set_fast_path(loaded);
    }
    XdpAttachment::attach(port.clone()).map(Some)
}
