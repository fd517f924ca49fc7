//! The worst case of a chain in a plan.

use serde::{Deserialize, Serialize};

/// The worst-case delay of a chain whose traffic conforms to its profile, from the arrival at the
/// ingress port to the departure from the egress port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bound {
    /// The bound by network calculus, ns.
    pub bound_ns: u64,
    /// The sum of Rathore et al. 2022, equation (4), over the hops, ns; at least the bound. `None`
    /// if the equation does not apply: several processes share a core without slices, packets
    /// return to a core, or a worker has several ports.
    pub paper_sum_ns: Option<u64>,
    /// The part of the bound that is latency, ns: stalls, wake-ups, slices, and hold times of
    /// functions and shaper.
    pub latency_ns: u64,
    /// The servers, in the order of the path.
    pub servers: Vec<ServerShare>,
    /// Share of each hop. The shares and `latency_ns` add up to the bound.
    pub hops: Vec<HopShare>,
}

/// A server on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerShare {
    /// Name of the server.
    pub name: String,
    /// Packets of the chain that the server can process in a second in the worst case, with no
    /// other load: `g` of the paper.
    pub capacity_pps: u64,
    /// Reserved share of the capacity, including this chain, in millionths.
    pub reserved_ppm: u64,
    /// Latency of the server, ns. The bound counts this latency once.
    pub latency_ns: u64,
    /// Delay of the server in the sum over the servers, ns.
    pub delay_ns: u64,
}

/// A hop's share of the bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HopShare {
    /// The function, or `front door`, `egress`, `egress link`.
    pub name: String,
    /// Worst-case cost of a packet at the hop, ns.
    pub cost_ns: u64,
    /// The hop's share of the bound, ns.
    pub share_ns: u64,
    /// The hop's share of the paper's sum without latencies, ns.
    pub paper_ns: Option<u64>,
}
