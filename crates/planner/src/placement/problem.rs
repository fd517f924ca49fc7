//! A network and a request, prepared for many evaluations.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use myelin_spec::Space;
use myelin_spec::chain::MAX_FUNCTIONS;

use super::network::Network;
use super::paths::{Graph, Tree};
use super::refusal::{Refusal, Violations};
use super::request::{Demand, Request};
use crate::admission::{Growth, NS, Work, work_curve};
use crate::calculus::{ArrivalCurve, LeakyBucket, SECOND};
use crate::frame::LONGEST;

/// Bits of a frame on a link besides the frame: preamble, gap and frame check sequence, and the
/// headers between nodes (NSH in VXLAN over IPv4).
const WIRE_BITS: u128 = (24 + 58) * 8;

/// A constraint that a placement breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    /// The chain file fixes this node.
    Fixed(usize),
    /// The function at this position has the same key and the same node.
    AntiAffinity(usize),
    /// The node has no link to the chain's first or last host.
    NoEnd,
    Memory,
    /// The rates exceed the capacity of all cores of the node.
    Processor,
    /// The delay of each core would exceed a promise to an admitted chain.
    Promise,
    NoCore,
    /// No path has room for the chain's rate.
    NoPath,
    Overflow,
}

pub(super) struct Problem<'a> {
    pub(super) network: &'a Network,
    pub(super) request: &'a Request,
    /// The node of each function that the chain file fixes.
    pub(super) fixed: Vec<Option<usize>>,
    /// Work of the part from position `i` to before `j`, at `i * (functions + 1) + j`.
    part_curves: Vec<ArrivalCurve>,
    /// Bits on the link before each function, and behind the last.
    pub(super) leg_curves: Vec<ArrivalCurve>,
    /// Time that functions hold a packet back, fs; the same for all placements.
    pub(super) held_fs: u128,
    graph: Graph,
    trees: RefCell<HashMap<usize, Rc<Tree>>>,
}

impl<'a> Problem<'a> {
    pub(super) fn new(network: &'a Network, request: &'a Request) -> Result<Self, Refusal> {
        let count = request.functions.len();
        if count == 0 || count > MAX_FUNCTIONS {
            let fault = format!("{count} functions; a chain has 1 to {MAX_FUNCTIONS}");
            return Err(Refusal::Input(fault));
        }
        if let Some(fault) = network.find_fault() {
            return Err(Refusal::Input(fault));
        }
        if request.ingress.max(request.egress) >= network.vertices() {
            return Err(Refusal::Input("unknown ingress or egress".to_owned()));
        }
        let fixed = request.functions.iter().map(|function| {
            let name = function.node.as_ref();
            let node = |name: &String| {
                network
                    .node(name)
                    .ok_or_else(|| unknown_node(network, function, name))
            };
            name.map(node).transpose()
        });
        let fixed = fixed.collect::<Result<_, _>>()?;
        let curves = Curves::new(request);
        let overflow = || Refusal::Input("figures of the chain beyond 128 bits".to_owned());
        let leg_curves = curves.of_legs().ok_or_else(overflow)?;
        let held = request
            .functions
            .iter()
            .map(|function| function.effect.held_ns);
        Ok(Self {
            network,
            request,
            fixed,
            part_curves: curves.of_parts().ok_or_else(overflow)?,
            held_fs: held.flatten().map(|held_ns| u128::from(held_ns) * NS).sum(),
            graph: Graph::new(network, &leg_curves[0]),
            leg_curves,
            trees: RefCell::default(),
        })
    }

    /// Returns the number of functions.
    pub(super) fn functions(&self) -> usize {
        self.request.functions.len()
    }

    /// Returns the arrival curve of a part's work.
    pub(super) fn part_curve(&self, functions: &std::ops::Range<usize>) -> &ArrivalCurve {
        &self.part_curves[functions.start * (self.functions() + 1) + functions.end]
    }

