//! `delay`: the least worst-case delay that a search of bounded work finds.
//!
//! The search extends the best placements of the first functions (a beam) over the most promising
//! nodes of each function. It then moves runs of functions as long as a move helps. It begins with
//! the results of `lblc` and `lc` too, so it is never worse than those. Where all placements are no
//! more work than the moves, it takes the best of all.
//!
//! Only the choice of promising nodes depends on the size of the network, and takes time in
//! proportion to nodes and links.

use std::collections::BTreeSet;

use super::evaluate::Evaluation;
use super::optimal::{self, NO_WAY, rank};
use super::problem::Problem;
use super::refusal::Refusal;
use super::{Chosen, lblc, lc, ns_up, time};
use crate::calculus::delay;

/// Promising nodes of each function.
const CANDIDATES: usize = 16;
/// Placements of the first functions that the search extends, and those of them with the same last
/// node.
const BEAM: usize = 16;
const SAME_LAST: usize = 4;
/// Most evaluations of moves.
const MOVES: usize = 8192;

pub(super) fn place(problem: &Problem<'_>, seed: u64) -> Result<Chosen, Refusal> {
    let candidates = Candidates::new(problem);
    let searched = search(problem, &candidates);
    let known = [lblc::place(problem), lc::place(problem, seed)];
    let known = known.into_iter().flatten();
    let known = known.map(|chosen| chosen.into_iter().map(|(node, _)| node).collect());
    let starts: Vec<Vec<usize>> = searched.iter().cloned().chain(known).collect();
    let ranked = starts.into_iter().filter_map(|nodes| {
        let evaluation = problem.evaluate(&nodes).ok()?;
        Some((rank(&evaluation), nodes))
    });
    let Some(best) = ranked.min() else {
        // In a small network, the search over all placements decides.
        let refusal = |_| searched.err().unwrap_or(Refusal::Input(NO_WAY.to_owned()));
        return optimal::place(problem).map_err(refusal);
    };
    let nodes = optimal::best_of(problem, MOVES as u64)
        .unwrap_or_else(|| improve(problem, &candidates, best));
    Ok(explain(problem, &candidates, &nodes))
}

/// The promising nodes of each function.
struct Candidates(Vec<Vec<usize>>);

impl Candidates {
    /// Chooses the nodes with the least delay of the function alone, and of the whole chain.
    fn new(problem: &Problem<'_>) -> Self {
        let whole = Self::best(problem, 0..problem.functions());
        let functions = 0..problem.functions();
        let of_function = |position: usize| {
            if let Some(node) = problem.fixed[position] {
                return vec![node];
            }
            let own = Self::best(problem, position..position + 1);
            let ends = problem.request.end_nodes.iter().flatten().flatten();
            let all: BTreeSet<usize> = own.into_iter().chain(whole.iter().copied()).collect();
            let all = all.into_iter().chain(ends.take(CANDIDATES).copied());
            let all: BTreeSet<usize> = all.collect();
            all.into_iter().collect()
        };
        Self(functions.map(of_function).collect())
    }

    /// Returns the nodes with room for these functions, and the least delay from ingress over the
    /// node to egress.
    fn best(problem: &Problem<'_>, functions: std::ops::Range<usize>) -> Vec<usize> {
        let request = problem.request;
        let (from, to) = (problem.tree(request.ingress), problem.tree(request.egress));
        let needed = request.functions[functions.clone()].iter();
        let needed = needed.fold(0_u64, |sum, one| sum.saturating_add(one.memory_bytes));
        let curve = problem.part_curve(&functions);
        let delay_at = |core: &usize| {
            let core = &problem.network.cores[*core];
            let delay_fs = delay(&core.load.plus(curve)?, &core.service)?;
            let keeps_promises = core
                .longest_fs
                .is_none_or(|longest_fs| delay_fs <= longest_fs);
            keeps_promises.then_some(delay_fs)
        };
        let nodes = problem.network.nodes.iter().enumerate();
        let nodes = nodes.filter(|(_, node)| node.memory_bytes >= needed);
        let ranked = nodes.filter_map(|(number, node)| {
            let here_fs = node.cores.iter().filter_map(delay_at).min()?;
            let links_fs = from
                .distance_fs(number)?
                .saturating_add(to.distance_fs(number)?);
            Some((links_fs.saturating_add(here_fs), number))
        });
        let mut ranked: Vec<_> = ranked.collect();
        if ranked.len() > CANDIDATES {
            ranked.select_nth_unstable(CANDIDATES);
            ranked.truncate(CANDIDATES);
        }
        ranked.into_iter().map(|(_, number)| number).collect()
    }
}

