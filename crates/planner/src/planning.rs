//! Plans a chain before admission: mapping, hook, the space of each function, and the mean cost.

mod dpdk;
mod mapping;
mod mean;
mod part;
mod place;
mod policed_tcp;
mod problem;
mod reach;
mod sharing;
mod super_packets;

use myelin_spec::chain::MAX_FUNCTIONS;
use myelin_spec::{FunctionSpec, Hook, Mapping, ServiceChain, SharingPolicy, Space, WorkerSpec};

use self::mapping::add_rings;
use self::place::Placement;
use self::problem::{Ends, Problem, needs_entry_link, needs_wire_size};
use self::reach::{Crossings, step_parts};
use crate::classify::required_space;
use crate::costs::Costs;
use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::{Entry, Exit, Hop, Plan, Segment, Step, WorkerPlan};
use crate::shaping;

pub(crate) use dpdk::plan_before_admission;
pub(crate) use mean::refusal;
pub(crate) use sharing::{core_uses, resolve as resolve_sharing};

/// Frame length for costs if the traffic profile implies no length, bytes: the small packet of
/// CALVIN, 256 B of UDP payload, with Ethernet, IPv4 and UDP headers.
pub const REFERENCE_FRAME_BYTES: u64 = 256 + 42;

/// Frame lengths on an Ethernet link with MTU 1500 B; the longest has a VLAN tag.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 60..=1518;

/// Plans a chain in the mapping of its file. Treats `auto` as `compact`.
pub(crate) fn plan_with_mapping(
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
) -> Result<Plan, PlanError> {
    check(chain, machine)?;
    let frame_bytes = chain
        .sla
        .mean_frame_bytes()
        .unwrap_or(REFERENCE_FRAME_BYTES)
        .clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end());
    let (part, part_warning) = part::plan(chain, machine)?.unzip();
    let problem = Problem::new(chain, costs, machine, frame_bytes)?;
    let (hook, placement) = problem.solve().ok_or_else(|| hook_conflict(chain))?;

    let ends = Ends::new(hook, chain, machine, costs);
    let mut crossings = Crossings::default();
    let mut hops = plan_hops(
        &problem,
        (ends.link, &placement),
        costs,
        frame_bytes,
        &mut crossings,
    );
    let spaces = &placement.spaces;
    let last = spaces.last().copied().unwrap_or(Space::Kernel);
    let mut egress = crossings.add_step(&ends.egress(last), frame_bytes);
    let door = Step::new(&ends.door, frame_bytes);
    let (own_processes, rings) = if chain.mapping == Mapping::Pipeline {
        let ring = costs.steps.ring;
        add_rings(&chain.functions, &mut hops, &mut egress, ring, frame_bytes)
    } else {
        (0, 0)
    };
    let predicted_ns = door.cost_ns + hops.iter().map(Hop::total_ns).sum::<f64>() + egress.cost_ns;
    let mut plan = Plan {
        chain: chain.name.clone(),
        owner: chain.owner().to_owned(),
        ports: chain.ports.clone(),
        hook,
        wire_size: needs_wire_size(hook, chain),
        entry_link: needs_entry_link(hook, chain, machine),
        super_packets: false,
        part,
        worker: None,
        policing: chain.sla.is_policed().then(|| chain.sla.policing_profile()),
        sharing: None,
        black_box_sharing: Vec::new(),
        mapping: match chain.mapping {
            Mapping::Auto => Mapping::Compact,
            mapping => mapping,
        },
        mapping_why: String::new(),
        own_processes,
        rings,
        classify: chain.classify,
        on_failure: chain.effective_on_failure(),
        frame_bytes,
        door,
        hops,
        egress,
        segments: if problem.distributed {
            single_function_segments(&chain.functions, spaces)
        } else {
            group_by_space(&chain.functions, spaces)
        },
        crossings: crossings.count,
        crossings_cost_ns: crossings.cost_ns,
        predicted_ns,
        worst_case_note: String::new(),
        sla: chain.sla.clone(),
        shaper: None,
        admitted: true,
        refusal: None,
        remedies: Vec::new(),
        best_effort: false,
        bound: None,
        no_bound: None,
        warnings: Vec::new(),
        costs_origin: costs.origin.clone(),
    };
    complete(&mut plan, chain, costs, machine)?;
    plan.warnings.extend(part_warning.flatten());
    Ok(plan)
}

