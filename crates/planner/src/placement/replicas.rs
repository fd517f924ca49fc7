//! Places the replicas of a function: a path for each, through another node.

use std::collections::BTreeSet;

use myelin_spec::ServiceChain;

use super::{Placement, Refusal};

/// Keeps the first replica away from the function in front of it, whose node splits the flows.
const SPLIT: &str = "replicas and the function in front of them";

/// The paths to place.
pub struct Paths<'a> {
    /// The chain.
    pub chain: &'a ServiceChain,
    /// The nodes of the topology.
    pub nodes: Vec<&'a str>,
    /// The nodes that have replicas already. Replicas stay there, so that their flows stay.
    pub kept: BTreeSet<String>,
    /// Whether a node may have a replica now. Fewer replicas run while nodes may not.
    pub is_trusted: &'a dyn Fn(&str) -> bool,
    /// Places a chain, as if it had no replicas.
    pub place: &'a dyn Fn(&ServiceChain) -> Result<Placement, Refusal>,
}

/// Places each path of a chain: one, or with replicas of a function one for each replica. All other
/// functions have the same node on all paths. Each further replica is where the path through it has
/// the least delay.
///
/// # Errors
/// The constraint that no placement keeps.
pub fn place_paths(paths: &Paths<'_>) -> Result<Vec<Placement>, Refusal> {
    let Some((position, count)) = paths.chain.replicated() else {
        return Ok(vec![(paths.place)(paths.chain)?]);
    };
    let first = place_first(paths, position)?;
    let at = |position: usize| {
        let function = first.functions.get(position);
        function.map(|function| function.node.as_str())
    };
    let splitting = position.checked_sub(1).and_then(at);
    let possible = paths.nodes.iter().filter(|node| splitting != Some(node));
    let possible: Vec<&str> = possible.copied().collect();
    if possible.len() < count {
        return Err(Refusal::Replicas {
            function: paths.chain.functions[position].name.clone(),
            count,
            nodes: possible.len(),
        });
    }
    let mut found: Vec<(bool, u64, &str, Placement)> = Vec::new();
    let (mut missing, mut refusal) = (0, None);
    for node in possible {
        if at(position) == Some(node) {
            continue;
        }
        if !(paths.is_trusted)(node) {
            missing += 1;
            continue;
        }
        match (paths.place)(&through(paths.chain, &first, (position, node))) {
            Ok(placed) => found.push((!paths.kept.contains(node), placed.delay_ns, node, placed)),
            Err(other) => refusal = Some(other),
        }
    }
    found.sort_by(|one, other| (one.0, one.1, one.2).cmp(&(other.0, other.1, other.2)));
    found.truncate(count - 1);
    match refusal {
        Some(refusal) if 1 + found.len() + missing < count => Err(refusal),
        _ => {
            let others = found.into_iter().map(|(.., placed)| placed);
            Ok(std::iter::once(first).chain(others).collect())
        }
    }
}

/// Places the path through the first replica.
fn place_first(paths: &Paths<'_>, position: usize) -> Result<Placement, Refusal> {
    let mut apart = paths.chain.clone();
    if let Some((before, [replicated, ..])) = apart.functions.split_at_mut_checked(position)
        && let Some(before) = before.last_mut()
    {
        let group = before.anti_affinity.get_or_insert_with(|| SPLIT.to_owned());
        replicated.anti_affinity = Some(group.clone());
    }
    let kept = paths.kept.iter().filter(|node| (paths.is_trusted)(node));
    let mut kept = kept.filter_map(|node| {
        let mut chain = apart.clone();
        chain.functions[position].node = Some(node.clone());
        (paths.place)(&chain).ok()
    });
    kept.next().map_or_else(|| (paths.place)(&apart), Ok)
}

/// Returns the chain with the nodes of a placement, but another node at a position.
fn through(
    chain: &ServiceChain,
    placed: &Placement,
    (position, node): (usize, &str),
) -> ServiceChain {
    let mut chain = chain.clone();
    for (function, place) in chain.functions.iter_mut().zip(&placed.functions) {
        function.node = Some(place.node.clone());
    }
    chain.functions[position].node = Some(node.to_owned());
    chain
}
