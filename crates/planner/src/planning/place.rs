//! Chooses a space for each function so that the whole chain costs least.
//!
//! The cost of a chain is the sum of its functions, the steps between them, and its two ends. The
//! space of a function changes only the steps before and after it. So a dynamic program over the
//! positions finds the optimum in linear time. It computes, for each position and space, the least
//! cost from that position to the end.
//!
//! Costs are whole picoseconds, because sums of floating-point numbers depend on their order, and
//! rounding would decide ties.

use myelin_spec::Space;

/// Both spaces, in the order of their numbers.
pub(crate) const SPACES: [Space; 2] = [Space::Kernel, Space::User];

/// Costs of the steps at one hook and one frame size, ps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) door: u64,
    /// From a function in the first space (or from the front door, which is in the kernel) into a
    /// function in the second space.
    pub(crate) reach: [[u64; 2]; 2],
    /// From the last function in a space to the egress.
    pub(crate) leave: [u64; 2],
}

/// Cost of a function in each allowed space, ps.
pub(crate) type SpaceCosts = [Option<u64>; 2];

/// Restricts a choice to one space.
pub(crate) fn restrict_to(choice: SpaceCosts, space: Space) -> SpaceCosts {
    SPACES.map(|candidate| choice[candidate as usize].filter(|_| candidate == space))
}

/// The score of a placement; the least score is the best. Of placements with equal cost, fewer user
/// functions are better.
///
/// Only one placement has the best score. Proof: let two placements have the best score. A third
/// placement puts a function into the kernel if one of the two placements does. The third costs no
/// more (two changes of space never cost less than none), and has fewer user functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    pub(crate) cost_ps: u64,
    pub(crate) user_functions: usize,
}

/// A space for each function, and the score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) spaces: Vec<Space>,
    pub(crate) score: Score,
}

/// Finds the best placement. Returns `None` if a function has no allowed space.
pub(crate) fn find_cheapest(functions: &[SpaceCosts], steps: &Steps) -> Option<Placement> {
    // rest[p][s]: the best score from function p in space s to the end of the chain, without the
    // step to p.
    let mut rest = vec![[None; 2]; functions.len()];
    for position in (0..functions.len()).rev() {
        for space in SPACES {
            let onward = match rest.get(position + 1) {
                None => Some(Score {
                    cost_ps: steps.leave[space as usize],
                    user_functions: 0,
                }),
                Some(next) => best_next(next, steps, space).map(|(_, score)| score),
            };
            let cost = functions[position][space as usize];
            rest[position][space as usize] = cost.zip(onward).map(|(cost, onward)| Score {
                cost_ps: onward.cost_ps + cost,
                user_functions: onward.user_functions + usize::from(space == Space::User),
            });
        }
    }
    let mut spaces = Vec::with_capacity(functions.len());
    let mut total = None;
    for scores in &rest {
        let from = spaces.last().copied().unwrap_or(Space::Kernel);
        let (space, score) = best_next(scores, steps, from)?;
        total.get_or_insert(score);
        spaces.push(space);
    }
    let mut score = total?;
    score.cost_ps += steps.door;
    Some(Placement { spaces, score })
}

/// Returns the better space for the next function, and the score from the current function to the
/// end.
fn best_next(scores: &[Option<Score>; 2], steps: &Steps, from: Space) -> Option<(Space, Score)> {
    let reached = SPACES.into_iter().filter_map(|space| {
        let mut score = scores[space as usize]?;
        score.cost_ps += steps.reach[from as usize][space as usize];
        Some((space, score))
    });
    reached.min_by_key(|(_, score)| *score)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sums the cost of one placement along the path.
    fn cost(functions: &[SpaceCosts], steps: &Steps, spaces: &[Space]) -> Option<u64> {
        let mut total = steps.door;
        let mut from = Space::Kernel;
        for (function, &space) in functions.iter().zip(spaces) {
            total += steps.reach[from as usize][space as usize] + function[space as usize]?;
            from = space;
        }
        let last = *spaces.last()?;
        Some(total + steps.leave[last as usize])
    }

    /// Tries every placement.
    fn brute_force(functions: &[SpaceCosts], steps: &Steps) -> Option<Placement> {
        let mut found: Option<Placement> = None;
        for bits in 0..1_u32 << functions.len() {
            let spaces: Vec<_> = (0..functions.len())
                .map(|position| {
                    if bits >> (functions.len() - 1 - position) & 1 == 0 {
                        Space::Kernel
                    } else {
                        Space::User
                    }
                })
                .collect();
            let Some(cost_ps) = cost(functions, steps, &spaces) else {
                continue;
            };
            let user_functions = spaces.iter().filter(|space| **space == Space::User).count();
            let score = Score {
                cost_ps,
                user_functions,
            };
            if found.as_ref().is_none_or(|found| score < found.score) {
                found = Some(Placement { spaces, score });
            }
        }
        found
    }

    /// A cost from a small range, so that equal costs are common, or from a large range.
    fn cost_ps() -> impl Strategy<Value = u64> {
        prop_oneof![0..4_u64, 0..5_000_000_u64]
    }

    fn choice() -> impl Strategy<Value = SpaceCosts> {
        // Free, pinned to either space, or impossible.
        let kind = prop_oneof![8 => Just(0), 2 => Just(1), 2 => Just(2), 1 => Just(3)];
        (kind, cost_ps(), cost_ps()).prop_map(|(kind, kernel, user)| {
            [
                (kind == 0 || kind == 1).then_some(kernel),
                (kind == 0 || kind == 2).then_some(user),
            ]
        })
    }

    fn steps() -> impl Strategy<Value = Steps> {
        prop::array::uniform7(cost_ps()).prop_map(
            |[
                door,
                hop,
                enter,
                dispatch,
                return_to_kernel,
                kernel_egress,
                user_egress,
            ]| Steps {
                door,
                reach: [[hop, enter + dispatch], [return_to_kernel + hop, dispatch]],
                leave: [kernel_egress, user_egress],
            },
        )
    }

    proptest! {
        #[test]
        fn dynamic_program_equals_brute_force(
            functions in prop::collection::vec(choice(), 1..=12),
            steps in steps(),
        ) {
            prop_assert_eq!(find_cheapest(&functions, &steps), brute_force(&functions, &steps));
        }
    }

    #[test]
    fn equal_costs_choose_the_kernel() {
        let zero = Steps {
            door: 0,
            reach: [[0; 2]; 2],
            leave: [0; 2],
        };
        let placement = find_cheapest(&[[Some(7); 2]; 5], &zero).unwrap();
        assert_eq!(placement.spaces, [Space::Kernel; 5]);
    }

    #[test]
    fn chain_without_functions_has_no_placement() {
        let steps = Steps {
            door: 1,
            reach: [[1; 2]; 2],
            leave: [1; 2],
        };
        assert_eq!(find_cheapest(&[], &steps), None);
    }
}
