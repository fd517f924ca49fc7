//! Step 5 of the road: what stands behind the front door. Four mappings, one trait ([`Layout`]).

mod compact;
mod devices;
mod distributed;

use std::sync::Arc;

use myelin_kernel::{Hook, Policer};
use myelin_planner::Plan;
use myelin_spec::{Mapping, ServiceChain};

use crate::api::{ApiError, ChainSource};
use crate::deploy::about;
use crate::deploy::place::Placed;
use crate::deploy::plan::Planned;
use crate::node::Parts;
use crate::node::chains::{Form, Place, Running, kernel_hook};
use crate::node::layout::{FrontDoor, Layout};
use crate::node::ports::AtXdp;

/// What is to be laid out.
#[derive(Clone, Copy)]
struct Job<'a> {
    chain: &'a ServiceChain,
    plan: &'a Plan,
    place: &'a Place,
    spi: u32,
    generation: u16,
    /// What holds the chain to its profile at the kernel's front door.
    policer: Option<&'a Arc<Policer>>,
    is_called_off: &'a dyn Fn() -> bool,
}

/// A generation that stands and that no packet is led to. Dropping it takes it away.
pub(crate) struct Laid {
    // Fields drop in this order.
    pub(crate) at_xdp: Option<AtXdp>,
    pub(crate) form: Form,
    pub(crate) spi: u32,
    pub(crate) place: Place,
    /// The chain as it runs now, where it does.
    pub(crate) running: Option<Arc<Running>>,
}

/// Lays a chain out in its place, and attaches the front door at XDP where it is needed there.
///
/// # Errors
/// What the system refused, or the chain is called off; then nothing of it is left.
pub(crate) fn lay_out(
    parts: &Parts,
    placed: Placed,
    source: &Arc<ChainSource>,
    is_called_off: &dyn Fn() -> bool,
) -> Result<Laid, ApiError> {
    let Placed {
        planned,
        place,
        claims,
    } = placed;
    let Planned {
        chain,
        plan,
        running,
        ..
    } = planned;
    let was = running.as_ref().map(|running| running.form());
    let (spi, generation) = match (&running, &was) {
        (Some(running), Some(was)) => (running.spi, was.generation.wrapping_add(1)),
        _ => (parts.take_spi(), 0),
    };
    let policer = policer(parts, &chain, was.as_deref())?;
    let job = Job {
        chain: &chain,
        plan: &plan,
        place: &place,
        spi,
        generation,
        policer: policer.as_ref(),
        is_called_off,
    };
    let layout = build(parts, job).map_err(|error| about(&chain, error))?;
    // The worker's sockets hold the queues now.
    drop(claims);
    let form = Form {
        source: Arc::clone(source),
        generation,
        policer,
        layout,
        chain,
        plan,
    };
    let is_at_xdp = |running: &Arc<Running>| running.change(|one| one.at_xdp.is_some());
    let at_xdp = if running.as_ref().is_some_and(is_at_xdp) {
        None
    } else {
        let attached = door_at_xdp(&form, &place, running.is_none());
        attached.map_err(|error| about(&form.chain, error))?
    };
    Ok(Laid {
        at_xdp,
        form,
        spi,
        place,
        running,
    })
}

fn build(parts: &Parts, job: Job<'_>) -> Result<Box<dyn Layout>, ApiError> {
    Ok(match job.plan.mapping {
        _ if job.chain.is_over_dpdk() => Box::new(devices::lay_out(parts, job)?),
        Mapping::Distributed => Box::new(distributed::lay_out(parts, job)?),
        Mapping::Auto | Mapping::Compact | Mapping::Pipeline => {
            Box::new(compact::lay_out(parts, job)?)
        }
    })
}

/// What holds a chain to its profile at the kernel's front door: that of the form before, if the profile is the same, so that a
/// live change does not fill the bucket.
fn policer(
    parts: &Parts,
    chain: &ServiceChain,
    former: Option<&Form>,
) -> Result<Option<Arc<Policer>>, ApiError> {
    if !chain.sla.is_policed() || chain.is_over_dpdk() {
        return Ok(None);
    }
    let profile = chain.sla.policing_profile();
    let same = former
        .and_then(|form| form.policer.as_ref())
        .filter(|policer| *policer.profile() == profile);
    match same {
        Some(policer) => Ok(Some(Arc::clone(policer))),
        None => parts.plane.policer(&profile).map_err(ApiError::failed),
    }
}

fn door_at_xdp(form: &Form, place: &Place, is_new: bool) -> Result<Option<AtXdp>, ApiError> {
    let FrontDoor::Kernel(entry) = form.layout.front_door() else {
        return Ok(None);
    };
    if kernel_hook(&form.plan) != Hook::Xdp {
        return Ok(None);
    }
    let (_, ingress, _) = place.ports()?;
    if is_new {
        // A door that is made for the chain from the start need not be replaced, for which the kernel waits.
        ingress.door().set_fast_path(entry);
    }
    AtXdp::attach(ingress.clone()).map(Some)
}
