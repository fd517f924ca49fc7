//! Cooperative turns: a task yields after a number of reads.

use super::{Action, CoreView, SharedCore};
use crate::Policy;

/// Gives each task a turn of `k` reads, in chain order. An empty read ends the turn. UNiS is
/// compared with this scheduler (Anthony et al. 2020, section 5.1.3); the paper's best `k` is 8.
///
/// The tasks call the policy themselves, after each read.
#[derive(Debug, Clone)]
pub struct Cooperative {
    core: SharedCore,
    reads: u32,
}

impl Cooperative {
    /// Creates the policy with `k` = `reads`, at least 1.
    pub(super) fn new(core: SharedCore, reads: u32) -> Self {
        let reads = reads.max(1);
        Self { core, reads }
    }
}

impl Policy for Cooperative {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    #[inline]
    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        if !self.core.is_in(&view) {
            return u64::MAX;
        }
        let has_packets = |task: usize| {
            let mut lanes = self.core.lanes.iter();
            lanes.any(|lane| lane.task == task && view.rings[lane.ingress].packets() > 0)
        };
        let goes_on = view.running.is_some_and(|running| {
            view.alive[running] && view.reads < self.reads && has_packets(running)
        });
        if !goes_on
            && let Some(next) = self.core.next_task(&view, |_| true)
            && view.running != Some(next)
        {
            act(Action::Run(next));
        }
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::testbed::Testbed;

    #[test]
    fn a_task_yields_after_its_reads_or_an_empty_one() {
        let mut bed = Testbed::chain(3, 1024);
        let mut policy = Cooperative::new(bed.core.clone(), 8);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        bed.fill(0, 900);
        for reads in 0..8 {
            bed.reads = reads;
            assert_eq!(bed.ask(&mut policy, 1).0, []);
        }
        bed.reads = 8;
        assert_eq!(bed.ask(&mut policy, 1), (vec![Action::Run(1)], 1));
        // Task 1 has no packet.
        assert_eq!(bed.ask(&mut policy, 2).0, [Action::Run(2)]);
        bed.alive[0] = false;
        assert_eq!(bed.ask(&mut policy, 2).0, [Action::Run(1)]);
    }

    #[test]
    fn a_lone_task_keeps_the_core() {
        let mut bed = Testbed::chain(1, 64);
        let mut policy = Cooperative::new(bed.core.clone(), 0);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        bed.reads = 1;
        assert_eq!(bed.ask(&mut policy, 0).0, []);
        bed.alive[0] = false;
        assert_eq!(bed.ask(&mut policy, 0).0, []);
    }
}
