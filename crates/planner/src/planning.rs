//! From a chain to its plan.

use myelin_spec::chain::MAX_FUNCTIONS;
use myelin_spec::{Classify, FunctionSpec, Hook, Mapping, ServiceChain, Space};

use crate::admission;
use crate::classify::required;
use crate::costs::{Cost, Costs};
use crate::error::PlanError;
use crate::machine::{Machine, PortKind};
use crate::mapping::add_rings;
use crate::place::{Choice, Placement, Score, Steps, cheapest};
use crate::plan::{Entry, Exit, Hop, Plan, Segment, Step};
use crate::shaping;

/// The frame that costs are reckoned for when the traffic profile implies none, bytes: CALVIN's small packet, 256 B of
/// UDP payload, with Ethernet, IPv4 and UDP headers.
pub const REFERENCE_FRAME_BYTES: u64 = 256 + 42;

/// Frames on an Ethernet link with a 1500 B MTU, without and with a VLAN tag.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 60..=1518;

/// Hooks in order of preference when they cost the same.
const HOOKS: [Hook; 2] = [Hook::Tcx, Hook::Xdp];

/// Plans a chain in the mapping that it asks for; `auto` is `compact` here.
pub(crate) fn plan_as_asked(
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
    let problem = Problem::new(chain, costs, machine, frame_bytes)?;
    let (hook, placement) = problem.solve().ok_or_else(|| hook_conflict(chain))?;

    let spaces = &placement.spaces;
    let ends = Ends::new(hook, machine, costs);
    let mut crossings = Crossings {
        count: 0,
        cost_ns: 0.0,
    };
    let mut hops = Vec::with_capacity(spaces.len());
    let mut from = None;
    for (position, (function, &space)) in chain.functions.iter().zip(spaces).enumerate() {
        let kind = function.kind();
        let cost = costs.function(kind, space).unwrap_or_default();
        hops.push(Hop {
            position: position as u8,
            name: function.name.clone(),
            kind: kind.name.to_owned(),
            class: kind.class,
            space,
            reach: if kind.is_black_box() {
                step(&[("link", costs.steps.link)], frame_bytes)
            } else if problem.distributed {
                reach_by_link((hook, space), costs, frame_bytes, &mut crossings)
            } else {
                reach(from, space, costs, frame_bytes, &mut crossings)
            },
            cost_ns: (!kind.is_black_box()).then(|| cost.at_ns(frame_bytes)),
            why: problem.why(position, space, &placement),
        });
        from = Some(space);
    }
    let mut egress = match from {
        Some(Space::User) if !problem.distributed => {
            crossings.add(costs.steps.user_egress, frame_bytes);
            step(&[("user_egress", costs.steps.user_egress)], frame_bytes)
        }
        _ => step(&[ends.kernel_egress], frame_bytes),
    };
    let door = step(&ends.door, frame_bytes);
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
        hook,
        mapping: match chain.mapping {
            Mapping::Auto => Mapping::Compact,
            asked => asked,
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
            lone_segments(&chain.functions, spaces)
        } else {
            segments(&chain.functions, spaces)
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
    let (shaper, unshaped) = shaping::shaper(&plan, chain)?;
    plan.shaper = shaper;
    admission::judge(&mut plan, chain, costs);
    plan.warnings.extend(unshaped);
    Ok(plan)
}

/// What no placement can mend.
fn check(chain: &ServiceChain, machine: &Machine) -> Result<(), PlanError> {
    let (name, count) = (chain.name.clone(), chain.functions.len());
    if count == 0 || count > MAX_FUNCTIONS {
        let place = chain.places.chain.clone();
        return Err(PlanError::Length {
            chain: name,
            place,
            count,
        });
    }
    let black_box = chain.functions.iter().find(|one| one.kind().is_black_box());
    if let Some(function) = black_box.filter(|_| chain.mapping != Mapping::Distributed) {
        return Err(PlanError::BlackBox {
            chain: name,
            place: chain.places.mapping.clone(),
            function: function.name.clone(),
            mapping: chain.mapping,
        });
    }
    if black_box.is_some() && chain.hook == Hook::Tcx {
        return Err(PlanError::DistributedHook {
            chain: name,
            place: chain.places.hook.clone(),
        });
    }
    if chain.mapping == Mapping::Distributed
        && let Some(function) = chain
            .functions
            .iter()
            .find(|function| function.paired && function.required_space() == Some(Space::User))
    {
        return Err(PlanError::SharedState {
            chain: name,
            place: function.place.clone(),
            function: function.name.clone(),
            mapping: chain.mapping,
        });
    }
    match chain.worker.core {
        Some(core) if core >= machine.cores => Err(PlanError::Core {
            chain: name,
            place: chain.places.worker.clone(),
            core,
            cores: machine.cores,
        }),
        _ => Ok(()),
    }
}

/// Called when `hook: tcx` left no placement: the first function that has to leave the kernel.
fn hook_conflict(chain: &ServiceChain) -> PlanError {
    let in_kernel = |function: &&FunctionSpec| {
        function.kind().kernel.is_some() && required(function, chain.classify) != Some(Space::User)
    };
    let function = chain.functions.iter().find(|function| !in_kernel(function));
    let why = match function {
        Some(function) if function.space.is_some() => "it is pinned there",
        Some(function) if function.sandbox.asked_at.is_some() => {
            "it asks for a container or limits, and only a process can have those"
        }
        Some(function) if function.kind().kernel.is_none() => "its kind exists nowhere else",
        _ => "`classify: calvin` puts its class there",
    };
    PlanError::Hook {
        chain: chain.name.clone(),
        place: chain.places.hook.clone(),
        function: function.map_or_else(String::new, |function| function.name.clone()),
        why,
    }
}

/// The placement problem of one chain.
struct Problem<'c> {
    chain: &'c ServiceChain,
    choices: Vec<Choice>,
    /// The hooks that may be used, with their steps.
    hooks: Vec<(Hook, Steps)>,
    /// Each function is in a namespace of its own.
    distributed: bool,
}

