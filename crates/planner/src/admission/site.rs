//! The place of a chain on a node, and the properties of the node's cores.

use std::collections::BTreeMap;

use myelin_spec::{Hook, Mapping, ServiceChain};

use super::flow::Work;
use super::path::Resource;
use crate::calculus::SECOND;
use crate::costs::{Cost, Costs};
use crate::frame::{self, LONGEST};
use crate::machine::Machine;
use crate::plan::{Plan, first_of_pair};

/// Femtoseconds of a nanosecond.
pub(crate) const NS: u128 = SECOND / 1_000_000_000;

/// The place of a chain on a node. Chains share the servers that have the same names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The ingress interface or device.
    pub ingress: String,
    /// Receive queues of that interface.
    pub queues: u32,
    /// The egress interface or device.
    pub egress: String,
    /// Speed of the egress link, bits a second, if known.
    pub egress_bps: Option<u64>,
    /// MTU of the ingress interface, bytes; 1500 if unknown.
    pub ingress_mtu: Option<u32>,
}

impl Site {
    /// Creates the site of a chain that is not deployed: the interfaces in the chain file, or names
    /// for the chain's own end hosts.
    pub fn planned(chain: &ServiceChain, machine: &Machine) -> Self {
        let (ingress, egress) = if let Some(ports) = &chain.ports {
            (ports.ingress.clone(), ports.egress.clone())
        } else {
            let link_pair = first_of_pair(chain);
            let ends = ["ingress", "egress"].map(|end| format!("{link_pair}: {end}"));
            let [first, second] = ends;
            if link_pair == chain.name {
                (first, second)
            } else {
                (second, first)
            }
        };
        Self {
            ingress,
            queues: 1,
            egress,
            egress_bps: machine.egress_bps,
            ingress_mtu: machine.ingress_mtu,
        }
    }

    /// Returns the longest incoming frame, without frame check sequence, bytes.
    pub(super) fn longest_frame(&self) -> u64 {
        self.ingress_mtu
            .map_or(LONGEST, |mtu| frame::longest(mtu.into()))
    }

    /// Returns the kernel part of the ingress port.
    pub(super) fn port(&self, costs: &Costs) -> Resource {
        Resource::Port {
            name: self.ingress.clone(),
            queues: self.queues,
            pause_fs: pause_fs(costs),
        }
    }
}

/// The longest stall of each core of a node, and the scheduler's time slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    stalls_fs: BTreeMap<u32, u128>,
    default_stall_fs: u128,
    pub(super) slice_fs: u128,
}

impl Platform {
    /// Takes the properties from a node's measured costs.
    pub fn new(costs: &Costs) -> Self {
        let stalls = costs.stalls.iter();
        let stalls_fs: BTreeMap<_, _> = stalls
            .map(|(core, stall)| (*core, u128::from(stall.stall_ns) * NS))
            .collect();
        let default_stall_fs = stalls_fs.values().copied().max();
        Self {
            stalls_fs,
            default_stall_fs: default_stall_fs
                .unwrap_or(u128::from(crate::costs::DEFAULT_STALL_NS) * NS),
            slice_fs: u128::from(costs.slice_ns) * NS,
        }
    }

    /// Returns the stall of a core, fs.
    pub(crate) fn stall_fs(&self, core: u32) -> u128 {
        self.stalls_fs
            .get(&core)
            .copied()
            .unwrap_or(self.default_stall_fs)
    }

    /// Returns the stall of an unknown core, fs.
    pub(super) fn worst_stall_fs(&self) -> u128 {
        self.default_stall_fs
    }
}

/// Returns the worst-case cost of a worker's wake-up, fs.
pub(super) fn wake_up_fs(costs: &Costs) -> u128 {
    worst_case_work(costs, costs.steps.wake_up).frame_fs(LONGEST.into())
}

/// Returns the longest time in which the agent's group may not run, fs.
pub(super) fn pause_fs(costs: &Costs) -> u128 {
    u128::from(costs.pause_ns) * NS
}

/// Most packets of one turn of receive work (Linux, `NAPI_POLL_WEIGHT`). XDP forwards redirected
/// packets at the end of a turn, or in groups of 16.
const RECEIVE_TURN: u16 = 64;
/// Most packets that a port passes to the stack, and so to tcx, at once when it merges segments
/// (Linux, `net.core.gro_normal_batch`).
const RECEIVE_LIST: u16 = 8;
/// Returns the most packets of one turn. An entry link is a port too, and a wire to another node,
/// and in mapping `distributed` each function's link. The turns of all ports alternate.
pub(super) fn port_turn(plan: &Plan) -> u16 {
    let links = match plan.mapping {
        Mapping::Distributed => plan.hops.len() as u16,
        _ => 0,
    };
    let turn = match plan.hook {
        Hook::Tcx => RECEIVE_LIST,
        Hook::Xdp | Hook::Auto => RECEIVE_TURN,
    };
    let part = plan.part.as_ref();
    let wires = part.map_or(0, |part| {
        u16::from(part.from_mtu.is_some()) + u16::from(part.to_mtu.is_some())
    });
    turn.saturating_mul(links.saturating_add(1 + wires + u16::from(plan.entry_link)))
}

/// Multiplies a mean cost by the worst-case factor.
pub(crate) fn worst_case_work(costs: &Costs, cost: Cost) -> Work {
    // Times of seconds in fs are below 2^53, so f64 is exact; rounded up.
    let fs = |ns: f64| (ns * costs.worst_case * NS as f64).ceil() as u128;
    Work {
        packet_fs: fs(cost.per_packet_ns),
        byte_fs: fs(cost.per_byte_ns),
    }
}
