//! UNiS: turns by the fill level of rings, for tasks that do not cooperate.

use serde::{Deserialize, Serialize};

use super::{Action, CoreView, Lane, SharedCore};
use crate::Policy;

/// Parameters of [`Unis`]. The default is the published configuration (Anthony et al. 2020, section
/// 4.5): batches of 64 packets, and no longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UnisParameters {
    /// A slice is the time to fill this share of the egress ring (the paper's gamma). Above 1, the
    /// ring overflows (section 5.7).
    pub slice_share: f64,
    /// A task needs more packets than this in its ingress ring (the paper's theta_min): the size of
    /// a batch minus 8.
    pub theta_min: u32,
    /// A task needs a lower fill level of its egress ring, as a share of the capacity (the paper's
    /// theta_max is gamma times the capacity).
    pub theta_max_share: f64,
    /// Whether the fill levels of rings end a turn and select the next task. Without this rule,
    /// only slices do (section 5.7).
    pub occupancy_rule: bool,
    /// Time between two decisions, ns (the paper's T).
    pub interval_ns: u64,
    /// After this time, packets of any number make a task ready, ns. The published algorithm has no
    /// such rule, so up to `theta_min` packets may wait in a ring for ever.
    pub longest_wait_ns: Option<u64>,
}

impl UnisParameters {
    /// The published configuration for tasks that read up to `batch` packets at once.
    pub fn for_batch(batch: u32) -> Self {
        Self {
            slice_share: 0.75,
            theta_min: batch.saturating_sub(8),
            theta_max_share: 0.75,
            occupancy_rule: true,
            interval_ns: 1000,
            longest_wait_ns: None,
        }
    }
}

impl Default for UnisParameters {
    fn default() -> Self {
        Self::for_batch(64)
    }
}

/// Preempts a task when its slice is over, or when it has too few packets or too little room. The
/// next task is the first in chain order that has both (Anthony et al. 2020, Algorithm 1).
///
/// Without such a task, the running one continues. A slice begins only with a switch (line 18). So
/// a task that continues behind the end of its slice gives up the core as soon as another is ready.
///
/// A task with several lanes is ready if one of them is, and its slice is the sum of theirs. A port
/// behind a lane always has room; its slice is that of its ingress ring.
#[derive(Debug, Clone)]
pub struct Unis {
    core: SharedCore,
    /// For each ring, the packets from which on it has too little room.
    full: Vec<u64>,
    parameters: UnisParameters,
    /// End of the running task's slice.
    pub(super) ends_ns: u64,
    /// Whether the running task got the core because its packets waited long. It then reads all of
    /// them.
    pub(super) drains: bool,
    /// For each lane, the time from which its packets wait; `None` without packets, or while its
    /// task runs.
    pub(super) waiting_since: Vec<Option<u64>>,
}

impl Unis {
    /// Creates the policy.
    pub(super) fn new(core: SharedCore, parameters: UnisParameters) -> Self {
        let full = |capacity: &u32| (f64::from(*capacity) * parameters.theta_max_share).ceil();
        Self {
            full: core
                .capacities
                .iter()
                .map(|capacity| full(capacity) as u64)
                .collect(),
            waiting_since: vec![None; core.lanes.len()],
            core,
            parameters,
            ends_ns: 0,
            drains: false,
        }
    }

    fn record_waits(&mut self, now_ns: u64, view: &CoreView<'_>) {
        if self.parameters.longest_wait_ns.is_none() {
            return;
        }
        for (lane, since) in self.core.lanes.iter().zip(&mut self.waiting_since) {
            let waits = view.running != Some(lane.task) && view.rings[lane.ingress].packets() > 0;
            *since = waits.then(|| since.unwrap_or(now_ns));
        }
    }

    fn has_waited(&self, now_ns: u64, lane: usize) -> bool {
        let since = self.waiting_since[lane];
        let waited_ns = since.map(|since_ns| now_ns.saturating_sub(since_ns));
        waited_ns
            .zip(self.parameters.longest_wait_ns)
            .is_some_and(|(waited_ns, longest_ns)| waited_ns >= longest_ns)
    }

    /// Whether the lane has more than `least` packets, and enough room.
    fn is_lane_ready(&self, view: &CoreView<'_>, lane: &Lane, least: u32) -> bool {
        let has_room = |ring: usize| u64::from(view.rings[ring].packets()) < self.full[ring];
        view.rings[lane.ingress].packets() > least && lane.egress.is_none_or(has_room)
    }

    fn is_ready(&self, view: &CoreView<'_>, task: usize, least: u32) -> bool {
        let mut lanes = self.core.lanes.iter();
        lanes.any(|lane| lane.task == task && self.is_lane_ready(view, lane, least))
    }

