//! Chains on super-packets (`worker: { superPackets: true }`): one worker receives the packets from
//! a packet socket behind the entry link, and runs all functions.

use myelin_spec::{Hook, Mapping, PortDriver, ServiceChain, Space};

use super::mapping;
use crate::costs::Costs;
use crate::error::PlanError;
use crate::machine::{Machine, PortKind};
use crate::plan::Plan;

/// Plans a chain on super-packets, without admission.
pub(super) fn plan(
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
) -> Result<Plan, PlanError> {
    check_chain(chain)?;
    // Every port sends the packets over an entry link.
    let machine = Machine {
        ingress: PortKind::Virtual,
        ..machine.clone()
    };
    let mut plan = mapping::plan(&pin_to_user_space(chain)?, costs, &machine)?;
    for hop in &mut plan.hops {
        hop.why = String::from("the chain's worker takes super-packets");
    }
    plan.mapping_why = String::from(
        "one worker takes the super-packets and runs all functions; the predicted cost is that of a packet of wire \
         size over AF_XDP sockets",
    );
    // The worker has the front door. The port's program at tcx sends it the packets.
    plan.hook = Hook::Tcx;
    plan.super_packets = true;
    plan.wire_size = false;
    Ok(plan)
}

/// Refuses keys of the chain that contradict super-packets.
fn check_chain(chain: &ServiceChain) -> Result<(), PlanError> {
    let driver = chain.ports.as_ref().map(|ports| ports.driver);
    let why = if driver != Some(PortDriver::Kernel) {
        "the chain needs interfaces in `spec.ports`"
    } else if chain.hook == Hook::Xdp {
        "XDP takes no super-packets; remove `hook: xdp`"
    } else if !matches!(chain.mapping, Mapping::Auto | Mapping::Compact) {
        "one worker runs all functions; remove `mapping`"
    } else if chain.sla.latency_ns.is_some() {
        "Myelin computes no worst case for super-packets; remove `sla.latency`"
    } else {
        return Ok(());
    };
    let problem = format!(": spec.worker.superPackets: {why}, or remove `superPackets`");
    Err(PlanError::new(chain, &chain.places.worker, problem))
}

/// Returns the chain with all functions pinned to user space.
fn pin_to_user_space(original: &ServiceChain) -> Result<ServiceChain, PlanError> {
    let mut chain = original.clone();
    chain.mapping = Mapping::Compact;
    chain.hook = Hook::Auto;
    for function in &mut chain.functions {
        let kind = function.kind();
        let why = if !kind.user_takes_super_packets {
            format!("`{}` needs packets of wire size", kind.name)
        } else if function.space == Some(Space::Kernel) {
            String::from("it has `space: kernel`")
        } else if function.sandbox.requested_at.is_some() {
            String::from("its container or its limits need a process of its own")
        } else {
            function.space = Some(Space::User);
            continue;
        };
        let problem = format!(
            "the chain's worker takes super-packets, but {why}; remove `worker: {{ superPackets: true }}`"
        );
        return Err(PlanError::function(original, function, &problem));
    }
    Ok(chain)
}