/// Plans what depends on the places of the functions: shaper, worker and its sharing, and the mean
/// against the contract.
fn complete(
    plan: &mut Plan,
    chain: &ServiceChain,
    costs: &Costs,
    machine: &Machine,
) -> Result<(), PlanError> {
    let (shaper, unshaped) = shaping::plan_shaper(plan, chain)?;
    plan.shaper = shaper;
    plan.worker = WorkerPlan::of(plan, chain, machine);
    sharing::plan(plan, chain, costs, machine)?;
    mean::compare_with_contract(plan, chain, costs);
    plan.warnings.extend(unshaped);
    plan.warnings.extend(part::warn_of_clusters(plan, chain));
    Ok(())
}

fn plan_hops(
    problem: &Problem<'_>,
    (link, placement): (Option<Hook>, &Placement),
    costs: &Costs,
    frame_bytes: u64,
    crossings: &mut Crossings,
) -> Vec<Hop> {
    let mut from = Space::Kernel;
    let mut processes = 0..;
    let functions = problem.chain.functions.iter().zip(&placement.spaces);
    let hop = |(position, (function, &space)): (usize, (&FunctionSpec, &Space))| {
        let kind = function.kind();
        let cost = costs
            .function_cost(&function.config, space)
            .unwrap_or_default();
        let reach = if kind.is_black_box() {
            Step::new(&[("link", costs.steps.link)], frame_bytes)
        } else {
            let parts = step_parts(from, space, link, &costs.steps);
            crossings.add_step(&parts, frame_bytes)
        };
        from = space;
        let process = match (space, kind.is_black_box()) {
            (Space::Kernel, _) | (_, true) => None,
            _ if problem.distributed => processes.next(),
            _ => Some(0),
        };
        Hop {
            position: position as u8,
            name: function.name.clone(),
            kind: kind.name.to_owned(),
            class: kind.class,
            space,
            process,
            reach,
            cost_ns: (!kind.is_black_box()).then(|| cost.at_ns(frame_bytes)),
            why: problem.explain_space(position, space, placement),
        }
    };
    functions.enumerate().map(hop).collect()
}

/// Refuses chains that no placement can deploy.
fn check(chain: &ServiceChain, machine: &Machine) -> Result<(), PlanError> {
    let (count, mapping, places) = (chain.functions.len(), chain.mapping, &chain.places);
    if count == 0 || count > MAX_FUNCTIONS {
        let problem = format!(
            " has {count} functions, but a chain has 1 to {MAX_FUNCTIONS}; split it into two chains in series"
        );
        return Err(PlanError::new(chain, &places.chain, problem));
    }
    let mut functions = chain.functions.iter();
    let black_box = functions.find(|function| function.kind().is_black_box());
    if let Some(function) = black_box.filter(|_| mapping != Mapping::Distributed) {
        let problem = format!(
            ": spec.mapping: `{}` is a black box (`kind: external`) and needs its own namespace, which \
             `mapping: {mapping}` does not create; write `mapping: distributed`, or remove the key",
            function.name
        );
        return Err(PlanError::new(chain, &places.mapping, problem));
    }
    if black_box.is_some() && chain.hook == Hook::Tcx {
        let problem = ": spec.hook: only the XDP hook can send packets to a black box; write `hook: xdp`, or remove the key";
        return Err(PlanError::new(chain, &places.hook, problem));
    }
    let mut functions = chain.functions.iter();
    if mapping == Mapping::Distributed
        && let Some(function) = functions
            .find(|function| function.paired && function.required_space() == Some(Space::User))
    {
        let problem = format!(
            "in user space, it and its pair in the reverse chain share their state, so both must run in one process, but \
             `mapping: {mapping}` gives each its own; write `space: kernel`, or `mapping: compact` in both chains"
        );
        return Err(PlanError::function(chain, function, &problem));
    }
    check_cores(chain, mapping, machine)
}

