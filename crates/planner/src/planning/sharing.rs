//! The turns of a chain's worker and of its black boxes.

use myelin_spec::{
    ExternalConfig, FunctionConfig, FunctionSpec, Mapping, ServiceChain, SharingMechanism,
    SharingPolicy, Space,
};

use crate::admission::RING;
use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::{Hop, Plan, SharingPlan};

/// A number with decimals is in millionths.
const MILLION: u64 = 1_000_000;

/// Plans the turns. Returns `None` for a chain without turns.
///
/// # Errors
/// The workers of the chain cannot hand their core over.
pub(super) fn plan(
    plan: &Plan,
    chain: &ServiceChain,
    machine: &Machine,
) -> Result<Option<SharingPlan>, PlanError> {
    let spec = &chain.worker.sharing;
    if !spec.hands_over() || !plan.uses(Space::User) {
        return Ok(None);
    }
    let problem = if chain.is_over_dpdk() {
        "DPDK ports poll without a pause"
    } else if chain.worker.super_packets {
        "packet sockets tell no other worker how many packets wait"
    } else {
        let (longest_turn_ns, why) = longest_turn(plan, chain);
        let core = chain.worker.core.unwrap_or_else(|| machine.default_core());
        let mut boxes = plan.black_box_sharing.iter();
        let beside = boxes.find(|black_box| black_box.core == core);
        return Ok(Some(SharingPlan {
            policy: spec.policy,
            mechanism: beside.map_or(spec.mechanism, |black_box| black_box.mechanism),
            function: None,
            core,
            longest_turn_ns,
            why,
        }));
    };
    let problem = format!(": spec.worker.sharing: {problem}; write `sharing: os`");
    Err(PlanError::new(chain, &chain.places.worker, problem))
}

/// Plans the turns of black boxes.
///
/// # Errors
/// A black box has a CPU quota, with which its mechanism does not work.
pub(super) fn plan_black_boxes(
    chain: &ServiceChain,
    machine: &Machine,
) -> Result<Vec<SharingPlan>, PlanError> {
    let mut plans = Vec::new();
    for function in &chain.functions {
        if let FunctionConfig::External(config) = &function.config
            && let Some(core) = config.core.filter(|_| config.sharing.hands_over())
        {
            plans.push(SharingPlan {
                policy: config.sharing.policy,
                mechanism: choose_mechanism(chain, (function, config), machine)?,
                function: Some(function.name.clone()),
                core,
                longest_turn_ns: (config.sharing.policy == SharingPolicy::RoundRobin)
                    .then_some(config.sharing.slice_ns),
                why: explain_turn(config),
            });
        }
    }
    Ok(plans)
}

fn choose_mechanism(
    chain: &ServiceChain,
    (function, config): (&FunctionSpec, &ExternalConfig),
    machine: &Machine,
) -> Result<SharingMechanism, PlanError> {
    let has_quota = function.sandbox.limits.cpu_millicores.is_some();
    match config.sharing.mechanism {
        SharingMechanism::Auto if has_quota => Ok(SharingMechanism::Weights),
        SharingMechanism::Auto if machine.cores > 1 => Ok(SharingMechanism::Flip),
        SharingMechanism::Auto => Ok(SharingMechanism::Preempt),
        mechanism @ (SharingMechanism::Flip | SharingMechanism::Preempt) if has_quota => {
            let problem = format!(
                ", function `{}`: the mechanism `{mechanism}` needs a real-time priority, which the kernel refuses \
                 beside `limits: {{ cpu }}`; write `mechanism: weights`, or remove the limit",
                function.name
            );
            Err(PlanError::new(chain, &function.place, problem))
        }
        mechanism => Ok(mechanism),
    }
}

/// Returns what ends the longest turn of a black box.
fn explain_turn(config: &ExternalConfig) -> String {
    let spec = &config.sharing;
    match spec.policy {
        SharingPolicy::RoundRobin => "the slice".to_owned(),
        SharingPolicy::Unis => {
            let packets = u64::from(config.ring) * u64::from(spec.gamma) / MILLION;
            format!(
                "{packets} packets, the share `gamma` of a ring; their cost is measured while it runs"
            )
        }
        _ => "as long as the deadlines of the others' packets allow".to_owned(),
    }
}

/// Returns the longest turn of the chain's processes, ns, and the reason.
fn longest_turn(plan: &Plan, chain: &ServiceChain) -> (Option<u64>, String) {
    let spec = &chain.worker.sharing;
    let hops = plan.hops.iter().filter(|hop| hop.space == Space::User);
    let costs = hops.map(Hop::total_ns);
    let packet_ns = if plan.mapping == Mapping::Compact {
        costs.sum()
    } else {
        costs.fold(0.0, f64::max)
    };
    let turn_ns = |packets: u64| Some((packet_ns * packets as f64).round() as u64);
    match spec.policy {
        SharingPolicy::Os => (None, String::new()),
        SharingPolicy::Cooperative => {
            let (reads, batch) = (u64::from(spec.reads), u64::from(chain.worker.batch));
            let why = format!("{reads} batches of up to {batch} packets");
            (turn_ns(reads * batch), why)
        }
        SharingPolicy::RoundRobin => (Some(spec.slice_ns), "the slice".to_owned()),
        SharingPolicy::Unis => {
            let packets = u64::from(RING) * u64::from(spec.gamma) / MILLION;
            let why = format!("{packets} packets, the share `gamma` of a ring");
            (turn_ns(packets), why)
        }
        SharingPolicy::Deadline => {
            let why = "as long as the deadlines of the others' packets allow".to_owned();
            (None, why)
        }
    }
}
