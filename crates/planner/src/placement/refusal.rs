//! Refusals: the constraint that no placement keeps.

use std::collections::BTreeMap;

use myelin_spec::PlacementAlgorithm;
use myelin_spec::units::DURATION;

use super::optimal::MAX_PLACEMENTS;
use super::problem::{Problem, Violation};
use super::time;

/// Why a chain has no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The network or the request contradicts itself.
    #[error("{0}")]
    Input(String),
    /// No node has the name that the chain file fixes.
    #[error(
        "the function `{function}`: `node: {node}`: there is no such node; name one of {nodes}"
    )]
    UnknownNode {
        /// The function.
        function: String,
        /// The name.
        node: String,
        /// The nodes.
        nodes: String,
    },
    /// No node can run a function.
    #[error("no node can run the function `{function}`: {why}")]
    NoNode {
        /// The function.
        function: String,
        /// Each constraint with the number of nodes that it excludes.
        why: String,
    },
    /// The placement breaks a constraint.
    #[error("the function `{function}` cannot run on the node `{node}`: {why}")]
    Broken {
        /// The function.
        function: String,
        /// The node.
        node: String,
        /// The constraint.
        why: String,
    },
    /// The worst case is above the contract.
    #[error(
        "the worst-case delay of {delay} ({links} of it on links) is above the agreed latency of {latency}, placed by `{algorithm}`; \
         agree on a higher `latency` or a smaller `burst`, or use nodes nearer to the ends",
        delay = time(*.delay_ns), links = time(*.links_ns), latency = DURATION.format(*.latency_ns)
    )]
    Latency {
        /// The algorithm.
        algorithm: PlacementAlgorithm,
        /// The worst case, ns.
        delay_ns: u64,
        /// Its part on links, ns.
        links_ns: u64,
        /// The agreed latency, ns.
        latency_ns: u64,
    },
    /// More replicas than nodes.
    #[error(
        "the function `{function}` has {count} replicas, each on a node of its own besides that of the function in front, and \
         the topology has {nodes} such nodes: write `replicas: {nodes}` or less, or add nodes"
    )]
    Replicas {
        /// The function.
        function: String,
        /// The number of replicas.
        count: usize,
        /// The nodes that can have a replica.
        nodes: usize,
    },
    /// Too many placements for `optimal`.
    #[error(
        "`placement: optimal` tries all placements, at most {MAX_PLACEMENTS}, but {functions} functions on {nodes} nodes have more; \
         write `placement: delay`"
    )]
    TooMany {
        /// Number of functions.
        functions: usize,
        /// Number of nodes.
        nodes: usize,
    },
}

/// Violations by their constraint, each with the number of nodes.
#[derive(Debug, Default)]
pub(super) struct Violations(BTreeMap<String, usize>);

impl Violations {
    pub(super) fn add(&mut self, constraint: String) {
        *self.0.entry(constraint).or_default() += 1;
    }
}

impl Problem<'_> {
    /// Describes a constraint for an error.
    pub(super) fn describe_violation(&self, violation: &Violation) -> String {
        let name = |position: usize| &self.request.functions[position].name;
        match violation {
            Violation::Fixed(node) => {
                format!("`node` fixes it on `{}`", self.network.nodes[*node].name)
            }
            Violation::AntiAffinity(other) => format!("`antiAffinity` with `{}`", name(*other)),
            Violation::NoEnd => "no link to the host of the chain's port".to_owned(),
            Violation::Memory => "too little free memory".to_owned(),
            Violation::Processor => "too little free processor time for the agreed rate".to_owned(),
            Violation::Promise => "a promise to an admitted chain would break".to_owned(),
            Violation::NoCore => "no core".to_owned(),
            Violation::NoPath => {
                "no path with enough free bandwidth for the agreed rate".to_owned()
            }
            Violation::Overflow => "figures beyond 128 bits".to_owned(),
        }
    }

    /// Creates the refusal of a placement.
    pub(super) fn refuse(&self, nodes: &[usize], violation: &Violation) -> Refusal {
        let last = nodes.len().saturating_sub(1);
        Refusal::Broken {
            function: self.request.functions[last].name.clone(),
            node: self.network.nodes[nodes[last]].name.clone(),
            why: self.describe_violation(violation),
        }
    }

    /// Creates the refusal of a function that no node can run.
    pub(super) fn refuse_function(&self, position: usize, violations: &Violations) -> Refusal {
        let why = violations.0.iter().map(|(constraint, nodes)| {
            let plural = if *nodes == 1 { "" } else { "s" };
            format!("{constraint} ({nodes} node{plural})")
        });
        Refusal::NoNode {
            function: self.request.functions[position].name.clone(),
            why: why.collect::<Vec<_>>().join("; "),
        }
    }
}
