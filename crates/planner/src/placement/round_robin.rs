//! `round-robin`: the nodes in turn.

use super::Chosen;
use super::problem::Problem;
use super::refusal::Refusal;

pub(super) fn place(problem: &Problem<'_>) -> Result<Chosen, Refusal> {
    let count = problem.network.nodes.len();
    let (mut nodes, mut chosen, mut next) = (Vec::new(), Chosen::new(), 0);
    for fixed in &problem.fixed {
        let (node, why) = if let Some(node) = *fixed {
            (problem.first_fit(&nodes, [node])?, super::FIXED)
        } else {
            let turns = (0..count).map(|turn| (next + turn) % count);
            let node = problem.first_fit(&nodes, turns)?;
            next = (node + 1) % count;
            (node, "next in turn")
        };
        nodes.push(node);
        chosen.push((node, why.to_owned()));
    }
    Ok(chosen)
}
