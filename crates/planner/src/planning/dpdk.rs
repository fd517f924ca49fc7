//! Chains whose functions all run in one worker that receives their packets: between DPDK devices,
//! from memory, or on super-packets.

use myelin_spec::{Mapping, ServiceChain, Space};

use super::{mapping, super_packets};
use crate::costs::Costs;
use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::Plan;

/// Plans a chain for a machine, without admission: places each function, predicts the cost, and
/// compares the cost with the contract.
pub(crate) fn plan_before_admission(
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
) -> Result<Plan, PlanError> {
    if chain.worker.super_packets {
        return super_packets::plan(chain, costs, machine);
    }
    if !chain.is_driven_by_worker() {
        return mapping::plan(chain, costs, machine);
    }
    let mut plan = mapping::plan(&pin_to_user_space(chain)?, costs, machine)?;
    let ports = name_of_ports(chain);
    for hop in &mut plan.hops {
        hop.why = format!("the chain's ports are {ports}");
    }
    plan.mapping_why = String::from(
        "one worker owns the ports and runs all functions, without a hook; the predicted cost of receive and \
         transmit is that of AF_XDP sockets",
    );
    Ok(plan)
}

/// Names the ports of a chain whose worker drives them.
fn name_of_ports(chain: &ServiceChain) -> &'static str {
    if chain.is_over_dpdk() {
        "DPDK devices"
    } else {
        "in the worker's memory"
    }
}

/// Returns the chain with all functions pinned to user space.
fn pin_to_user_space(original: &ServiceChain) -> Result<ServiceChain, PlanError> {
    let mut chain = original.clone();
    // The parser accepts only `compact` and `auto` for these ports.
    chain.mapping = Mapping::Compact;
    for function in &mut chain.functions {
        let kind = function.kind();
        let why = if kind.is_black_box() {
            "a black box needs interfaces; remove it, or name interfaces in `spec.ports`"
        } else if kind.user.is_none() {
            "its kind has no user-space implementation; remove it, or name interfaces in `spec.ports`"
        } else if function.space == Some(Space::Kernel) {
            "remove `space: kernel`"
        } else {
            function.space = Some(Space::User);
            continue;
        };
        let ports = name_of_ports(original);
        let problem =
            format!("the chain's ports are {ports}, and packets bypass the kernel: {why}");
        return Err(PlanError::function(original, function, &problem));
    }
    Ok(chain)
}
