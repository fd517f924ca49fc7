//! A plan: the place and cost of each function, the worst case, and the verdict on the contract.

mod bound;
mod shaper;
mod sharing;
mod worker;

use std::ops::Range;

use myelin_packet::traffic::Profile;
use myelin_spec::catalogue::Class;
use myelin_spec::{Classify, Hook, Mapping, OnFailure, Ports, Shaping, Sla, Space};
use serde::{Deserialize, Serialize};

use crate::costs::{Cost, Origin};

pub use bound::{Bound, HopShare, ServerShare};
pub use shaper::{ShaperPlace, ShaperPlan};
pub use sharing::{BlackBoxSharing, SharingPlan};
pub use worker::WorkerPlan;
pub(crate) use worker::first_of_pair;

/// The plan of one chain. Costs are means of one packet of [`Plan::frame_bytes`] bytes in one
/// direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Plan {
    /// The chain's name.
    pub chain: String,
    /// The chain's owner.
    pub owner: String,
    /// The interfaces or devices that the chain file names; absent if Myelin makes end hosts.
    #[serde(default)]
    pub ports: Option<Ports>,
    /// The hook that takes the chain's packets: `xdp` or `tcx`.
    pub hook: Hook,
    /// Whether the chain needs packets of wire size with whole checksums.
    #[serde(default)]
    pub wire_size: bool,
    /// Whether packets reach the front door over an entry link, which makes super-packets packets
    /// of wire size and completes checksums.
    #[serde(default)]
    pub entry_link: bool,
    /// Whether super-packets stay whole on the entry link, for a worker with packet sockets.
    #[serde(default)]
    pub super_packets: bool,
    /// The part of a chain over several nodes; absent for a whole chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartPlan>,
    /// How the functions share processes.
    pub mapping: Mapping,
    /// The reason for this mapping.
    pub mapping_why: String,
    /// User functions with their own process besides the worker, in mapping `pipeline`.
    #[serde(default)]
    pub own_processes: u32,
    /// Rings between processes that a packet passes, in mapping `pipeline`.
    #[serde(default)]
    pub rings: u32,
    /// The rule that chose the spaces.
    pub classify: Classify,
    /// The action on packets that the functions cannot process.
    pub on_failure: OnFailure,
    /// Frame length for all costs, bytes.
    pub frame_bytes: u64,
    /// The front door, with the cost of the hook.
    pub door: Step,
    /// The functions, in order.
    pub hops: Vec<Hop>,
    /// The step from the last function to the egress port.
    pub egress: Step,
    /// Groups of adjacent functions in the same space. In mapping `distributed`, each function has
    /// its own segment.
    pub segments: Vec<Segment>,
    /// Crossings of a packet between kernel and user space.
    pub crossings: u32,
    /// Cost of the crossings, ns. The costs of hops and egress include this cost.
    pub crossings_cost_ns: f64,
    /// Predicted cost of door, hops and egress, ns; without the time in black boxes.
    pub predicted_ns: f64,
    /// Delays that the prediction does not include.
    pub worst_case_note: String,
    /// The worker of the user functions; absent without user functions.
    #[serde(default)]
    pub worker: Option<WorkerPlan>,
    /// The profile that the policer at the front door enforces; absent without a policer.
    #[serde(default)]
    pub policing: Option<Profile>,
    /// How the worker shares its core; absent without a worker, or if the operating system's
    /// scheduler shares it.
    #[serde(default)]
    pub sharing: Option<SharingPlan>,
    /// How black boxes share their cores, for each one that takes turns.
    #[serde(default)]
    pub black_box_sharing: Vec<BlackBoxSharing>,
    /// The contract.
    pub sla: Sla,
    /// The chain's shaper; absent without one.
    #[serde(default)]
    pub shaper: Option<ShaperPlan>,
    /// Whether admission accepts the chain under this contract.
    pub admitted: bool,
    /// The reason why admission refuses the chain.
    pub refusal: Option<String>,
    /// Changes of the chain file, of which each alone would make admission accept the chain.
    #[serde(default)]
    pub remedies: Vec<String>,
    /// Whether admission refused the chain and the user deployed it with `--force`. The chain then
    /// has no guarantee.
    #[serde(default)]
    pub best_effort: bool,
    /// The worst case of policed traffic.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// The reason why there is no worst-case bound.
    #[serde(default)]
    pub no_bound: Option<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Origin of the costs.
    pub costs_origin: Origin,
}

/// The place of a part in its whole chain, and the packets that pass its wires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartPlan {
    /// Service path identifier of the whole chain.
    pub path: u32,
    /// Position of the part's first function in the whole chain.
    pub first: u8,
    /// Number of functions of the whole chain.
    pub length: u8,
    /// Longest IP packet in a frame of the previous node, bytes; absent in the first part.
    pub from_mtu: Option<u32>,
    /// Longest IP packet in a frame to the next node, bytes; absent in the last part.
    pub to_mtu: Option<u32>,
}

