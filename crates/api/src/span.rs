//! Chains over nodes over the agent's socket.

use serde::{Deserialize, Serialize};

use crate::{ChainState, ChainStatus, SlaContract, SlaStatus, SojournStatus, SpanLoss};

/// A running chain over nodes: the whole, and the part that each node holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpanStatus {
    /// The chain's name.
    pub chain: String,
    /// The chain's owner.
    pub owner: String,
    /// The topology of the nodes.
    pub topology: String,
    /// The chain of the other direction (`spec.reverse`).
    pub reverse: Option<String>,
    /// The service path identifier of the whole.
    pub path: u32,
    /// The generation: 0 for a new chain, one more with each change.
    pub generation: u16,
    /// `active` if all parts are active, else the state of the first part that is not; `failed` if
    /// a node has lost its part.
    pub state: ChainState,
    /// The worst-case delay of the whole, ns: of the parts and of the links between them; with
    /// replicas, of the slowest path. Absent if a part has no bound.
    pub bound_ns: Option<u64>,
    /// The latency of the contract, ns.
    pub latency_ns: Option<u64>,
    /// The contract of the whole.
    pub contract: SlaContract,
    /// The traffic of the chain, as `myelin conform --match` takes it:
    /// `protocol=17,destinationPort=9000`. Empty: all IP packets.
    pub traffic: String,
    /// Where packets come from; absent if the topology does not run.
    pub ingress: Option<SpanEnd>,
    /// Where packets go to; absent if the topology does not run.
    pub egress: Option<SpanEnd>,
    /// The longest delay of the links between the parts, ns.
    pub links_ns: u64,
    /// The sojourn of the whole, since its parts came up; absent if no packet left a part.
    pub sojourn: Option<SpanSojourn>,
    /// The loss of the whole; absent without `sla.loss`.
    pub loss: Option<SpanLoss>,
    /// Packets that entered the first part.
    pub packets_in: u64,
    /// Packets above the profile, which the policer of the first part dropped.
    pub policed: u64,
    /// Packets that left the last part, of all replicas.
    pub packets_out: u64,
    /// The parts, in the order of the chain. Those of each replica follow the part that splits the
    /// flows.
    pub parts: Vec<SpanPart>,
    /// Time since the chain came up, s.
    pub up_s: f64,
    /// Why the chain was last brought up again, after a node had lost its part.
    pub restored: Option<String>,
}

impl SpanStatus {
    /// Returns the parts from which packets leave the chain: the last one, of each replica.
    pub fn last_parts(&self) -> impl Iterator<Item = &SpanPart> {
        last_parts(&self.parts)
    }

    /// Returns the parts of each path, in the order of the chain: one path, or with replicas one
    /// for each replica.
    pub fn paths(&self) -> Vec<Vec<&SpanPart>> {
        let ways = self
            .parts
            .chunk_by(|one, other| one.replica == other.replica);
        let (common, branches): (Vec<_>, Vec<_>) =
            ways.partition(|way| way.iter().all(|part| part.replica.is_none()));
        let common: Vec<&SpanPart> = common.into_iter().flatten().collect();
        if branches.is_empty() {
            return vec![common];
        }
        let paths = branches.into_iter();
        let paths = paths.map(|branch| common.iter().copied().chain(branch).collect());
        paths.collect()
    }
}

/// Returns the parts from which packets leave the chain: the last one, of each replica.
pub fn last_parts(parts: &[SpanPart]) -> impl Iterator<Item = &SpanPart> {
    let is_last = |(at, part): &(usize, &SpanPart)| {
        let next = parts.get(at + 1);
        next.is_none_or(|next| part.replica.is_some() && next.replica != part.replica)
    };
    parts
        .iter()
        .enumerate()
        .filter(is_last)
        .map(|(_, part)| part)
}

/// A host at an end of a chain over nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpanEnd {
    /// The host, `TOPOLOGY/HOST`.
    pub host: String,
    /// The host's interface at the link to the first or last node.
    pub interface: String,
}