    /// Returns the shortest paths from a vertex.
    pub(super) fn tree(&self, from: usize) -> Rc<Tree> {
        if let Some(tree) = self.trees.borrow().get(&from) {
            return Rc::clone(tree);
        }
        let tree = Rc::new(self.graph.shortest_paths(from));
        self.trees.borrow_mut().insert(from, Rc::clone(&tree));
        tree
    }

    /// Returns the first of `candidates` that can run the next function after those placed on
    /// `nodes`. Returns the constraints if none can.
    pub(super) fn first_fit(
        &self,
        nodes: &[usize],
        candidates: impl IntoIterator<Item = usize>,
    ) -> Result<usize, Refusal> {
        let mut violations = Violations::default();
        let mut with = nodes.to_vec();
        with.push(0);
        for candidate in candidates {
            with[nodes.len()] = candidate;
            match self.evaluate(&with) {
                Ok(_) => return Ok(candidate),
                Err(violation) => violations.add(self.describe_violation(&violation)),
            }
        }
        Err(self.refuse_function(nodes.len(), &violations))
    }
}

fn unknown_node(network: &Network, function: &Demand, name: &str) -> Refusal {
    const SHOWN: usize = 8;
    let names = network.nodes.iter().map(|node| node.name.as_str());
    let mut nodes = names.take(SHOWN).collect::<Vec<_>>().join(", ");
    if network.nodes.len() > SHOWN {
        nodes.push_str(", ...");
    }
    Refusal::UnknownNode {
        function: function.name.clone(),
        node: name.to_owned(),
        nodes,
    }
}

/// Computes the arrival curves of a request.
struct Curves<'a> {
    request: &'a Request,
    /// The change of traffic before each function, and behind the last.
    growth: Vec<Growth>,
}

impl<'a> Curves<'a> {
    fn new(request: &'a Request) -> Self {
        let mut growth = vec![Growth::none(LONGEST)];
        for function in &request.functions {
            let mut now = growth[growth.len() - 1].with_added_bytes(function.effect.added_bytes);
            if function.effect.added_packets.window > 0 {
                now = now.with_added_packets(function.effect.added_packets);
            }
            growth.push(now.with_released(function.effect.released));
        }
        Self { request, growth }
    }

    /// Returns the curve of work; that of one packet if no rate is agreed.
    fn curve(&self, work: &Work, behind: usize) -> Option<ArrivalCurve> {
        let growth = &self.growth[behind];
        if self.request.profile.is_unlimited() {
            let packet = LeakyBucket::new(work.frame_fs(growth.longest()), 0);
            return Some(ArrivalCurve::of(packet));
        }
        work_curve(&self.request.profile, work, growth)
    }

    fn of_legs(&self) -> Option<Vec<ArrivalCurve>> {
        let bits = Work {
            packet_fs: WIRE_BITS,
            byte_fs: 8,
        };
        let legs = 0..self.growth.len();
        legs.map(|behind| self.curve(&bits, behind)).collect()
    }

    fn of_parts(&self) -> Option<Vec<ArrivalCurve>> {
        let count = self.request.functions.len();
        let mut curves = vec![ArrivalCurve::default(); (count + 1) * (count + 1)];
        for first in 0..count {
            let (mut work, mut from) = (self.request.part, Space::Kernel);
            for end in first + 1..=count {
                let function = &self.request.functions[end - 1];
                if function.space == Space::User && from == Space::Kernel {
                    work = work.plus(self.request.crossing);
                }
                from = function.space;
                work = work.plus(function.work);
                curves[first * (count + 1) + end] = self.curve(&work, end)?;
            }
        }
        Some(curves)
    }
}

/// Returns the share of a capacity, millionths.
pub(super) fn share_ppm(rate: u128, capacity: u128) -> u128 {
    const MILLION: u128 = 1_000_000;
    rate.saturating_mul(MILLION) / capacity.clamp(1, SECOND.saturating_mul(MILLION))
}