impl Plan {
    /// Returns the function with the highest cost, including the step to the function.
    pub fn costliest(&self) -> Option<&Hop> {
        self.hops
            .iter()
            .max_by(|a, b| a.total_ns().total_cmp(&b.total_ns()))
    }

    /// Whether a worker binds its sockets to the queues of the chain's ports. In mapping
    /// `distributed` the user functions have their own links instead. Packet sockets bind no queue.
    pub fn binds_ports(&self) -> bool {
        self.uses(Space::User) && self.mapping != Mapping::Distributed && !self.super_packets
    }

    /// Whether any function runs in `space`, except black boxes.
    pub fn uses(&self, space: Space) -> bool {
        self.hops
            .iter()
            .any(|hop| hop.space == space && !hop.is_black_box())
    }

    /// Returns the shaping of the last worker, if that worker shapes.
    pub fn worker_shaping(&self) -> Option<Shaping> {
        let shaper = self.shaper?;
        (shaper.place == ShaperPlace::Worker).then_some(shaper.shaping)
    }

    /// Returns the shaping of the egress interface's queueing discipline, if the discipline shapes.
    pub fn qdisc_shaping(&self) -> Option<Shaping> {
        let shaper = self.shaper?;
        (shaper.place == ShaperPlace::Qdisc).then_some(shaper.shaping)
    }

    /// Returns the black boxes of the chain.
    pub fn black_boxes(&self) -> impl Iterator<Item = &Hop> {
        self.hops.iter().filter(|hop| hop.is_black_box())
    }
}

/// A step of a packet's path other than a function.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// The names of the step's parts in the costs, joined by ` + `.
    pub name: String,
    /// Cost of the step, ns.
    pub cost_ns: f64,
    /// The fields of [`StepCosts`](crate::costs::StepCosts) that make up the cost; empty for a
    /// parsed plan.
    #[serde(skip)]
    pub(crate) parts: Vec<&'static str>,
}

/// Does not compare the parts, because the name lists them.
impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.cost_ns) == (&other.name, other.cost_ns)
    }
}

impl Step {
    /// Creates a step of these parts, with the cost for a frame of `frame_bytes`.
    pub(crate) fn new(parts: &[(&'static str, Cost)], frame_bytes: u64) -> Self {
        let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
        Self {
            name: names.join(" + "),
            cost_ns: parts.iter().map(|(_, cost)| cost.at_ns(frame_bytes)).sum(),
            parts: names,
        }
    }

    /// Returns the names of the parts.
    pub fn part_names(&self) -> impl Iterator<Item = &str> {
        self.name.split(" + ").filter(|name| !name.is_empty())
    }

    /// Inserts a part before the part `before`, or as the first part if there is no such part.
    pub(crate) fn insert(&mut self, part: &'static str, cost_ns: f64, before: &str) {
        let at = self.parts.iter().position(|part| *part == before);
        self.parts.insert(at.unwrap_or(0), part);
        self.name = self.parts.join(" + ");
        self.cost_ns += cost_ns;
    }
}

/// A function and its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hop {
    /// Index in the chain, from 0.
    pub position: u8,
    /// The function's name.
    pub name: String,
    /// The name of the function's kind.
    pub kind: String,
    /// CALVIN's class of the kind.
    pub class: Class,
    /// Where the function runs.
    pub space: Space,
    /// Index of the worker process in the chain; absent in the kernel and for a black box.
    #[serde(default)]
    pub process: Option<u32>,
    /// The step by which a packet reaches the function.
    pub reach: Step,
    /// Cost of the function alone, ns; absent for a black box. No prediction includes the cost of a
    /// black box.
    pub cost_ns: Option<f64>,
    /// The reason for the space.
    pub why: String,
}

impl Hop {
    /// Returns the function's own cost, if known, plus the cost of the step to the function, ns.
    pub fn total_ns(&self) -> f64 {
        self.reach.cost_ns + self.cost_ns.unwrap_or(0.0)
    }

    /// Whether the function is a black box.
    pub fn is_black_box(&self) -> bool {
        self.cost_ns.is_none()
    }
}

/// A group of adjacent functions in the same space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Segment {
    /// The space.
    pub space: Space,
    /// Position of the segment's first function.
    pub first_position: u8,
    /// The names of the segment's functions.
    pub functions: Vec<String>,
    /// Where packets enter.
    pub entry: Entry,
    /// Where packets leave.
    pub exit: Exit,
}

impl Segment {
    /// Returns the positions of the segment's functions in the chain.
    pub fn positions(&self) -> Range<usize> {
        let first = usize::from(self.first_position);
        first..first + self.functions.len()
    }
}

/// How packets enter a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// From the front door.
    Door,
    /// From the previous kernel segment, through the AF_XDP socket.
    Kernel,
    /// From the previous user segment, over the internal link.
    User,
    /// From the forwarder, over the function's own link.
    Link,
}

/// How packets leave a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By the egress port.
    Egress,
    /// Into the next kernel segment, over the internal link.
    Kernel,
    /// Into the next user segment, through the AF_XDP socket.
    User,
    /// To the forwarder after the function.
    Link,
}
