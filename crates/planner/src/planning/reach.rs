//! The steps between functions, and their costs.

use myelin_spec::{Hook, Space};

use crate::costs::{Cost, StepCosts};
use crate::plan::Step;

/// A cost and its name.
pub(super) type Part = (&'static str, Cost);

/// The steps into a function in `space` from the function before, in `from`; the front door is in
/// the kernel. `link`: the hook, if each function has its own link; then the function before does
/// not matter.
pub(super) fn reach(from: Space, space: Space, link: Option<Hook>, costs: &StepCosts) -> Vec<Part> {
    let (hop, dispatch) = (("hop", costs.hop), ("dispatch", costs.dispatch));
    let enter = ("enter_user", costs.enter_user);
    let come_back = ("user_to_kernel", costs.user_to_kernel);
    match (link, from, space) {
        (Some(hook), _, Space::Kernel) => vec![costs.link_at(hook)],
        (Some(hook), _, Space::User) => vec![costs.link_at(hook), enter, dispatch, come_back],
        (None, Space::Kernel, Space::Kernel) => vec![hop],
        (None, Space::Kernel, Space::User) => vec![enter, dispatch],
        (None, Space::User, Space::User) => vec![dispatch],
        (None, Space::User, Space::Kernel) => vec![come_back, hop],
    }
}

/// Number and cost of crossings between kernel and user space.
#[derive(Default)]
pub(super) struct Crossings {
    pub(super) count: u32,
    pub(super) cost_ns: f64,
}

impl Crossings {
    /// Makes a step of these parts and counts its crossings.
    pub(super) fn step(&mut self, parts: &[Part], frame_bytes: u64) -> Step {
        const CROSSINGS: [&str; 3] = ["enter_user", "user_to_kernel", "user_egress"];
        for (_, cost) in parts.iter().filter(|(name, _)| CROSSINGS.contains(name)) {
            self.count += 1;
            self.cost_ns += cost.at_ns(frame_bytes);
        }
        Step::new(parts, frame_bytes)
    }
}
