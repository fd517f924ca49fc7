//! Places the functions of a chain on nodes.
//!
//! [`place`] takes a [`Network`] (nodes with their free capacity, and links) and a [`Request`] (a
//! chain's costs, profile and contract). It returns the node of each function with the reason, or
//! the [`Refusal`] that names the constraint. It reads no clock: the work of each algorithm has a
//! limit in numbers of placements.
//!
//! Consecutive functions on one node are a *part* of the chain. Each part leaves in the chain's
//! profile, so the bounds of parts and links add up to the bound of the chain. A core is one
//! first-come, first-served server for all nodes that share it.
//!
//! `lb`, `lc` and `lblc` are those of Xiang, dissertation, TU Dresden 2022, section 2.4. A file
//! each: `lb`, `lc`, `lblc`, `round_robin`, `optimal`, and `delay`, which is Myelin's own.

mod delay;
mod evaluate;
mod lb;
mod lblc;
mod lc;
mod network;
mod optimal;
mod paths;
mod problem;
mod refusal;
mod replicas;
mod request;
mod round_robin;
mod topology;

use std::ops::Range;

use myelin_spec::PlacementAlgorithm;
use serde::Serialize;

use evaluate::Evaluation;
use problem::Problem;

pub use network::{CoreRoom, Hop, LinkRoom, Network, NodeRoom};
pub use optimal::MAX_PLACEMENTS;
pub use refusal::Refusal;
pub use replicas::{Paths, place_paths};
pub use request::{Demand, Request};
pub use topology::{Running, TopologyNetwork, place_on};

/// A placement: the node of each function, and the worst case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The algorithm.
    pub algorithm: PlacementAlgorithm,
    /// The functions, in the chain's order.
    pub functions: Vec<PlacedFunction>,
    /// The parts, in the chain's order.
    pub parts: Vec<PlacedPart>,
    /// Pairs of consecutive functions on different nodes.
    pub crossings: usize,
    /// Worst-case delay from ingress to egress, ns; of a single packet without an agreed rate.
    pub delay_ns: u64,
    /// The part of the delay on links between nodes and ends, ns.
    pub links_ns: u64,
}

/// The place of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedFunction {
    /// The function.
    pub name: String,
    /// The node.
    pub node: String,
    /// Why it is there.
    pub why: String,
}

/// Consecutive functions on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedPart {
    /// The node.
    pub node: String,
    /// Positions of the functions in the chain.
    pub functions: Range<usize>,
    /// Number of the core of the part's worker.
    pub core: u32,
    /// Worst-case delay in the part, ns.
    pub delay_ns: u64,
}

/// Nodes by position in the chain, each with the reason.
type Chosen = Vec<(usize, String)>;

/// The reason for the node of a function that the chain file fixes.
const FIXED: &str = "`node` in the chain file";

/// Places the functions of a chain with an algorithm. Equal seeds give equal placements; only `lc`
/// draws.
///
/// # Errors
/// The constraint that no node or no found placement keeps.
pub fn place(
    network: &Network,
    request: &Request,
    algorithm: PlacementAlgorithm,
    seed: u64,
) -> Result<Placement, Refusal> {
    let problem = Problem::new(network, request)?;
    let chosen = match algorithm {
        PlacementAlgorithm::LoadBalancing => lb::place(&problem),
        PlacementAlgorithm::LeastConnections => lc::place(&problem, seed),
        PlacementAlgorithm::LoadBalancingLeastConnections => lblc::place(&problem),
        PlacementAlgorithm::RoundRobin => round_robin::place(&problem),
        PlacementAlgorithm::Optimal => optimal::place(&problem),
        PlacementAlgorithm::Delay => delay::place(&problem, seed),
    }?;
    let nodes: Vec<usize> = chosen.iter().map(|(node, _)| *node).collect();
    let evaluation = problem.evaluate(&nodes);
    let evaluation = evaluation.map_err(|violation| problem.refuse(&nodes, &violation))?;
    problem.check_latency(&evaluation, algorithm)?;
    Ok(problem.describe(algorithm, chosen, &evaluation))
}

/// Converts a time to nanoseconds, rounded up.
fn ns_up(fs: u128) -> u64 {
    u64::try_from(fs.div_ceil(crate::admission::NS)).unwrap_or(u64::MAX)
}

/// Formats a time in microseconds.
fn time(ns: u64) -> String {
    const US: f64 = 1e3;
    format!("{:.1} us", ns as f64 / US)
}

impl Problem<'_> {
    /// Compares the worst case with the contract. Without a rate there is no worst case.
    fn check_latency(
        &self,
        evaluation: &Evaluation,
        algorithm: PlacementAlgorithm,
    ) -> Result<(), Refusal> {
        let delay_ns = ns_up(evaluation.delay_fs);
        let latency_ns = self.request.latency_ns.unwrap_or(u64::MAX);
        if delay_ns <= latency_ns || self.request.profile.is_unlimited() {
            return Ok(());
        }
        Err(Refusal::Latency {
            algorithm,
            delay_ns,
            links_ns: ns_up(evaluation.links_fs),
            latency_ns,
        })
    }

    fn describe(
        &self,
        algorithm: PlacementAlgorithm,
        chosen: Chosen,
        evaluation: &Evaluation,
    ) -> Placement {
        let name = |node: usize| self.network.nodes[node].name.clone();
        let functions = self.request.functions.iter().zip(chosen);
        let parts = evaluation.parts.iter().map(|part| PlacedPart {
            node: name(part.node),
            functions: part.functions.clone(),
            core: self.network.cores[part.core].number,
            delay_ns: ns_up(part.delay_fs),
        });
        Placement {
            algorithm,
            crossings: evaluation.crossings(),
            parts: parts.collect(),
            delay_ns: ns_up(evaluation.delay_fs),
            links_ns: ns_up(evaluation.links_fs),
            functions: functions
                .map(|(function, (node, why))| PlacedFunction {
                    name: function.name.clone(),
                    node: name(node),
                    why,
                })
                .collect(),
        }
    }
}
