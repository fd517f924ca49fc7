//! Chains over nodes over the agent's socket.

use serde::{Deserialize, Serialize};

use crate::{ChainState, ChainStatus, SlaContract, SlaStatus, SojournStatus};

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
    /// The worst-case delay of the whole, ns: of the parts and of the links between them. Absent if
    /// a part has no bound.
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
    /// Packets that entered the first part.
    pub packets_in: u64,
    /// Packets that left the last part.
    pub packets_out: u64,
    /// The parts, in the order of the chain.
    pub parts: Vec<SpanPart>,
    /// Time since the chain came up, s.
    pub up_s: f64,
    /// Why the chain was last brought up again, after a node had lost its part.
    pub restored: Option<String>,
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

/// A part of a chain over nodes. All figures are those of its node: times of different nodes are
/// not compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpanPart {
    /// The node.
    pub node: String,
    /// The name of the part on its node: `myelin --node NODE ps PART`.
    pub part: String,
    /// The names of the functions.
    pub functions: Vec<String>,
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
    /// The sojourn: from where packets entered the whole chain if they carry their time, else in
    /// the part.
    pub sojourn: Option<SojournStatus>,
    /// The part's share of the contract, and the measured figures. With a sojourn from where
    /// packets entered the whole chain, the latency includes the shares of earlier parts and links.
    pub sla: Option<Box<SlaStatus>>,
}

impl SpanPart {
    /// Describes a part by the status that its node reports; `None`: the node has lost it.
    pub fn new(
        (node, part): (&str, &str),
        functions: Vec<String>,
        status: Option<&ChainStatus>,
    ) -> Self {
        Self {
            node: node.to_owned(),
            part: part.to_owned(),
            functions,
            state: status.map(|status| status.state),
            bound_ns: status.and_then(|status| status.bound_ns),
            packets_in: status.map_or(0, |status| status.account.packets_in),
            packets_out: status.map_or(0, |status| status.account.packets_out),
            policed: status.map_or(0, |status| status.account.policed),
            drops: status.map_or(0, |status| status.drops),
            sojourn: status.and_then(|status| status.sojourn.clone()),
            sla: status.and_then(|status| status.sla.clone()),
        }
    }
}
