//! The steps from function to function, and what they cost.

use myelin_spec::{Hook, Space};

use crate::costs::{Cost, Costs};
use crate::plan::Step;

/// How often and at what price packets cross between kernel and user space.
#[derive(Default)]
pub(super) struct Crossings {
    pub(super) count: u32,
    pub(super) cost_ns: f64,
}

impl Crossings {
    pub(super) fn add(&mut self, cost: Cost, frame_bytes: u64) {
        self.count += 1;
        self.cost_ns += cost.at_ns(frame_bytes);
    }
}

/// The way from the function before into one of `space`.
pub(super) fn reach(
    from: Option<Space>,
    space: Space,
    costs: &Costs,
    frame_bytes: u64,
    crossings: &mut Crossings,
) -> Step {
    let costs = &costs.steps;
    let (hop, dispatch) = (("hop", costs.hop), ("dispatch", costs.dispatch));
    let crossing = match (from.unwrap_or(Space::Kernel), space) {
        (Space::Kernel, Space::User) => Some(("enter_user", costs.enter_user)),
        (Space::User, Space::Kernel) => Some(("user_to_kernel", costs.user_to_kernel)),
        _ => None,
    };
    if let Some((_, cost)) = crossing {
        crossings.add(cost, frame_bytes);
    }
    let call = if space == Space::Kernel {
        hop
    } else {
        dispatch
    };
    let parts: Vec<_> = crossing.into_iter().chain([call]).collect();
    Step::new(&parts, frame_bytes)
}

/// The way from the forwarder over a function's link and back.
pub(super) fn reach_by_link(
    (hook, space): (Hook, Space),
    costs: &Costs,
    frame_bytes: u64,
    crossings: &mut Crossings,
) -> Step {
    let costs = &costs.steps;
    let mut parts = vec![costs.link_at(hook)];
    if space == Space::User {
        for crossing in [costs.enter_user, costs.user_to_kernel] {
            crossings.add(crossing, frame_bytes);
        }
        parts.extend([
            ("enter_user", costs.enter_user),
            ("dispatch", costs.dispatch),
            ("user_to_kernel", costs.user_to_kernel),
        ]);
    }
    Step::new(&parts, frame_bytes)
}