/// Extends placements function by function, and returns the best complete one.
fn search(problem: &Problem<'_>, candidates: &Candidates) -> Result<Vec<usize>, Refusal> {
    let to_egress = problem.tree(problem.request.egress);
    let mut beam: Vec<Vec<usize>> = vec![Vec::new()];
    for (position, nodes) in candidates.0.iter().enumerate() {
        let mut extended = extend(problem, &beam, nodes);
        if extended.is_empty() {
            // None of the promising nodes can run the function: try all nodes.
            let all = 0..problem.network.nodes.len();
            let placed = |before: &Vec<usize>| problem.first_fit(before, all.clone());
            let mut found = beam.iter().map(placed);
            let first = found.next().unwrap_or_else(|| problem.first_fit(&[], []));
            let other = found.find_map(Result::ok);
            let node = first.or_else(|refusal| other.ok_or(refusal))?;
            extended = extend(problem, &beam, &[node]);
        }
        let is_last = position + 1 == problem.functions();
        let rest_fs = |evaluation: &Evaluation| match evaluation.parts.last() {
            Some(part) if !is_last => to_egress.distance_fs(part.node).unwrap_or(u128::MAX),
            _ => 0,
        };
        extended.sort_by_cached_key(|(evaluation, _)| {
            let (delay_fs, crossings) = rank(evaluation);
            (delay_fs.saturating_add(rest_fs(evaluation)), crossings)
        });
        beam.clear();
        for (_, nodes) in extended {
            let same = beam.iter().filter(|other| other.last() == nodes.last());
            if beam.len() < BEAM && same.count() < SAME_LAST {
                beam.push(nodes);
            }
        }
    }
    Ok(beam.swap_remove(0))
}

/// Returns the placements with one more function that keep all constraints.
fn extend(
    problem: &Problem<'_>,
    beam: &[Vec<usize>],
    nodes: &[usize],
) -> Vec<(Evaluation, Vec<usize>)> {
    let pairs = beam
        .iter()
        .flat_map(|before| nodes.iter().map(move |node| (before, *node)));
    let extended = pairs.filter_map(|(before, node)| {
        let mut with = before.clone();
        with.push(node);
        Some((problem.evaluate(&with).ok()?, with))
    });
    extended.collect()
}

/// Moves runs of functions to other nodes as long as a move helps.
fn improve(
    problem: &Problem<'_>,
    candidates: &Candidates,
    (mut best, mut nodes): ((u128, usize), Vec<usize>),
) -> Vec<usize> {
    let count = nodes.len();
    let mut left = MOVES;
    loop {
        let mut moved = None;
        'moves: for length in 1..=count {
            for first in 0..=count - length {
                for node in &candidates.0[first] {
                    if nodes[first..first + length]
                        .iter()
                        .all(|other| other == node)
                    {
                        continue;
                    }
                    if left == 0 {
                        return nodes;
                    }
                    left -= 1;
                    let mut with = nodes.clone();
                    with[first..first + length].fill(*node);
                    let rank = problem.evaluate(&with).ok().map(|found| rank(&found));
                    if let Some(rank) = rank.filter(|rank| *rank < best) {
                        moved = Some((rank, with));
                        break 'moves;
                    }
                }
            }
        }
        match moved {
            Some((rank, with)) => (best, nodes) = (rank, with),
            None => return nodes,
        }
    }
}

/// Explains each node by the delay with the function on its best other node.
fn explain(problem: &Problem<'_>, candidates: &Candidates, nodes: &[usize]) -> Chosen {
    let mut chosen = Chosen::new();
    for (position, node) in nodes.iter().enumerate() {
        let others = candidates.0[position].iter().filter(|other| *other != node);
        let others = others.map(|other| {
            let mut with = nodes.to_vec();
            with[position] = *other;
            let delay_fs = problem.evaluate(&with).map(|found| found.delay_fs);
            (delay_fs, &problem.network.nodes[*other].name)
        });
        let (mut nearest, mut broken) = (None, None);
        for (delay_fs, name) in others {
            match delay_fs {
                Ok(delay_fs) => nearest = nearest.into_iter().chain([(delay_fs, name)]).min(),
                Err(violation) => broken = broken.or(Some((violation, name))),
            }
        }
        let why = match (problem.fixed[position], nearest, broken) {
            (Some(_), ..) => super::FIXED.to_owned(),
            (_, Some((delay_fs, name)), _) => {
                format!("least delay found; on `{name}` {}", time(ns_up(delay_fs)))
            }
            (_, None, Some((violation, name))) => {
                let why = problem.describe_violation(&violation);
                format!("least delay found; not on `{name}`: {why}")
            }
            (_, None, None) => "the only node with room".to_owned(),
        };
        chosen.push((*node, why));
    }
    chosen
}
