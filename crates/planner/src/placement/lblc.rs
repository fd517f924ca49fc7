//! `lblc`: the instances of `lb`, and functions exchanged among them for the fewest crossings.
//!
//! Each node keeps its number of functions. The exchange comes before chaining, so it moves no
//! instance.

use super::problem::Problem;
use super::refusal::Refusal;
use super::{Chosen, lb};

pub(super) fn place(problem: &Problem<'_>) -> Result<Chosen, Refusal> {
    let balanced = lb::place(problem)?;
    let before: Vec<usize> = balanced.iter().map(|(node, _)| *node).collect();
    let nodes = exchange(problem, &before);
    let crossings = |nodes: &[usize]| nodes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let (less, more) = (crossings(&nodes), crossings(&before));
    let exchanged = nodes.into_iter().zip(balanced);
    let explain = |(node, (balanced, why)): (usize, (usize, String))| {
        if node == balanced {
            return (node, why);
        }
        let was = &problem.network.nodes[balanced].name;
        let why = format!("exchanged, `lb` had `{was}`: {less} crossings in place of {more}");
        (node, why)
    };
    Ok(exchanged.map(explain).collect())
}

/// Exchanges functions for the fewest crossings.
///
/// Blocks, one for each node in the order of `lb`, have the fewest crossings of all. If a
/// constraint forbids the blocks, the best exchange of two functions is made as long as one helps.
fn exchange(problem: &Problem<'_>, balanced: &[usize]) -> Vec<usize> {
    let position = |node: &usize| balanced.iter().position(|other| other == node);
    let mut nodes = balanced.to_vec();
    nodes.sort_by_key(position);
    if problem.evaluate(&nodes).is_ok() {
        return nodes;
    }
    nodes.copy_from_slice(balanced);
    let crossings = |nodes: &[usize]| problem.evaluate(nodes).ok().map(|found| found.crossings());
    let mut least = crossings(&nodes);
    loop {
        let pairs = (0..nodes.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
        let exchanged = pairs.filter_map(|(one, other)| {
            let mut exchanged = nodes.clone();
            exchanged.swap(one, other);
            Some((crossings(&exchanged)?, exchanged))
        });
        match exchanged.min_by_key(|(crossings, _)| *crossings) {
            Some((crossings, exchanged)) if Some(crossings) < least => {
                least = Some(crossings);
                nodes = exchanged;
            }
            _ => return nodes,
        }
    }
}
