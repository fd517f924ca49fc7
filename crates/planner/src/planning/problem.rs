//! The placement problem of one chain: the cost of each function in each space, and the cost of the
//! steps between functions at each hook.

use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::{Classify, FunctionSpec, Hook, Mapping, ServiceChain, Space};

use super::place::{Placement, SPACES, Score, SpaceCosts, Steps, find_cheapest, restrict_to};
use super::reach::{Part, step_parts};
use crate::classify::required_space;
use crate::costs::{Cost, Costs};
use crate::error::PlanError;
use crate::machine::{Machine, PortKind};

/// Hooks in order of preference when they cost the same.
const HOOKS: [Hook; 2] = [Hook::Tcx, Hook::Xdp];
/// Segments of a large super-packet. Linux builds 64 KiB by default: 45 full frames, or 122
/// segments of the default MSS of IPv4, 536 B (RFC 9293, 3.7.1).
const SUPER_PACKET_SEGMENTS: u64 = 128;
/// Length of a large super-packet on the wire: 64 KiB and the headers of each segment, bits.
const SUPER_PACKET_BITS: u64 = (65_536 + SUPER_PACKET_SEGMENTS * 66) * 8;

/// The placement problem of one chain.
pub(super) struct Problem<'c> {
    pub(super) chain: &'c ServiceChain,
    choices: Vec<SpaceCosts>,
    /// The allowed hooks with their steps.
    hooks: Vec<(Hook, Steps)>,
    /// Whether each function has its own namespace.
    pub(super) distributed: bool,
}

impl<'c> Problem<'c> {
    pub(super) fn new(
        chain: &'c ServiceChain,
        costs: &Costs,
        machine: &Machine,
        frame_bytes: u64,
    ) -> Result<Self, PlanError> {
        let choice = |function: &FunctionSpec| {
            // On average, a packet passes one ring for each user function.
            let ring = (chain.mapping == Mapping::Pipeline).then_some(costs.steps.ring);
            let cost = |space| {
                let own = costs.function_cost(&function.config, space)?;
                let ring_cost = ring.filter(|_| space == Space::User).unwrap_or_default();
                Some(picoseconds([own, ring_cost], frame_bytes))
            };
            let all = SPACES.map(cost);
            let required = required_space(function, chain.classify);
            let choice = required.map_or(all, |space| restrict_to(all, space));
            match function.required_space() {
                Some(space) if choice[space as usize].is_none() => {
                    let kind = function.kind().name;
                    let problem = format!(
                        "`{kind}` does not exist in the {space} space; remove `space: {space}`"
                    );
                    Err(PlanError::function(chain, function, &problem))
                }
                _ => Ok(choice),
            }
        };
        let choices = chain
            .functions
            .iter()
            .map(choice)
            .collect::<Result<_, _>>()?;
        let distributed = chain.mapping == Mapping::Distributed;
        let mut functions = chain.functions.iter();
        let has_black_box = functions.any(|function| function.kind().is_black_box());
        let hooks = HOOKS
            .into_iter()
            .filter(|hook| chain.hook == Hook::Auto || chain.hook == *hook)
            // Only XDP can send packets to a black box or to user space.
            .filter(|hook| !has_black_box || *hook == Hook::Xdp)
            .map(|hook| {
                let ends = Ends::new(hook, chain, machine, costs);
                (hook, steps(&ends, costs, frame_bytes))
            })
            .collect();
        Ok(Self {
            chain,
            choices,
            hooks,
            distributed,
        })
    }

    pub(super) fn solve(&self) -> Option<(Hook, Placement)> {
        self.solve_with(&self.choices)
    }

    /// Finds the best hook and placement. At tcx all functions run in the kernel.
    fn solve_with(&self, choices: &[SpaceCosts]) -> Option<(Hook, Placement)> {
        let kernel_only = choices
            .iter()
            .map(|choice| restrict_to(*choice, Space::Kernel));
        let kernel_only: Vec<_> = kernel_only.collect();
        let solved = self.hooks.iter().filter_map(|(hook, steps)| {
            let choices = if *hook == Hook::Tcx {
                &kernel_only
            } else {
                choices
            };
            Some((*hook, find_cheapest(choices, steps)?))
        });
        solved.min_by_key(|(_, placement)| placement.score)
    }

    /// Returns the best score of the chain with the function at `position` in `space`.
    fn score_with(&self, position: usize, space: Space) -> Option<Score> {
        let mut choices = self.choices.clone();
        choices[position] = restrict_to(choices[position], space);
        self.solve_with(&choices)
            .map(|(_, placement)| placement.score)
    }

    /// Returns the reason for the space of the function at `position`.
    pub(super) fn explain_space(
        &self,
        position: usize,
        space: Space,
        placement: &Placement,
    ) -> String {
        let function = &self.chain.functions[position];
        let kind = function.kind();
        let other = match space {
            Space::Kernel => Space::User,
            Space::User => Space::Kernel,
        };
        if kind.is_black_box() {
            return "a separate program with an unknown cost (black box)".to_owned();
        }
        if function.space.is_some() {
            return format!("pinned by `space: {space}`");
        }
        if let (Some(_), Some(request)) =
            (&function.sandbox.requested_at, function.sandbox.demand())
        {
            return format!("`{request}` needs a process");
        }
        if kind.default_cost(other).is_none() {
            return format!("`{}` exists in the {space} space only", kind.name);
        }
        if function.paired {
            return format!(
                "shares its state with a function of `{}`; to move both, write `space: {other}` at one of them",
                self.chain.reverse.as_deref().unwrap_or_default()
            );
        }
        if self.chain.classify == Classify::Calvin {
            return format!("its class {} runs in the {space} space", kind.class);
        }
        match self.score_with(position, other) {
            Some(alternative) if alternative.cost_ps == placement.score.cost_ps => {
                format!("costs the same in either space; Myelin prefers the {space}")
            }
            Some(alternative) => {
                let more_ps = alternative.cost_ps.saturating_sub(placement.score.cost_ps);
                format!(
                    "the chain would cost {} ns more with it in the {other} space",
                    more_ps.div_ceil(1000)
                )
            }
            None => format!(
                "`hook: {}` cannot send packets to the {other} space",
                self.chain.hook
            ),
        }
    }
}

