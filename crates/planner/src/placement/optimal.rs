//! `optimal`: the least worst-case delay of all placements, by branch and bound.

use super::Chosen;
use super::evaluate::Evaluation;
use super::problem::Problem;
use super::refusal::Refusal;

/// Most placements among which `optimal` chooses.
pub const MAX_PLACEMENTS: u64 = 1_000_000;

/// The refusal if all functions have nodes, but no path leads on.
pub(super) const NO_WAY: &str = "no placement leads on to the egress";

pub(super) fn place(problem: &Problem<'_>) -> Result<Chosen, Refusal> {
    let count = problem.network.nodes.len();
    let Some(search) = Search::over(problem, MAX_PLACEMENTS) else {
        return Err(Refusal::TooMany {
            functions: free_functions(problem),
            nodes: count,
        });
    };
    let Some((_, nodes)) = search.best else {
        // The furthest placement explains which function has no node.
        let nodes = search.furthest;
        let refused = problem.first_fit(&nodes, 0..count);
        let no_way = Refusal::Input(NO_WAY.to_owned());
        return Err(refused.err().unwrap_or(no_way));
    };
    let chosen = nodes.into_iter().zip(&problem.fixed);
    let explain = |(node, fixed): (usize, &Option<usize>)| match fixed {
        Some(_) => (node, super::FIXED.to_owned()),
        None => (node, "least delay of all placements".to_owned()),
    };
    Ok(chosen.map(explain).collect())
}

/// Returns the nodes of the best placement; `None` if there are more placements than `most`, or no
/// placement keeps all constraints.
pub(super) fn best_of(problem: &Problem<'_>, most: u64) -> Option<Vec<usize>> {
    let (_, nodes) = Search::over(problem, most)?.best?;
    Some(nodes)
}

fn free_functions(problem: &Problem<'_>) -> usize {
    problem.fixed.iter().filter(|fixed| fixed.is_none()).count()
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    /// The least delay, then the fewest crossings.
    best: Option<((u128, usize), Vec<usize>)>,
    /// The longest placement of first functions that keeps all constraints.
    furthest: Vec<usize>,
}

impl<'a> Search<'a> {
    /// Searches all placements; `None` if there are more than `most`.
    fn over(problem: &'a Problem<'a>, most: u64) -> Option<Self> {
        let count = problem.network.nodes.len() as u64;
        let placements = count.checked_pow(free_functions(problem) as u32)?;
        let mut search = Self {
            problem,
            best: None,
            furthest: Vec::new(),
        };
        (placements <= most).then(|| search.extend(&mut Vec::new()))?;
        Some(search)
    }

    fn extend(&mut self, nodes: &mut Vec<usize>) {
        if nodes.len() > self.furthest.len() {
            self.furthest.clone_from(nodes);
        }
        let is_last = nodes.len() + 1 == self.problem.functions();
        for node in 0..self.problem.network.nodes.len() {
            nodes.push(node);
            if let Ok(evaluation) = self.problem.evaluate(nodes)
                && self.can_improve(&evaluation)
            {
                if is_last {
                    self.best = Some((rank(&evaluation), nodes.clone()));
                } else {
                    self.extend(nodes);
                }
            }
            nodes.pop();
        }
    }

    fn can_improve(&self, evaluation: &Evaluation) -> bool {
        let Some((best, _)) = &self.best else {
            return true;
        };
        if evaluation.parts.last().map(|part| part.functions.end) == Some(self.problem.functions())
        {
            return rank(evaluation) < *best;
        }
        (evaluation.least_fs, evaluation.crossings()) < *best
    }
}

/// The order of complete placements.
pub(super) fn rank(evaluation: &Evaluation) -> (u128, usize) {
    (evaluation.delay_fs, evaluation.crossings())
}
