//! The turns of a chain's worker and of its black boxes.

use myelin_spec::{
    ExternalConfig, FunctionSpec, Mapping, ServiceChain, SharingMechanism, SharingPolicy,
    SharingSpec, Space,
};

use crate::costs::Costs;
use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::{BlackBoxSharing, Hop, Plan, SharingPlan};

/// A number with decimals is in millionths.
const MILLION: u64 = 1_000_000;

/// The longest turn of a task with all of the load.
const ROUND: &str = "the round";

/// Plans the turns of a chain's worker and black boxes, after its worker.
///
/// # Errors
/// They cannot take turns, or do not agree on them.
pub(super) fn plan(
    plan: &mut Plan,
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
) -> Result<(), PlanError> {
    plan.black_box_sharing = plan_black_boxes(chain, (costs, plan.frame_bytes), machine)?;
    plan.sharing = plan_worker(plan, chain)?;
    check_agreement(plan, chain)
}

/// Returns `None` for a worker without turns.
fn plan_worker(plan: &Plan, chain: &ServiceChain) -> Result<Option<SharingPlan>, PlanError> {
    let spec = &chain.worker.sharing;
    let policy = resolve(chain);
    if policy == SharingPolicy::Os || !plan.uses(Space::User) {
        return Ok(None);
    }
    let problem = if chain.is_driven_by_worker() {
        "workers that drive their ports poll without a pause"
    } else if chain.worker.super_packets {
        "packet sockets tell no other worker how many packets wait"
    } else {
        let (longest_turn_ns, why) = longest_turn(plan, chain);
        let core = plan.worker.as_ref().map(|worker| worker.core);
        let mut boxes = plan.black_box_sharing.iter();
        let beside = boxes.find(|black_box| Some(black_box.core) == core);
        return Ok(Some(SharingPlan {
            policy,
            mechanism: beside.map_or(spec.mechanism, |black_box| black_box.turns.mechanism),
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
fn plan_black_boxes(
    chain: &ServiceChain,
    (costs, frame_bytes): (&Costs, u64),
    machine: &Machine,
) -> Result<Vec<BlackBoxSharing>, PlanError> {
    let mut plans = Vec::new();
    for function in &chain.functions {
        if let Some(config) = function.config.own_core()
            && let Some(core) = config.core.filter(|_| config.sharing.hands_over())
        {
            let cost = costs.black_boxes.get(&config.command_text());
            let cost_ns = cost.map(|cost| cost.at_ns(frame_bytes));
            plans.push(BlackBoxSharing {
                function: function.name.clone(),
                core,
                cost_ns,
                turns: SharingPlan {
                    policy: config.sharing.policy,
                    mechanism: choose_mechanism(chain, (function, config), machine)?,
                    longest_turn_ns: longest_box_turn(config, cost_ns),
                    why: explain_turn(config),
                },
            });
        }
    }
    Ok(plans)
}

/// Checks that the chain's worker and black boxes share each core alike.
///
/// # Errors
/// Two of them have another `sharing`.
fn check_agreement(plan: &Plan, chain: &ServiceChain) -> Result<(), PlanError> {
    let worker = plan.worker.iter();
    let worker = worker.map(|worker| ("the worker", worker.core, &chain.worker.sharing));
    let all: Vec<_> = worker.chain(core_uses(chain)).collect();
    for (index, (name, core, sharing)) in all.iter().enumerate() {
        let mut others = all[..index].iter();
        if let Some((other, ..)) = others.find(|other| other.1 == *core && other.2 != *sharing) {
            let problem = format!(
                ": core {core} has {other} and {name}, with another `sharing` each: all black boxes and workers of a \
                 core need the same; make both equal, or write another core"
            );
            return Err(PlanError::new(chain, &chain.places.chain, problem));
        }
    }
    Ok(())
}

/// The black boxes with a core, as name, core and sharing.
pub(crate) fn core_uses(chain: &ServiceChain) -> impl Iterator<Item = (&str, u32, &SharingSpec)> {
    let functions = chain.functions.iter();
    functions.filter_map(|function| {
        let config = function.config.own_core()?;
        Some((function.name.as_str(), config.core?, &config.sharing))
    })
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

/// Returns the longest turn of a black box, ns, if it is known.
fn longest_box_turn(config: &ExternalConfig, cost_ns: Option<f64>) -> Option<u64> {
    match config.sharing.policy {
        SharingPolicy::RoundRobin => Some(config.sharing.slice_ns),
        SharingPolicy::LoadBased => Some(config.sharing.round_ns),
        SharingPolicy::Deadline => config.sharing.longest_turn_ns,
        SharingPolicy::Unis => cost_ns.map(|ns| (ns * slice_packets(config) as f64).round() as u64),
        _ => None,
    }
}

/// Packets of a slice of UNiS.
fn slice_packets(config: &ExternalConfig) -> u64 {
    u64::from(config.ring) * u64::from(config.sharing.gamma) / MILLION
}

/// Returns what ends the longest turn of a black box.
fn explain_turn(config: &ExternalConfig) -> String {
    let spec = &config.sharing;
    match spec.policy {
        SharingPolicy::RoundRobin => "the slice".to_owned(),
        SharingPolicy::LoadBased => ROUND.to_owned(),
        SharingPolicy::Unis => {
            let packets = slice_packets(config);
            format!(
                "{packets} packets, the share `gamma` of a ring; their cost is measured while it runs"
            )
        }
        _ => "as long as the deadlines of the others' packets allow".to_owned(),
    }
}

/// Returns the policy that `auto` stands for.
pub(crate) fn resolve(chain: &ServiceChain) -> SharingPolicy {
    match chain.worker.sharing.policy {
        SharingPolicy::Auto if chain.is_driven_by_worker() || chain.worker.super_packets => {
            SharingPolicy::Os
        }
        SharingPolicy::Auto => SharingPolicy::Deadline,
        policy => policy,
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
            let mut why = format!("{reads} batches of up to {batch} packets");
            if plan.own_processes > 0 && (reads + 1) * batch <= u64::from(chain.worker.ring) {
                why += ", fewer than a ring holds; so each process empties its ring in its turn";
            }
            (turn_ns(reads * batch), why)
        }
        SharingPolicy::RoundRobin => (Some(spec.slice_ns), "the slice".to_owned()),
        SharingPolicy::LoadBased => (Some(spec.round_ns), ROUND.to_owned()),
        SharingPolicy::Unis => {
            let packets = u64::from(chain.worker.ring) * u64::from(spec.gamma) / MILLION;
            let why = format!("{packets} packets, the share `gamma` of a ring");
            (turn_ns(packets), why)
        }
        SharingPolicy::Deadline | SharingPolicy::Auto => {
            let why = "as long as the deadlines of the others' packets allow";
            match spec.longest_turn_ns {
                Some(longest_ns) => (Some(longest_ns), format!("`longestTurn`; before, {why}")),
                None => (None, why.to_owned()),
            }
        }
    }
}
