//! A plan: where everything of a chain runs, what it costs, and whether that honours the contract.

mod bound;
mod shaper;

use std::ops::Range;

use myelin_spec::catalogue::Class;
use myelin_spec::{Classify, Hook, Mapping, OnFailure, Shaping, Sla, Space};
use serde::{Deserialize, Serialize};

use crate::costs::{Cost, Origin};

pub use bound::{Bound, HopShare, ServerShare};
pub use shaper::{ShaperPlace, ShaperPlan};

/// A plan of one chain. Costs are means of one packet of [`Plan::frame_bytes`] bytes in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Plan {
    /// The chain's name.
    pub chain: String,
    /// Its owner.
    pub owner: String,
    /// Where its packets are taken: `xdp` or `tcx`.
    pub hook: Hook,
    /// How it is laid out.
    pub mapping: Mapping,
    /// Why it is laid out so.
    pub mapping_why: String,
    /// User functions with a process of their own beside the worker, in mapping `pipeline`.
    #[serde(default)]
    pub own_processes: u32,
    /// Rings from process to process that a packet passes, in mapping `pipeline`.
    #[serde(default)]
    pub rings: u32,
    /// By which rule the spaces were chosen.
    pub classify: Classify,
    /// What happens to its packets when its functions cannot process them.
    pub on_failure: OnFailure,
    /// The frame that all costs are of, bytes.
    pub frame_bytes: u64,
    /// The front door, with what taking the packet there costs.
    pub door: Step,
    /// Its functions, in order.
    pub hops: Vec<Hop>,
    /// The way out.
    pub egress: Step,
    /// Maximal runs of functions in one space; in mapping `distributed` each function is one.
    pub segments: Vec<Segment>,
    /// How often a packet crosses between kernel and user space.
    pub crossings: u32,
    /// What these crossings cost together, ns. Part of the hops' and the egress' costs.
    pub crossings_cost_ns: f64,
    /// Door, hops and egress together, ns; without what happens in black boxes.
    pub predicted_ns: f64,
    /// What the prediction leaves out.
    pub worst_case_note: String,
    /// The contract.
    pub sla: Sla,
    /// What shapes its traffic where it leaves, if anything does.
    #[serde(default)]
    pub shaper: Option<ShaperPlan>,
    /// Whether the chain may be deployed under this contract.
    pub admitted: bool,
    /// Why it may not.
    pub refusal: Option<String>,
    /// What would be admitted instead, each by itself.
    #[serde(default)]
    pub remedies: Vec<String>,
    /// Deployed all the same, as asked: nothing is promised.
    #[serde(default)]
    pub best_effort: bool,
    /// The worst case, where the traffic is held to a profile.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Why there is no worst case.
    #[serde(default)]
    pub no_bound: Option<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Where the costs come from.
    pub costs_origin: Origin,
}

impl Plan {
    /// The function that costs most, the way to it included.
    pub fn costliest(&self) -> Option<&Hop> {
        self.hops
            .iter()
            .max_by(|a, b| a.total_ns().total_cmp(&b.total_ns()))
    }

    /// Whether a worker's sockets are bound to the chain's ports: not where its user functions have links of their own.
    pub fn binds_ports(&self) -> bool {
        self.uses(Space::User) && self.mapping != Mapping::Distributed
    }

    /// Whether any function runs in `space`, black boxes left aside.
    pub fn uses(&self, space: Space) -> bool {
        self.hops
            .iter()
            .any(|hop| hop.space == space && !hop.is_black_box())
    }

    /// What its last worker holds departing packets to, if that shapes.
    pub fn worker_shaping(&self) -> Option<Shaping> {
        let shaper = self.shaper?;
        (shaper.place == ShaperPlace::Worker).then_some(shaper.shaping)
    }

    /// The same of the egress interface's queueing discipline.
    pub fn qdisc_shaping(&self) -> Option<Shaping> {
        let shaper = self.shaper?;
        (shaper.place == ShaperPlace::Qdisc).then_some(shaper.shaping)
    }

    /// Its black boxes.
    pub fn black_boxes(&self) -> impl Iterator<Item = &Hop> {
        self.hops.iter().filter(|hop| hop.is_black_box())
    }
}

/// A step of the packet's way that is no function.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// Its name, as the costs have it; several are joined by ` + `.
    pub name: String,
    /// Its cost, ns.
    pub cost_ns: f64,
    /// The costs that it consists of, by their names in [`StepCosts`](crate::costs::StepCosts); no plan from elsewhere has them.
    #[serde(skip)]
    pub(crate) parts: Vec<&'static str>,
}

/// The name says what it consists of.
impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.cost_ns) == (&other.name, other.cost_ns)
    }
}

impl Step {
    /// A step that consists of these costs, of a frame of so many bytes.
    pub(crate) fn new(parts: &[(&'static str, Cost)], frame_bytes: u64) -> Self {
        let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
        Self {
            name: names.join(" + "),
            cost_ns: parts.iter().map(|(_, cost)| cost.at_ns(frame_bytes)).sum(),
            parts: names,
        }
    }

    /// Adds a cost in front of the part of that name, or of all.
    pub(crate) fn insert(&mut self, part: &'static str, cost_ns: f64, before: &str) {
        let at = self.parts.iter().position(|part| *part == before);
        self.parts.insert(at.unwrap_or(0), part);
        self.name = self.parts.join(" + ");
        self.cost_ns += cost_ns;
    }
}

/// A function in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hop {
    /// Index in the chain, from 0.
    pub position: u8,
    /// The function's name.
    pub name: String,
    /// The name of its kind.
    pub kind: String,
    /// Its kind's class.
    pub class: Class,
    /// The space it was placed in.
    pub space: Space,
    /// How the packet gets to it.
    pub reach: Step,
    /// Its own cost, ns; nobody knows that of a black box, and no prediction contains it.
    pub cost_ns: Option<f64>,
    /// Why it was placed there.
    pub why: String,
}

impl Hop {
    /// Its own cost, as far as it is known, and that of the way to it, ns.
    pub fn total_ns(&self) -> f64 {
        self.reach.cost_ns + self.cost_ns.unwrap_or(0.0)
    }

    /// Whether it is a black box.
    pub fn is_black_box(&self) -> bool {
        self.cost_ns.is_none()
    }
}

/// A maximal run of functions in one space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Segment {
    /// The space.
    pub space: Space,
    /// Position of its first function.
    pub first_position: u8,
    /// The names of its functions.
    pub functions: Vec<String>,
    /// Where packets come from.
    pub entry: Entry,
    /// Where they go.
    pub exit: Exit,
}

impl Segment {
    /// Positions of its functions, as indices into the chain's.
    pub fn positions(&self) -> Range<usize> {
        let first = usize::from(self.first_position);
        first..first + self.functions.len()
    }
}

/// How packets come into a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// From the front door.
    Door,
    /// From the kernel segment before, through the AF_XDP socket.
    Kernel,
    /// From the user segment before, over the internal link.
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
    /// Into the kernel segment behind, over the internal link.
    Kernel,
    /// Into the user segment behind, through the AF_XDP socket.
    User,
    /// To the forwarder behind the function.
    Link,
}
