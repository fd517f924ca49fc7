//! Evaluates a placement: its constraints, and its worst-case delay.

use std::ops::Range;

use super::network::Hop;
use super::problem::{Problem, Violation};
use crate::calculus::{ArrivalCurve, delay};

/// The worst case of a placement, or of the first functions of one.
#[derive(Debug, Clone)]
pub(super) struct Evaluation {
    pub(super) parts: Vec<Part>,
    /// Delay of parts and links, fs; to the egress if all functions are placed.
    pub(super) delay_fs: u128,
    /// The links' part of the delay, fs.
    pub(super) links_fs: u128,
    /// A delay that no placement of further functions goes below, fs.
    pub(super) least_fs: u128,
}

/// Consecutive functions on one node.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) node: usize,
    pub(super) core: usize,
    pub(super) functions: Range<usize>,
    pub(super) delay_fs: u128,
}

impl Evaluation {
    /// Returns the number of pairs of consecutive functions on different nodes.
    pub(super) fn crossings(&self) -> usize {
        self.parts.len().saturating_sub(1)
    }
}

/// Traffic that the chain adds to the servers of one type.
struct Added<K>(Vec<(K, ArrivalCurve)>);

impl<K: Copy + PartialEq> Added<K> {
    fn at(&self, server: K) -> ArrivalCurve {
        let mut all = self.0.iter();
        let found = all.find(|(other, _)| *other == server);
        found.map(|(_, curve)| *curve).unwrap_or_default()
    }

    /// Adds a curve, and returns the sum at the server.
    fn add(&mut self, server: K, curve: &ArrivalCurve) -> Option<ArrivalCurve> {
        let sum = self.at(server).plus(curve)?;
        match self.0.iter_mut().find(|(other, _)| *other == server) {
            Some((_, known)) => *known = sum,
            None => self.0.push((server, sum)),
        }
        Some(sum)
    }
}

