//! Choosing a space for each function so that the whole chain costs least.
//!
//! The cost of a chain is that of its functions, of the steps between them and of its two ends. Only neighbours
//! influence each other, so a dynamic program over the positions finds the optimum in time linear in the length: for each
//! position and space, the least cost from there to the end.
//!
//! All reckoning is in whole picoseconds: sums of floating-point numbers depend on their order, and then a tie would be
//! decided by rounding.

use myelin_spec::Space;

/// Costs of the steps at one hook and one frame size, ps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) door: u64,
    pub(crate) hop: u64,
    pub(crate) enter_user: u64,
    pub(crate) dispatch: u64,
    pub(crate) user_to_kernel: u64,
    pub(crate) kernel_egress: u64,
    pub(crate) user_egress: u64,
}

impl Steps {
    /// The same costs where each function is reached by a link of its own and left by it: what came before makes no
    /// difference, and a function in user space is entered and left in either case.
    pub(crate) fn by_links(self, link: u64) -> Self {
        Self {
            hop: link,
            enter_user: 0,
            dispatch: link + self.enter_user + self.dispatch + self.user_to_kernel,
            user_to_kernel: 0,
            user_egress: self.kernel_egress,
            ..self
        }
    }

    /// From the function before (`None`: from the front door) into a function of `space`.
    pub(crate) fn reach(&self, from: Option<Space>, space: Space) -> u64 {
        match (from.unwrap_or(Space::Kernel), space) {
            (Space::Kernel, Space::Kernel) => self.hop,
            (Space::Kernel, Space::User) => self.enter_user + self.dispatch,
            (Space::User, Space::User) => self.dispatch,
            (Space::User, Space::Kernel) => self.user_to_kernel + self.hop,
        }
    }

    /// From a last function of `space` out of the chain.
    pub(crate) fn leave(&self, space: Space) -> u64 {
        match space {
            Space::Kernel => self.kernel_egress,
            Space::User => self.user_egress,
        }
    }
}

/// What a function costs in each space that it may be placed in, ps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) kernel: Option<u64>,
    pub(crate) user: Option<u64>,
}

impl Choice {
    pub(crate) fn cost(&self, space: Space) -> Option<u64> {
        match space {
            Space::Kernel => self.kernel,
            Space::User => self.user,
        }
    }

    /// The same choice without the other space.
    pub(crate) fn only(self, space: Space) -> Self {
        match space {
            Space::Kernel => Self { user: None, ..self },
            Space::User => Self {
                kernel: None,
                ..self
            },
        }
    }
}

/// How good a placement is; the least is the best. Of equal costs the one with fewer user functions wins.
///
/// No two best placements have the same score: of two that cost the same, the one with a kernel function wherever either
/// has one costs no more (changing sides twice is never cheaper than staying), and has fewer user functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    pub(crate) cost_ps: u64,
    pub(crate) user_functions: usize,
}

/// A space for each function, and what the chain costs then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) spaces: Vec<Space>,
    pub(crate) score: Score,
}

const SPACES: [Space; 2] = [Space::Kernel, Space::User];

/// The best placement. `None` when a function has no space.
pub(crate) fn cheapest(functions: &[Choice], steps: &Steps) -> Option<Placement> {
    // rest[p][s]: the best score from the entry into function p in space s to the end of the chain, without the step
    // that reaches it.
    let mut rest = vec![[None; 2]; functions.len()];
    for position in (0..functions.len()).rev() {
        for space in SPACES {
            let onward = match rest.get(position + 1) {
                None => Some(Score {
                    cost_ps: steps.leave(space),
                    user_functions: 0,
                }),
                Some(next) => best(next, steps, Some(space)).map(|(_, score)| score),
            };
            let cost = functions[position].cost(space);
            rest[position][space as usize] = cost.zip(onward).map(|(cost, onward)| Score {
                cost_ps: onward.cost_ps + cost,
                user_functions: onward.user_functions + usize::from(space == Space::User),
            });
        }
    }
    let mut spaces = Vec::with_capacity(functions.len());
    let mut total = None;
    for scores in &rest {
        let (space, score) = best(scores, steps, spaces.last().copied())?;
        total.get_or_insert(score);
        spaces.push(space);
    }
    let mut score = total?;
    score.cost_ps += steps.door;
    Some(Placement { spaces, score })
}

/// The better space for the next function, and the score from the function before it to the end of the chain.
fn best(scores: &[Option<Score>; 2], steps: &Steps, from: Option<Space>) -> Option<(Space, Score)> {
    let reached = SPACES.into_iter().filter_map(|space| {
        let mut score = scores[space as usize]?;
        score.cost_ps += steps.reach(from, space);
        Some((space, score))
    });
    reached.min_by_key(|(_, score)| *score)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The cost of one placement, added up along the packet's way.
    fn cost(functions: &[Choice], steps: &Steps, spaces: &[Space]) -> Option<u64> {
        let mut total = steps.door;
        let mut from = None;
        for (function, &space) in functions.iter().zip(spaces) {
            total += steps.reach(from, space) + function.cost(space)?;
            from = Some(space);
        }
        Some(total + steps.leave(from?))
    }

    /// Tries every placement.
    fn brute_force(functions: &[Choice], steps: &Steps) -> Option<Placement> {
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

    /// Few different figures, so that ties are common, or a wide range of them.
    fn figure() -> impl Strategy<Value = u64> {
        prop_oneof![0..4_u64, 0..5_000_000_u64]
    }

    fn choice() -> impl Strategy<Value = Choice> {
        // Free, pinned to either space, or impossible.
        let kind = prop_oneof![8 => Just(0), 2 => Just(1), 2 => Just(2), 1 => Just(3)];
        (kind, figure(), figure()).prop_map(|(kind, kernel, user)| Choice {
            kernel: (kind == 0 || kind == 1).then_some(kernel),
            user: (kind == 0 || kind == 2).then_some(user),
        })
    }

    fn steps() -> impl Strategy<Value = Steps> {
        prop::array::uniform7(figure()).prop_map(|figures| Steps {
            door: figures[0],
            hop: figures[1],
            enter_user: figures[2],
            dispatch: figures[3],
            user_to_kernel: figures[4],
            kernel_egress: figures[5],
            user_egress: figures[6],
        })
    }

    proptest! {
        #[test]
        fn the_dynamic_program_equals_brute_force(
            functions in prop::collection::vec(choice(), 1..=12),
            steps in steps(),
        ) {
            prop_assert_eq!(cheapest(&functions, &steps), brute_force(&functions, &steps));
        }
    }

    #[test]
    fn a_tie_goes_to_the_kernel() {
        let free = Choice {
            kernel: Some(7),
            user: Some(7),
        };
        let zero = Steps {
            door: 0,
            hop: 0,
            enter_user: 0,
            dispatch: 0,
            user_to_kernel: 0,
            kernel_egress: 0,
            user_egress: 0,
        };
        let placement = cheapest(&[free; 5], &zero).unwrap();
        assert_eq!(placement.spaces, [Space::Kernel; 5]);
    }

    #[test]
    fn a_chain_of_nothing_has_no_placement() {
        let steps = Steps {
            door: 1,
            hop: 1,
            enter_user: 1,
            dispatch: 1,
            user_to_kernel: 1,
            kernel_egress: 1,
            user_egress: 1,
        };
        assert_eq!(cheapest(&[], &steps), None);
    }
}
