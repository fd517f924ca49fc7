//! The steps between functions, and their costs.

use myelin_spec::{Hook, Space};

use crate::costs::{Cost, StepCosts};
use crate::plan::Step;

/// The name and the cost of a part of a step.
pub(super) type Part = (&'static str, Cost);

/// Returns the parts of the step from the previous function, which runs in `from`, to a function in
/// `space`. Before the first function, `from` is the kernel, because the front door is there. If
/// each function has its own link, `link` is the hook of the links, and `from` does not matter.
pub(super) fn step_parts(
    from: Space,
    space: Space,
    link: Option<Hook>,
    costs: &StepCosts,
) -> Vec<Part> {
    let (hop, dispatch) = (("hop", costs.hop), ("dispatch", costs.dispatch));
    let enter = ("enter_user", costs.enter_user);
    let return_to_kernel = ("user_to_kernel", costs.user_to_kernel);
    match (link, from, space) {
        (Some(hook), _, Space::Kernel) => vec![costs.link_at(hook)],
        (Some(hook), _, Space::User) => {
            vec![costs.link_at(hook), enter, dispatch, return_to_kernel]
        }
        (None, Space::Kernel, Space::Kernel) => vec![hop],
        (None, Space::Kernel, Space::User) => vec![enter, dispatch],
        (None, Space::User, Space::User) => vec![dispatch],
        (None, Space::User, Space::Kernel) => vec![return_to_kernel, hop],
    }
}

/// Number and cost of crossings between kernel and user space.
#[derive(Default)]
pub(super) struct Crossings {
    pub(super) count: u32,
    pub(super) cost_ns: f64,
}

impl Crossings {
    /// Creates a step of these parts, and counts the crossings in it.
    pub(super) fn add_step(&mut self, parts: &[Part], frame_bytes: u64) -> Step {
        const CROSSINGS: [&str; 3] = ["enter_user", "user_to_kernel", "user_egress"];
        for (_, cost) in parts.iter().filter(|(name, _)| CROSSINGS.contains(name)) {
            self.count += 1;
            self.cost_ns += cost.at_ns(frame_bytes);
        }
        Step::new(parts, frame_bytes)
    }
}