impl Problem<'_> {
    /// Evaluates a placement of the first functions.
    ///
    /// A further function never makes a broken constraint hold, and never makes `least_fs` smaller.
    pub(super) fn evaluate(&self, nodes: &[usize]) -> Result<Evaluation, Violation> {
        self.check_nodes(nodes)?;
        self.check_memory(nodes)?;
        let mut evaluation = Evaluation {
            parts: parts(nodes),
            delay_fs: self.held_fs,
            links_fs: 0,
            least_fs: self.held_fs,
        };
        let cores = self.choose_cores(&mut evaluation)?;
        self.add_legs(&mut evaluation, nodes.len() == self.functions())?;
        for part in &mut evaluation.parts {
            part.delay_fs = self.core_delay(part.core, &cores.at(part.core))?;
            evaluation.delay_fs = sum(evaluation.delay_fs, part.delay_fs)?;
        }
        evaluation.delay_fs = sum(evaluation.delay_fs, evaluation.links_fs)?;
        Ok(evaluation)
    }

    fn check_nodes(&self, nodes: &[usize]) -> Result<(), Violation> {
        for (position, node) in nodes.iter().enumerate() {
            let ends = [0, self.functions() - 1].into_iter();
            let mut ends = ends.zip(&self.request.end_nodes);
            let is_elsewhere = |(end, nodes): (usize, &Option<Vec<usize>>)| {
                end == position && nodes.as_ref().is_some_and(|nodes| !nodes.contains(node))
            };
            if ends.any(is_elsewhere) {
                return Err(Violation::NoEnd);
            }
            if let Some(fixed) = self.fixed[position].filter(|fixed| fixed != node) {
                return Err(Violation::Fixed(fixed));
            }
            let key = |position: usize| self.request.functions[position].anti_affinity.as_deref();
            let mut earlier = (0..position).filter(|other| nodes[*other] == *node);
            let conflict =
                earlier.find(|other| key(position).is_some() && key(*other) == key(position));
            if let Some(other) = conflict {
                return Err(Violation::AntiAffinity(other));
            }
        }
        Ok(())
    }

    fn check_memory(&self, nodes: &[usize]) -> Result<(), Violation> {
        for (position, node) in nodes.iter().enumerate() {
            let here = self.request.functions.iter().zip(nodes);
            let here = here.take(position + 1).filter(|(_, other)| *other == node);
            let needed = here.fold(0_u64, |needed, (function, _)| {
                needed.saturating_add(function.memory_bytes)
            });
            if needed > self.network.nodes[*node].memory_bytes {
                return Err(Violation::Memory);
            }
        }
        Ok(())
    }

    /// Returns the longest delay at a core with further work, fs.
    fn core_delay(&self, core: usize, more: &ArrivalCurve) -> Result<u128, Violation> {
        let core = &self.network.cores[core];
        let all = core.load.plus(more).ok_or(Violation::Overflow)?;
        let delay_fs = delay(&all, &core.service).ok_or(Violation::Processor)?;
        if core
            .longest_fs
            .is_some_and(|longest_fs| delay_fs > longest_fs)
        {
            return Err(Violation::Promise);
        }
        Ok(delay_fs)
    }

    /// Chooses the core with the least delay for each part, in order. Returns the work that the
    /// chain adds to each core.
    fn choose_cores(&self, evaluation: &mut Evaluation) -> Result<Added<usize>, Violation> {
        let mut added = Added(Vec::new());
        for part in &mut evaluation.parts {
            let curve = self.part_curve(&part.functions);
            let mut best: Result<(u128, usize), Violation> = Err(Violation::NoCore);
            for core in &self.network.nodes[part.node].cores {
                let more = added.at(*core).plus(curve).ok_or(Violation::Overflow)?;
                best = match (best, self.core_delay(*core, &more)) {
                    (Ok(best), Ok(delay_fs)) => Ok(best.min((delay_fs, *core))),
                    (Err(_), Ok(delay_fs)) => Ok((delay_fs, *core)),
                    (Ok(best), Err(_)) => Ok(best),
                    (Err(_), Err(violation)) => Err(violation),
                };
            }
            let (delay_fs, core) = best?;
            part.core = core;
            added.add(core, curve).ok_or(Violation::Overflow)?;
            evaluation.least_fs = sum(evaluation.least_fs, delay_fs)?;
        }
        Ok(added)
    }

    /// Adds the delays on the links from the ingress over the nodes of all parts, and to the egress
    /// if the placement is complete.
    fn add_legs(&self, evaluation: &mut Evaluation, is_complete: bool) -> Result<(), Violation> {
        let mut added: Added<Hop> = Added(Vec::new());
        let legs = self.legs(&evaluation.parts, is_complete)?;
        for (hop, position) in &legs {
            let more = added.add(*hop, &self.leg_curves[*position]);
            let more = more.ok_or(Violation::Overflow)?;
            let link = &self.network.links[hop.link];
            let delay_fs = link.delay_with(hop.from, &more).ok_or(Violation::NoPath)?;
            evaluation.least_fs = sum(evaluation.least_fs, delay_fs)?;
        }
        for (hop, _) in legs {
            let link = &self.network.links[hop.link];
            let delay_fs = link.delay_with(hop.from, &added.at(hop));
            evaluation.links_fs = sum(evaluation.links_fs, delay_fs.ok_or(Violation::NoPath)?)?;
        }
        Ok(())
    }

    /// Returns the links from the ingress over the nodes of all parts, and to the egress if the
    /// placement is complete. Each has the position of the next function.
    fn legs(&self, parts: &[Part], is_complete: bool) -> Result<Vec<(Hop, usize)>, Violation> {
        let mut legs = Vec::new();
        let mut at = self.request.ingress;
        let stops = parts.iter().map(|part| (part.node, part.functions.start));
        let last = is_complete.then_some((self.request.egress, self.functions()));
        for (to, position) in stops.chain(last) {
            if to == at {
                continue;
            }
            let hops = self.tree(at).hops_to(to).ok_or(Violation::NoPath)?;
            legs.extend(hops.into_iter().map(|hop| (hop, position)));
            at = to;
        }
        Ok(legs)
    }

    /// Returns the bits that a complete placement adds to each link on its way.
    pub(super) fn link_loads(&self, nodes: &[usize]) -> Option<Vec<(Hop, ArrivalCurve)>> {
        let legs = self.legs(&parts(nodes), true).ok()?.into_iter();
        Some(
            legs.map(|(hop, position)| (hop, self.leg_curves[position]))
                .collect(),
        )
    }
}

fn sum(one_fs: u128, other_fs: u128) -> Result<u128, Violation> {
    one_fs.checked_add(other_fs).ok_or(Violation::Overflow)
}

/// Groups consecutive functions on the same node. Their cores are not chosen yet.
fn parts(nodes: &[usize]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (position, node) in nodes.iter().enumerate() {
        match parts.last_mut() {
            Some(part) if part.node == *node => part.functions.end = position + 1,
            _ => parts.push(Part {
                node: *node,
                core: 0,
                functions: position..position + 1,
                delay_fs: 0,
            }),
        }
    }
    parts
}