/// The sojourn of a whole chain over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpanSojourn {
    /// How it is known.
    pub source: SojournSource,
    /// Median, us; of an added sojourn the sum of medians.
    pub p50_us: f64,
    /// 99th percentile, us; of an added sojourn the sum of 99th percentiles.
    pub p99_us: f64,
    /// The longest planned delay of the links that the figures do not include, ns: those between
    /// nodes of different clocks.
    pub links_ns: u64,
}

/// How the sojourn of a whole chain over nodes is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SojournSource {
    /// Measured with one clock, from the first part to the last.
    Measured,
    /// Added, because nodes have different clocks, or packets do not carry their time.
    Added,
}

/// Returns the parts of a path whose sojourns add up to that of the path: the last one of each run
/// of parts with one beginning.
pub fn sojourn_parts<'a>(path: &[&'a SpanPart]) -> Vec<&'a SpanPart> {
    let runs = path.chunk_by(|one, next| one.sojourn_from == next.sojourn_from);
    runs.filter_map(|run| run.last().copied()).collect()
}

/// A part of a chain over nodes. All figures are those of its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpanPart {
    /// The node.
    pub node: String,
    /// The name of the part on its node: `myelin --node NODE ps PART`.
    pub part: String,
    /// The names of the functions.
    pub functions: Vec<String>,
    /// The node of the replica whose flows pass the part; absent if all flows pass it.
    pub replica: Option<String>,
    /// The state; absent if the node has lost the part.
    pub state: Option<ChainState>,
    /// The worst-case delay of the part, ns.
    pub bound_ns: Option<u64>,
    /// Packets that entered the part.
    pub packets_in: u64,
    /// Packets that left the part.
    pub packets_out: u64,
    /// Packets above the profile, which the policer dropped.
    pub policed: u64,
    /// Packets that functions and shaper dropped.
    pub drops: u64,
    /// The sojourn, from where packets entered the part `sojourn_from`.
    pub sojourn: Option<SojournStatus>,
    /// The number of the part, from 0, where the sojourn begins: the first one if packets carry
    /// their time from there and all nodes have one clock, else a later one.
    pub sojourn_from: usize,
    /// The part's share of the contract, and the measured figures. Its loss is that of the part
    /// alone. Its latency includes the shares of earlier parts and links from `sojourn_from` on.
    pub sla: Option<Box<SlaStatus>>,
}

impl SpanPart {
    /// Describes a part by the status that its node reports; `None`: the node has lost it.
    pub fn new(
        (node, part): (&str, &str),
        functions: Vec<String>,
        replica: Option<String>,
        (status, sojourn_from): (Option<&ChainStatus>, usize),
    ) -> Self {
        Self {
            node: node.to_owned(),
            part: part.to_owned(),
            functions,
            replica,
            state: status.map(|status| status.state),
            bound_ns: status.and_then(|status| status.bound_ns),
            packets_in: status.map_or(0, |status| status.account.packets_in),
            packets_out: status.map_or(0, |status| status.account.packets_out),
            policed: status.map_or(0, |status| status.account.policed),
            drops: status.map_or(0, |status| status.drops),
            sojourn: status.and_then(|status| status.sojourn.clone()),
            sojourn_from,
            sla: status.and_then(|status| status.sla.clone()),
        }
    }
}

/// An event of a node of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeEvent {
    /// Serial number over all nodes of the agent's topologies.
    pub serial: u64,
    /// The time, RFC 3339.
    pub time: String,
    /// The topology.
    pub topology: String,
    /// The node.
    pub node: String,
    /// The chain over nodes that was brought up again.
    pub chain: Option<String>,
    /// The kind of the event.
    pub kind: NodeEventKind,
    /// The event in words.
    pub text: String,
}

/// The kind of an event of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeEventKind {
    /// The node's agent does not answer.
    Silent,
    /// The node's agent ended.
    Ended,
    /// The node's agent answers again, or was started anew.
    Back,
    /// A chain that lost its part on the node was brought up again.
    Restored,
    /// The node's agent ended too often, and is not started anew.
    Failed,
}

impl NodeEventKind {
    /// The kind in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Ended => "ended",
            Self::Back => "back",
            Self::Restored => "restored",
            Self::Failed => "failed",
        }
    }
}