/// The costs at both ends of a chain at a hook.
pub(super) struct Ends {
    pub(super) door: Vec<Part>,
    /// The egress step after a last function in the kernel, and after one in user space.
    egress: [Part; 2],
    /// The link to the programs that send packets to the next node.
    wire: Option<Part>,
    /// The hook if each function has its own link.
    pub(super) link: Option<Hook>,
}

impl Ends {
    pub(super) fn new(hook: Hook, chain: &ServiceChain, machine: &Machine, costs: &Costs) -> Self {
        let steps = &costs.steps;
        let distributed = chain.mapping == Mapping::Distributed;
        // Frames of another node come over an internal link too.
        let has_link = chain.from().is_some() || needs_entry_link(hook, chain, machine);
        let entry_link = has_link.then_some(("entry_link", steps.entry_link));
        let native = machine.ingress == PortKind::Native && chain.from().is_none();
        let (door, convert, kernel_egress) = if hook == Hook::Xdp {
            let convert = (!native).then_some(("xdp_frame", steps.xdp_frame));
            (
                ("door_xdp", steps.door_xdp),
                convert,
                match machine.egress {
                    // The stack transmits, because the far end of a veth may have no NAPI.
                    PortKind::Virtual if chain.to().is_none() => {
                        ("egress_redirect", steps.egress_redirect)
                    }
                    _ => ("egress_xdp", steps.egress_xdp),
                },
            )
        } else {
            let convert = native.then_some(("tcx_skb", steps.tcx_skb));
            let egress = match machine.egress {
                PortKind::EndHost => ("egress_tcx_peer", steps.egress_tcx_peer),
                PortKind::Virtual | PortKind::Native => ("egress_redirect", steps.egress_redirect),
            };
            (("door_tcx", steps.door_tcx), convert, egress)
        };
        let user_egress = if distributed {
            kernel_egress
        } else {
            ("user_egress", steps.user_egress)
        };
        Self {
            door: entry_link
                .into_iter()
                .chain(convert)
                .chain([door])
                .collect(),
            egress: [kernel_egress, user_egress],
            wire: chain.to().map(|_| ("entry_link", steps.entry_link)),
            link: distributed.then_some(hook),
        }
    }

    /// Returns the steps from a last function in `space` to the egress interface.
    pub(super) fn egress(&self, space: Space) -> Vec<Part> {
        let egress = self.egress[space as usize];
        [egress].into_iter().chain(self.wire).collect()
    }
}

/// Whether packets reach the chain over an entry link, which makes them packets of wire size.
pub(super) fn needs_entry_link(hook: Hook, chain: &ServiceChain, machine: &Machine) -> bool {
    let may_deliver_super_packets = match machine.ingress {
        // The sender's offloads are off if a chain needs wire size.
        PortKind::EndHost => false,
        PortKind::Virtual => true,
        // The driver hands XDP complete frames. Behind XDP, the kernel merges frames (GRO).
        PortKind::Native => hook == Hook::Tcx,
    };
    chain.from().is_none() && may_deliver_super_packets && needs_wire_size(hook, chain)
}

/// Whether the chain needs packets of wire size with whole checksums. XDP programs and user-space
/// functions take neither super-packets nor packets without a checksum, and at tcx it depends on
/// the functions. A super-packet above the policer's burst would never conform.
pub(super) fn needs_wire_size(hook: Hook, chain: &ServiceChain) -> bool {
    let mut functions = chain.functions.iter();
    hook == Hook::Xdp
        || functions.any(|function| !function.kind().takes_super_packets)
        || (chain.sla.is_policed() && !admits_super_packets(&chain.sla.policing_profile()))
}

/// Whether a super-packet fits into the bursts of the profile.
fn admits_super_packets(profile: &Profile) -> bool {
    let admits =
        |bucket: Option<Bucket>, least| bucket.is_none_or(|bucket| bucket.burst() >= least);
    admits(profile.packets, SUPER_PACKET_SEGMENTS) && admits(profile.bits, SUPER_PACKET_BITS)
}

fn steps(ends: &Ends, costs: &Costs, frame_bytes: u64) -> Steps {
    let cost_ps = |parts: &[Part]| picoseconds(parts.iter().map(|(_, cost)| *cost), frame_bytes);
    let reach = |from, space| cost_ps(&step_parts(from, space, ends.link, &costs.steps));
    Steps {
        door: cost_ps(&ends.door),
        reach: SPACES.map(|from| SPACES.map(|space| reach(from, space))),
        leave: SPACES.map(|space| cost_ps(&ends.egress(space))),
    }
}

/// Sums the costs of a frame, in whole picoseconds.
fn picoseconds(costs: impl IntoIterator<Item = Cost>, frame_bytes: u64) -> u64 {
    let picoseconds = |cost: Cost| (cost.at_ns(frame_bytes) * 1000.0).round() as u64;
    costs.into_iter().map(picoseconds).sum()
}