    /// Whether packets of the task have waited long, and there is room for them.
    fn is_overdue(&self, now_ns: u64, view: &CoreView<'_>, task: usize) -> bool {
        let mut lanes = self.core.lanes.iter().enumerate();
        lanes.any(|(index, lane)| {
            lane.task == task && self.has_waited(now_ns, index) && self.is_lane_ready(view, lane, 0)
        })
    }

    /// The slices of the task's lanes together.
    fn slice_ns(&self, view: &CoreView<'_>, task: usize) -> u64 {
        let lanes = self.core.lanes.iter().zip(view.lanes);
        let slices = lanes.filter(|(lane, _)| lane.task == task);
        let slice_ns = slices.map(|(lane, state)| {
            let capacity = self.core.capacities[lane.egress.unwrap_or(lane.ingress)];
            (state.time_ns(capacity) as f64 * self.parameters.slice_share) as u64
        });
        slice_ns.fold(0, u64::saturating_add).max(1)
    }
}

impl Policy for Unis {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        if !self.core.is_in(&view) {
            return u64::MAX;
        }
        self.record_waits(now_ns, &view);
        let ask_ns = now_ns.saturating_add(self.parameters.interval_ns.max(1));
        let by_level = self.parameters.occupancy_rule;
        let theta_min = self.parameters.theta_min;
        let least = if self.drains { 0 } else { theta_min };
        let goes_on = view.running.is_some_and(|running| {
            view.alive[running]
                && now_ns < self.ends_ns
                && (!by_level || self.is_ready(&view, running, least))
        });
        if goes_on {
            return ask_ns;
        }
        let is_ready = |task| {
            !by_level
                || self.is_ready(&view, task, theta_min)
                || self.is_overdue(now_ns, &view, task)
        };
        let running = view.running.filter(|running| view.alive[*running]);
        // Without a ready task, the running one continues. If none runs, the first one does.
        let next = self
            .core
            .next_task(&view, is_ready)
            .or(running)
            .or_else(|| self.core.next_task(&view, |_| true));
        if let Some(next) = next {
            self.drains = self.is_overdue(now_ns, &view, next);
            if view.running != Some(next) {
                self.ends_ns = now_ns.saturating_add(self.slice_ns(&view, next));
                act(Action::Run(next));
            }
        }
        ask_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::testbed::{COST_PS, Testbed};

    /// A slice in a test: 0.75 of 2048 packets of 100 ns.
    const SLICE_NS: u64 = 2048 * COST_PS / 1000 * 3 / 4;

    fn unis(bed: &Testbed, change: impl FnOnce(&mut UnisParameters)) -> Unis {
        let mut parameters = UnisParameters::default();
        change(&mut parameters);
        Unis::new(bed.core.clone(), parameters)
    }

    #[test]
    fn the_first_task_runs_first_and_the_policy_asks_each_microsecond() {
        let mut bed = Testbed::chain(3, 2048);
        let mut policy = unis(&bed, |_| ());
        assert_eq!(bed.ask(&mut policy, 7), (vec![Action::Run(0)], 1007));
        assert_eq!(bed.ask(&mut policy, 1007), (vec![], 2007));
    }

