//! Chooses a chain's mapping, and adds the rings of mapping `pipeline`.

use myelin_spec::{FunctionSpec, Idle, Mapping, ServiceChain, Space};

use super::plan_with_mapping;
use crate::costs::{Cost, Costs};
use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::{Hop, Plan, Step};

/// Plans a chain for a machine: chooses the mapping, places each function, predicts the cost, and
/// compares the cost with the contract.
///
/// A chain whose contract the machine cannot keep gets a plan that is not
/// [`admitted`](Plan::admitted).
pub(super) fn plan(
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
) -> Result<Plan, PlanError> {
    let mapped = |mapping| {
        let mut chain = chain.clone();
        chain.mapping = mapping;
        plan_with_mapping(&chain, costs, machine)
    };
    if chain.mapping != Mapping::Auto {
        let mut plan = plan_with_mapping(chain, costs, machine)?;
        plan.mapping_why = format!("written as `mapping: {}`", chain.mapping);
        plan.warnings
            .extend(warn_too_few_cores(&plan, chain, machine));
        return Ok(plan);
    }
    if let Some(why) = black_box_reason(chain).or_else(|| sandbox_reason(chain)) {
        let mut plan = mapped(Mapping::Distributed)?;
        plan.mapping_why = why;
        return Ok(plan);
    }
    let mut best = mapped(Mapping::Compact)?;
    let mut others = Vec::new();
    for mapping in [Mapping::Pipeline, Mapping::Distributed] {
        let Ok(other) = mapped(mapping) else {
            others.push((mapping, None));
            continue;
        };
        if other.predicted_ns < best.predicted_ns {
            others.push((best.mapping, Some(best.predicted_ns)));
            best = other;
        } else {
            others.push((mapping, Some(other.predicted_ns)));
        }
    }
    let differences: Vec<String> = others
        .into_iter()
        .map(|(mapping, ns)| match ns {
            Some(ns) => format!(
                "`{mapping}` costs {:.0} ns more a packet",
                ns - best.predicted_ns
            ),
            None => format!("`{mapping}` is not possible"),
        })
        .collect();
    best.mapping_why = differences.join(", ");
    Ok(best)
}

/// Returns the reason why a chain needs sandboxes, if a function requests a sandbox.
fn sandbox_reason(chain: &ServiceChain) -> Option<String> {
    chain.functions.iter().find_map(|function| {
        let request = function.sandbox.demand()?;
        let name = &function.name;
        Some(format!(
            "`{name}` has `{request}`, which needs its own sandbox"
        ))
    })
}

/// Returns the reason why a chain needs sandboxes, if the chain has a black box.
fn black_box_reason(chain: &ServiceChain) -> Option<String> {
    let mut functions = chain.functions.iter();
    let function = functions.find(|function| function.kind().is_black_box())?;
    Some(format!(
        "`{}` is a black box and needs its own namespace, between two links",
        function.name
    ))
}

/// Warns of more polling processes than cores.
fn warn_too_few_cores(plan: &Plan, chain: &ServiceChain, machine: &Machine) -> Option<String> {
    let processes = 1 + plan.own_processes;
    let polls = plan.own_processes > 0 && chain.worker.idle == Idle::Spin;
    (polls && processes > machine.cores).then(|| {
        format!(
            "{processes} processes that poll (`worker: {{ idle: spin }}`) share {} cores in slices of milliseconds; \
             write `idle: adaptive`, or `mapping: compact`",
            machine.cores
        )
    })
}

/// Adds the rings between the processes of a pipeline to the steps before the functions and to the
/// egress step. Returns the number of functions with their own process, and the number of rings.
pub(super) fn add_rings(
    functions: &[FunctionSpec],
    hops: &mut [Hop],
    egress: &mut Step,
    ring: Cost,
    frame_bytes: u64,
) -> (u32, u32) {
    let ns = ring.at_ns(frame_bytes);
    let (mut own_processes, mut rings) = (0, 0);
    let mut add_ring = |step: &mut Step, before: &str| {
        step.insert("ring", ns, before);
        rings += 1;
    };
    // The first process runs the first user function; `away` means the packet is in another
    // process.
    let (mut away, mut first) = (false, true);
    for (hop, function) in hops.iter_mut().zip(functions) {
        if hop.space == Space::Kernel {
            if std::mem::take(&mut away) {
                add_ring(&mut hop.reach, "");
            }
            continue;
        }
        let own = !std::mem::take(&mut first) && !function.config.needs_socket_worker();
        if own || away {
            add_ring(&mut hop.reach, "dispatch");
        }
        if own {
            own_processes += 1;
            hop.process = Some(own_processes);
        }
        away = own;
    }
    if away {
        add_ring(egress, "");
    }
    (own_processes, rings)
}
