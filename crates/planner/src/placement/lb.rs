//! `lb`: each function on the node with the least load.

use super::Chosen;
use super::evaluate::Evaluation;
use super::problem::{Problem, share_ppm};
use super::refusal::Refusal;

pub(super) fn place(problem: &Problem<'_>) -> Result<Chosen, Refusal> {
    let idle = Loads::new(problem);
    let (mut nodes, mut chosen) = (Vec::new(), Chosen::new());
    for fixed in &problem.fixed {
        let loads = match problem.evaluate(&nodes) {
            Ok(evaluation) => idle.with(problem, &evaluation),
            Err(violation) => return Err(problem.refuse(&nodes, &violation)),
        };
        let mut order: Vec<usize> = match *fixed {
            Some(node) => vec![node],
            None => (0..loads.0.len()).collect(),
        };
        // The order of equal nodes is that of the network.
        order.sort_by_key(|node| loads.0[*node]);
        let node = problem.first_fit(&nodes, order)?;
        let why = match fixed {
            Some(_) => super::FIXED.to_owned(),
            None => format!("least load: {:.1} % reserved before", loads.percent(node)),
        };
        nodes.push(node);
        chosen.push((node, why));
    }
    Ok(chosen)
}

/// The reserved share of each node's processor time, millionths.
struct Loads(Vec<u128>);

impl Loads {
    /// Returns the loads without the chain.
    fn new(problem: &Problem<'_>) -> Self {
        let nodes = 0..problem.network.nodes.len();
        Self(nodes.map(|node| load_ppm(problem, node, &[])).collect())
    }

    /// Returns the loads with the functions that are placed.
    fn with(&self, problem: &Problem<'_>, evaluation: &Evaluation) -> Self {
        let parts = evaluation.parts.iter();
        let added: Vec<(usize, u128)> = parts
            .map(|part| (part.core, problem.part_curve(&part.functions).long().rate))
            .collect();
        let mut loads = self.0.clone();
        for (node, load) in loads.iter_mut().enumerate() {
            let cores = &problem.network.nodes[node].cores;
            if added.iter().any(|(core, _)| cores.contains(core)) {
                *load = load_ppm(problem, node, &added);
            }
        }
        Self(loads)
    }

    fn percent(&self, node: usize) -> f64 {
        self.0[node] as f64 / 1e4
    }
}

/// Returns the reserved share of a node's cores with further work on some of them, millionths.
fn load_ppm(problem: &Problem<'_>, node: usize, added: &[(usize, u128)]) -> u128 {
    let (mut reserved, mut capacity) = (0_u128, 0_u128);
    for core in &problem.network.nodes[node].cores {
        let room = &problem.network.cores[*core];
        let here = added.iter().filter(|(other, _)| other == core);
        let added: u128 = here.map(|(_, rate)| *rate).sum();
        reserved = reserved.saturating_add(room.load.long().rate.saturating_add(added));
        capacity = capacity.saturating_add(room.service.rate);
    }
    share_ppm(reserved, capacity)
}