    #[test]
    fn the_next_task_in_chain_order_with_packets_and_room_follows() {
        // Fig. 3 of the paper: C does not satisfy the criteria, D does.
        let mut bed = Testbed::chain(3, 2048);
        let mut policy = unis(&bed, |_| ());
        bed.fill(0, 2000);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        bed.fill(1, 56);
        bed.fill(2, 57);
        assert_eq!(bed.ask(&mut policy, SLICE_NS - 1).0, []);
        assert_eq!(bed.ask(&mut policy, SLICE_NS).0, [Action::Run(2)]);
        // Task 2 has 56 packets left: too few. Task 0 has enough packets and room.
        bed.fill(2, 56);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 1).0, [Action::Run(0)]);
        // The egress ring of task 0 reaches 0.75 of its capacity.
        bed.fill(1, 1535);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 2).0, []);
        bed.fill(1, 1536);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 3).0, [Action::Run(1)]);
    }

    /// The tasks that follow each other when all have packets, after one that had none.
    fn queue(idle: Option<usize>) -> Vec<Option<usize>> {
        let mut bed = Testbed::chain(3, 2048);
        let mut policy = unis(&bed, |_| ());
        (0..3).for_each(|ring| bed.fill(ring, 1000));
        bed.ask(&mut policy, 0);
        if let Some(idle) = idle {
            bed.fill(idle, 0);
        }
        let mut turns = Vec::new();
        for turn in 1..4 {
            bed.ask(&mut policy, turn * SLICE_NS);
            turns.push(bed.running);
            (0..3).for_each(|ring| bed.fill(ring, 1000));
        }
        turns
    }

    #[test]
    fn the_task_that_ran_and_those_without_work_go_to_the_end_of_the_queue() {
        // A runs, C and D wait. If C is ready, the queue becomes D, A; if only D is, A, C.
        assert_eq!(queue(None), [1, 2, 0].map(Some));
        assert_eq!(queue(Some(1)), [2, 0, 1].map(Some));
    }

    #[test]
    fn a_task_that_continues_after_its_slice_yields_to_the_first_that_becomes_ready() {
        let mut bed = Testbed::separate(2, 2048);
        let mut policy = unis(&bed, |_| ());
        bed.fill(0, 2000);
        bed.ask(&mut policy, 0);
        assert_eq!(bed.ask(&mut policy, SLICE_NS).0, []);
        bed.fill(1, 56);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 1000).0, []);
        bed.fill(1, 57);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 2000).0, [Action::Run(1)]);
        // The new task has a slice of its own.
        bed.fill(1, 2000);
        assert_eq!(bed.ask(&mut policy, 2 * SLICE_NS + 1999).0, []);
        assert_eq!(
            bed.ask(&mut policy, 2 * SLICE_NS + 2000).0,
            [Action::Run(0)]
        );
    }

    #[test]
    fn the_least_packets_are_a_batch_minus_eight() {
        let least = [64, 32, 4].map(|batch| UnisParameters::for_batch(batch).theta_min);
        assert_eq!(least, [56, 24, 0]);
    }

    #[test]
    fn without_the_occupancy_rule_only_slices_count() {
        let mut bed = Testbed::chain(2, 2048);
        let mut policy = unis(&bed, |parameters| {
            parameters.occupancy_rule = false;
            parameters.slice_share = 1.25;
        });
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        bed.fill(1, 2048);
        let slice_ns = 2048 * COST_PS / 1000 * 5 / 4;
        assert_eq!(bed.ask(&mut policy, slice_ns - 1).0, []);
        assert_eq!(bed.ask(&mut policy, slice_ns).0, [Action::Run(1)]);
    }

    #[test]
    fn few_packets_wait_for_ever_as_published_and_for_the_longest_wait_else() {
        for (longest_wait_ns, expected) in [(None, 0), (Some(50_000), 1)] {
            let mut bed = Testbed::chain(2, 2048);
            let mut policy = unis(&bed, |parameters| {
                parameters.longest_wait_ns = longest_wait_ns;
            });
            bed.ask(&mut policy, 0);
            bed.fill(1, 56);
            let mut turned_at = None;
            for now_ns in (1000..1_000_000).step_by(1000) {
                if !bed.ask(&mut policy, now_ns).0.is_empty() {
                    turned_at.get_or_insert(now_ns);
                }
            }
            assert_eq!(bed.running, Some(expected));
            assert_eq!(turned_at, longest_wait_ns.map(|wait_ns| 1000 + wait_ns));
        }
    }

    #[test]
    fn a_task_that_waited_reads_all_its_packets() {
        let mut bed = Testbed::chain(2, 2048);
        let mut policy = unis(&bed, |parameters| parameters.longest_wait_ns = Some(5000));
        bed.fill(0, 2000);
        bed.ask(&mut policy, 0);
        bed.fill(1, 3);
        bed.ask(&mut policy, 1000);
        // The slice of the running task ends its turn; the packets have waited since 1 us.
        assert_eq!(bed.ask(&mut policy, SLICE_NS).0, [Action::Run(1)]);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 1000).0, []);
        bed.fill(1, 0);
        assert_eq!(bed.ask(&mut policy, SLICE_NS + 2000).0, [Action::Run(0)]);
    }

    #[test]
    fn a_task_with_several_lanes_is_ready_if_one_lane_is() {
        // Task 0 has the first and the last lane of a pipeline.
        let mut bed = Testbed::chain(3, 2048);
        bed.core.tasks = 2;
        bed.core.lanes[2].task = 0;
        bed.alive.truncate(2);
        let mut policy = unis(&bed, |_| ());
        bed.fill(1, 100);
        bed.ask(&mut policy, 0);
        assert_eq!(bed.running, Some(1));
        bed.fill(1, 0);
        bed.fill(2, 100);
        assert_eq!(bed.ask(&mut policy, 1).0, [Action::Run(0)]);
        assert_eq!(bed.ask(&mut policy, 2).0, []);
    }

    #[test]
    fn a_dead_task_loses_the_core_and_does_not_get_it() {
        let mut bed = Testbed::chain(3, 2048);
        let mut policy = unis(&bed, |_| ());
        bed.ask(&mut policy, 0);
        bed.alive[0] = false;
        bed.fill(1, 100);
        bed.alive[1] = false;
        assert_eq!(bed.ask(&mut policy, 1).0, [Action::Run(2)]);
        bed.alive[2] = false;
        assert_eq!(bed.ask(&mut policy, 2).0, []);
    }
}