/// Checks `spec.worker.cores`: the machine has these cores, and a process takes each of them.
fn check_cores(chain: &ServiceChain, mapping: Mapping, machine: &Machine) -> Result<(), PlanError> {
    let WorkerSpec { cores, sharing, .. } = &chain.worker;
    let last = machine.cores.saturating_sub(1);
    let problem = if let Some(core) = cores.iter().find(|core| **core > last) {
        format!(
            "there is no core {core} to use; write cores from 0 to {last}, the last one online and allowed"
        )
    } else if cores.len() < 2 {
        return Ok(());
    } else if mapping != Mapping::Pipeline {
        format!(
            "mapping `{mapping}` has processes on one core only; write one core, or `mapping: pipeline`, whose processes \
             take the cores in turn"
        )
    } else if !matches!(sharing.policy, SharingPolicy::Os | SharingPolicy::Auto) {
        format!(
            "with `sharing: {}` all processes of the pipeline take turns on one core; write one core, or `sharing: os`",
            sharing.policy
        )
    } else {
        return Ok(());
    };
    let problem = format!(": spec.worker.cores: {problem}");
    Err(PlanError::new(chain, &chain.places.worker, problem))
}

/// Creates the error for a chain for which `hook: tcx` allows no placement. Names the first
/// function that must run in user space.
fn hook_conflict(chain: &ServiceChain) -> PlanError {
    let in_kernel = |function: &&FunctionSpec| {
        function.kind().kernel.is_some()
            && required_space(function, chain.classify) != Some(Space::User)
    };
    let function = chain.functions.iter().find(|function| !in_kernel(function));
    let why = match function {
        Some(function) if function.space.is_some() => "`space: user`",
        Some(function) if function.sandbox.requested_at.is_some() => {
            "its container or its limits need a process"
        }
        Some(function) if function.kind().kernel.is_none() => "its kind has no kernel program",
        _ => "`classify: calvin` puts its class there",
    };
    let name = function.map_or("", |function| &function.name);
    let problem = format!(
        ": spec.hook: the function `{name}` must run in user space ({why}), and only the XDP hook can send packets there; \
         write `hook: xdp`, or remove the key"
    );
    PlanError::new(chain, &chain.places.hook, problem)
}

/// Groups adjacent functions of the same space.
fn group_by_space(functions: &[FunctionSpec], spaces: &[Space]) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (position, (function, &space)) in functions.iter().zip(spaces).enumerate() {
        if let Some(last) = segments.last_mut() {
            if last.space == space {
                last.functions.push(function.name.clone());
                continue;
            }
            last.exit = match space {
                Space::Kernel => Exit::Kernel,
                Space::User => Exit::User,
            };
        }
        let entry = match segments.last().map(|last| last.space) {
            None => Entry::Door,
            Some(Space::Kernel) => Entry::Kernel,
            Some(Space::User) => Entry::User,
        };
        segments.push(Segment {
            space,
            first_position: position as u8,
            functions: vec![function.name.clone()],
            entry,
            exit: Exit::Egress,
        });
    }
    segments
}

/// Creates a segment for each function, because each function has its own link.
fn single_function_segments(functions: &[FunctionSpec], spaces: &[Space]) -> Vec<Segment> {
    let each = (0..).zip(functions).zip(spaces);
    each.map(|((first_position, function), &space)| Segment {
        space,
        first_position,
        functions: vec![function.name.clone()],
        entry: Entry::Link,
        exit: Exit::Link,
    })
    .collect()
}