impl<'c> Problem<'c> {
    fn new(
        chain: &'c ServiceChain,
        costs: &Costs,
        machine: &Machine,
        frame_bytes: u64,
    ) -> Result<Self, PlanError> {
        let choice = |function: &FunctionSpec| {
            // On the average of a run one ring for each of its functions.
            let ring = (chain.mapping == Mapping::Pipeline).then_some(costs.steps.ring);
            let cost = |space| {
                let own = costs.function(function.kind(), space)?;
                let way = ring.filter(|_| space == Space::User).unwrap_or_default();
                Some(picoseconds(&[own, way], frame_bytes))
            };
            let all = Choice {
                kernel: cost(Space::Kernel),
                user: cost(Space::User),
            };
            let choice = required(function, chain.classify).map_or(all, |space| all.only(space));
            match function.required_space() {
                Some(space) if choice.cost(space).is_none() => Err(PlanError::Space {
                    chain: chain.name.clone(),
                    place: function.place.clone(),
                    function: function.name.clone(),
                    kind: function.kind().name,
                    space,
                }),
                _ => Ok(choice),
            }
        };
        let choices = chain
            .functions
            .iter()
            .map(choice)
            .collect::<Result<_, _>>()?;
        let distributed = chain.mapping == Mapping::Distributed;
        let black_box = chain.functions.iter().any(|one| one.kind().is_black_box());
        let hooks = HOOKS
            .into_iter()
            .filter(|hook| chain.hook == Hook::Auto || chain.hook == *hook)
            // To a black box, as into user space, only XDP leads.
            .filter(|hook| !black_box || *hook == Hook::Xdp)
            .map(|hook| {
                let steps = steps(hook, machine, costs, frame_bytes);
                let link = picoseconds(&[costs.steps.link_at(hook).1], frame_bytes);
                (
                    hook,
                    if distributed {
                        steps.by_links(link)
                    } else {
                        steps
                    },
                )
            })
            .collect();
        Ok(Self {
            chain,
            choices,
            hooks,
            distributed,
        })
    }

    fn solve(&self) -> Option<(Hook, Placement)> {
        self.solve_with(&self.choices)
    }

    /// The best hook and placement; only XDP leads into user space.
    fn solve_with(&self, choices: &[Choice]) -> Option<(Hook, Placement)> {
        let kernel_only: Vec<_> = choices
            .iter()
            .map(|choice| choice.only(Space::Kernel))
            .collect();
        let solved = self.hooks.iter().filter_map(|(hook, steps)| {
            let choices = if *hook == Hook::Tcx {
                &kernel_only
            } else {
                choices
            };
            Some((*hook, cheapest(choices, steps)?))
        });
        solved.min_by_key(|(_, placement)| placement.score)
    }

    /// The best score of the chain with the function at `position` in `space`.
    fn forced(&self, position: usize, space: Space) -> Option<Score> {
        let mut choices = self.choices.clone();
        choices[position] = choices[position].only(space);
        self.solve_with(&choices)
            .map(|(_, placement)| placement.score)
    }

    /// Why the function at `position` is where it is.
    fn why(&self, position: usize, space: Space, placement: &Placement) -> String {
        let function = &self.chain.functions[position];
        let kind = function.kind();
        let other = match space {
            Space::Kernel => Space::User,
            Space::User => Space::Kernel,
        };
        if kind.is_black_box() {
            return "a program of its own; what it costs is unknown (black box)".to_owned();
        }
        if function.space.is_some() {
            return format!("pinned by `space: {space}`");
        }
        if let (Some(_), Some(what)) = (&function.sandbox.asked_at, function.sandbox.demand()) {
            return format!("`{what}` needs a process");
        }
        if kind.default_cost(other).is_none() {
            return format!("`{}` exists in the {space} space only", kind.name);
        }
        if function.paired {
            return format!(
                "shares its state with a function of `{}`; `space: {other}` at either moves both",
                self.chain.reverse.as_deref().unwrap_or_default()
            );
        }
        if self.chain.classify == Classify::Calvin {
            return format!("its class {} belongs into the {space} space", kind.class);
        }
        match self.forced(position, other) {
            Some(alternative) if alternative.cost_ps == placement.score.cost_ps => {
                format!("costs the same in either space; the {space} is preferred")
            }
            Some(alternative) => {
                let more_ps = alternative.cost_ps.saturating_sub(placement.score.cost_ps);
                format!(
                    "the chain would cost {} ns more with it in the {other} space",
                    more_ps.div_ceil(1000)
                )
            }
            None => format!(
                "`hook: {}` does not lead into the {other} space",
                self.chain.hook
            ),
        }
    }
}

