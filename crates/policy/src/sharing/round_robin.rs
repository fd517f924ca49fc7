//! Turns of a fixed length, whatever the tasks have to do.

use super::{Action, CoreView, SharedCore};
use crate::Policy;

/// Gives each task a slice of fixed length, in chain order: `SCHED_RR` without regard to packets
/// (Anthony et al. 2020, section 3). A task that only polls uses its whole slice too.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    core: SharedCore,
    slice_ns: u64,
    pub(super) ends_ns: u64,
}

impl RoundRobin {
    /// Creates the policy with slices of `slice_ns`, at least 1.
    pub(super) fn new(core: SharedCore, slice_ns: u64) -> Self {
        Self {
            core,
            slice_ns: slice_ns.max(1),
            ends_ns: 0,
        }
    }
}

impl Policy for RoundRobin {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    #[inline]
    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        if !self.core.is_in(&view) {
            return u64::MAX;
        }
        let goes_on = view.running.is_some_and(|running| view.alive[running]);
        if goes_on && now_ns < self.ends_ns {
            return self.ends_ns;
        }
        self.ends_ns = now_ns.saturating_add(self.slice_ns);
        if let Some(next) = self.core.next_task(&view, |_| true)
            && view.running != Some(next)
        {
            act(Action::Run(next));
        }
        self.ends_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::testbed::Testbed;

    #[test]
    fn slices_follow_each_other_whatever_the_rings_hold() {
        let mut bed = Testbed::chain(2, 1024);
        let mut policy = RoundRobin::new(bed.core.clone(), 100);
        assert_eq!(bed.ask(&mut policy, 5), (vec![Action::Run(0)], 105));
        bed.fill(1, 1024);
        assert_eq!(bed.ask(&mut policy, 104), (vec![], 105));
        assert_eq!(bed.ask(&mut policy, 110), (vec![Action::Run(1)], 210));
        bed.alive[1] = false;
        assert_eq!(bed.ask(&mut policy, 120), (vec![Action::Run(0)], 220));
    }
}
