//! `lc`: fills the node of the service application, then nodes that are drawn at random.

use super::Chosen;
use super::problem::Problem;
use super::refusal::Refusal;

pub(super) fn place(problem: &Problem<'_>, seed: u64) -> Result<Chosen, Refusal> {
    let mut unused: Vec<usize> = (0..problem.network.nodes.len()).collect();
    let mut current = application_node(problem);
    unused.swap_remove(current);
    let mut used = Vec::new();
    let mut why = "the node of the service application".to_owned();
    let mut draw = fastrand::Rng::with_seed(seed);
    let (mut nodes, mut chosen) = (Vec::new(), Chosen::new());
    for fixed in &problem.fixed {
        if let Some(node) = *fixed {
            nodes.push(problem.first_fit(&nodes, [node])?);
            chosen.push((node, super::FIXED.to_owned()));
            continue;
        }
        if problem.first_fit(&nodes, [current]).is_err() {
            draw.shuffle(&mut unused);
            let name = &problem.network.nodes[current].name;
            why = format!("drawn at random after `{name}`, which has no room");
            used.push(current);
            // A node that another function found full may have room for this one.
            let order = unused.iter().chain(&used).copied();
            current = problem.first_fit(&nodes, order)?;
            unused.retain(|node| *node != current);
        }
        nodes.push(current);
        chosen.push((current, why.clone()));
    }
    Ok(chosen)
}

/// Returns the node next to the egress, where the service application runs.
fn application_node(problem: &Problem<'_>) -> usize {
    let tree = problem.tree(problem.request.egress);
    let nodes = 0..problem.network.nodes.len();
    let nearest = nodes.min_by_key(|node| tree.distance_fs(*node).unwrap_or(u128::MAX));
    nearest.unwrap_or_default()
}