/// The door of a hook and the way out of its kernel functions, by the names the costs have.
struct Ends {
    door: Vec<(&'static str, Cost)>,
    kernel_egress: (&'static str, Cost),
}

impl Ends {
    fn new(hook: Hook, machine: &Machine, costs: &Costs) -> Self {
        let steps = &costs.steps;
        let native = machine.ingress == PortKind::Native;
        let (door, convert, kernel_egress) = if hook == Hook::Xdp {
            let convert = (!native).then_some(("xdp_frame", steps.xdp_frame));
            (
                ("door_xdp", steps.door_xdp),
                convert,
                ("egress_xdp", steps.egress_xdp),
            )
        } else {
            let convert = native.then_some(("tcx_skb", steps.tcx_skb));
            let egress = match machine.egress {
                PortKind::EndHost => ("egress_tcx_peer", steps.egress_tcx_peer),
                PortKind::Virtual | PortKind::Native => ("egress_redirect", steps.egress_redirect),
            };
            (("door_tcx", steps.door_tcx), convert, egress)
        };
        Self {
            door: convert.into_iter().chain([door]).collect(),
            kernel_egress,
        }
    }
}

fn steps(hook: Hook, machine: &Machine, costs: &Costs, frame_bytes: u64) -> Steps {
    let ends = Ends::new(hook, machine, costs);
    let door: Vec<_> = ends.door.iter().map(|(_, cost)| *cost).collect();
    let at = |cost: Cost| picoseconds(&[cost], frame_bytes);
    Steps {
        door: picoseconds(&door, frame_bytes),
        hop: at(costs.steps.hop),
        enter_user: at(costs.steps.enter_user),
        dispatch: at(costs.steps.dispatch),
        user_to_kernel: at(costs.steps.user_to_kernel),
        kernel_egress: at(ends.kernel_egress.1),
        user_egress: at(costs.steps.user_egress),
    }
}

/// Costs of a frame together, in whole picoseconds.
fn picoseconds(costs: &[Cost], frame_bytes: u64) -> u64 {
    costs
        .iter()
        .map(|cost| (cost.at_ns(frame_bytes) * 1000.0).round() as u64)
        .sum()
}

/// How often and at what price packets cross between kernel and user space.
struct Crossings {
    count: u32,
    cost_ns: f64,
}

impl Crossings {
    fn add(&mut self, cost: Cost, frame_bytes: u64) {
        self.count += 1;
        self.cost_ns += cost.at_ns(frame_bytes);
    }
}

/// The way from the function before into one of `space`.
fn reach(
    from: Option<Space>,
    space: Space,
    costs: &Costs,
    frame_bytes: u64,
    crossings: &mut Crossings,
) -> Step {
    let costs = &costs.steps;
    let (hop, dispatch) = (("hop", costs.hop), ("dispatch", costs.dispatch));
    let crossing = match (from.unwrap_or(Space::Kernel), space) {
        (Space::Kernel, Space::User) => Some(("enter_user", costs.enter_user)),
        (Space::User, Space::Kernel) => Some(("user_to_kernel", costs.user_to_kernel)),
        _ => None,
    };
    if let Some((_, cost)) = crossing {
        crossings.add(cost, frame_bytes);
    }
    let call = if space == Space::Kernel {
        hop
    } else {
        dispatch
    };
    let parts: Vec<_> = crossing.into_iter().chain([call]).collect();
    step(&parts, frame_bytes)
}

/// The way from the forwarder over a function's link and back.
fn reach_by_link(
    (hook, space): (Hook, Space),
    costs: &Costs,
    frame_bytes: u64,
    crossings: &mut Crossings,
) -> Step {
    let costs = &costs.steps;
    let mut parts = vec![costs.link_at(hook)];
    if space == Space::User {
        for crossing in [costs.enter_user, costs.user_to_kernel] {
            crossings.add(crossing, frame_bytes);
        }
        parts.extend([
            ("enter_user", costs.enter_user),
            ("dispatch", costs.dispatch),
            ("user_to_kernel", costs.user_to_kernel),
        ]);
    }
    step(&parts, frame_bytes)
}

fn step(parts: &[(&'static str, Cost)], frame_bytes: u64) -> Step {
    let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
    Step {
        name: names.join(" + "),
        cost_ns: parts.iter().map(|(_, cost)| cost.at_ns(frame_bytes)).sum(),
    }
}

/// Maximal runs of functions in one space.
fn segments(functions: &[FunctionSpec], spaces: &[Space]) -> Vec<Segment> {
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

/// Each function by itself, at the end of its link.
fn lone_segments(functions: &[FunctionSpec], spaces: &[Space]) -> Vec<Segment> {
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
