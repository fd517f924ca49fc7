//! The worst case of a chain, as `plan` shows it.

use serde::{Deserialize, Serialize};

/// The worst-case delay of a chain whose traffic keeps to its profile, from the arrival at the ingress port to the departure
/// from the egress port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bound {
    /// By network calculus, ns.
    pub bound_ns: u64,
    /// The sum of Rathore et al. 2022, equation (4), over the hops, ns; never below the bound. `None` where it does not apply: several
    /// processes share a core without turns, packets come back to one, or a worker has several ports.
    pub paper_sum_ns: Option<u64>,
    /// What of it is waiting for cores that stand still, for a worker to wake up or to get its turn, and for what functions and the shaper hold back,
    /// ns.
    pub latency_ns: u64,
    /// What serves the packets, in the order of the way.
    pub servers: Vec<ServerShare>,
    /// What falls to each hop; with `latency_ns` they add up to the bound.
    pub hops: Vec<HopShare>,
}

/// A server on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerShare {
    /// What it is.
    pub name: String,
    /// Packets of the chain that it can process in a second, `g` of the paper, at worst and with nothing else to do.
    pub capacity_pps: u64,
    /// How much of it is promised, this chain included, in millionths.
    pub reserved_ppm: u64,
    /// How long it may not serve, ns: part of the bound, once.
    pub latency_ns: u64,
    /// The longest that a packet is there by the sum, ns.
    pub delay_ns: u64,
}

/// A hop's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HopShare {
    /// The function, or `front door`, `egress`, `egress link`.
    pub name: String,
    /// What a packet costs there at worst, ns.
    pub cost_ns: u64,
    /// Its share of the bound, ns.
    pub share_ns: u64,
    /// Its share of the paper's sum without latencies, ns.
    pub paper_ns: Option<u64>,
}
