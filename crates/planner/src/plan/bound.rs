//! The worst case of a chain in a plan.

use serde::{Deserialize, Serialize};

/// The worst-case delay of a chain whose traffic conforms to its profile, from the arrival at the
/// ingress port to the departure from the egress port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bound {
    /// By network calculus, ns.
    pub bound_ns: u64,
    /// The sum of Rathore et al. 2022, equation (4), over the hops, ns; at least the bound. `None`
    /// where it does not apply: several processes share a core without slices, packets return to a
    /// core, or a worker has several ports.
    pub paper_sum_ns: Option<u64>,
    /// The part of the bound that is latency, ns: stalls, wake-ups, slices, and hold times of
    /// functions and shaper.
    pub latency_ns: u64,
    /// The servers, in the order of the path.
    pub servers: Vec<ServerShare>,
    /// Share of each hop; with `latency_ns` they add up to the bound.
    pub hops: Vec<HopShare>,
}

/// A server on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerShare {
    /// Its name.
    pub name: String,
    /// Packets of the chain that it can process in a second in the worst case, with no other load:
    /// `g` of the paper.
    pub capacity_pps: u64,
    /// Reserved share of it, with this chain, in millionths.
    pub reserved_ppm: u64,
    /// Its latency, ns; the bound counts it once.
    pub latency_ns: u64,
    /// Its delay in the sum, ns.
    pub delay_ns: u64,
}

/// A hop's share of the bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HopShare {
    /// The function, or `front door`, `egress`, `egress link`.
    pub name: String,
    /// Worst-case cost of a packet there, ns.
    pub cost_ns: u64,
    /// Its share of the bound, ns.
    pub share_ns: u64,
    /// Its share of the paper's sum without latencies, ns.
    pub paper_ns: Option<u64>,
}
