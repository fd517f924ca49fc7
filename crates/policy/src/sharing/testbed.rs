//! A core whose rings a test fills by hand.

use super::{Action, CoreView, Lane, LaneState, RingState, SharedCore};
use crate::Policy;

/// Cost of a packet in a test, ps.
pub(super) const COST_PS: u64 = 100_000;

/// A core and its state.
pub(super) struct Testbed {
    pub(super) core: SharedCore,
    pub(super) running: Option<usize>,
    pub(super) reads: u32,
    pub(super) alive: Vec<bool>,
    pub(super) rings: Vec<RingState>,
    pub(super) lanes: Vec<LaneState>,
}

impl Testbed {
    pub(super) fn new(core: SharedCore) -> Self {
        Self {
            running: None,
            reads: 0,
            alive: vec![true; core.tasks],
            rings: vec![RingState::EMPTY; core.capacities.len()],
            lanes: vec![LaneState { cost_ps: COST_PS }; core.lanes.len()],
            core,
        }
    }

    /// A chain of tasks with a ring before each; the last one sends to a port.
    pub(super) fn chain(tasks: usize, capacity: u32) -> Self {
        let lane = |task| Lane {
            task,
            ingress: task,
            egress: (task + 1 < tasks).then_some(task + 1),
        };
        Self::new(SharedCore {
            tasks,
            lanes: (0..tasks).map(lane).collect(),
            capacities: vec![capacity; tasks],
        })
    }

    /// Tasks of separate chains, each with one ring.
    pub(super) fn separate(tasks: usize, capacity: u32) -> Self {
        let mut bed = Self::chain(tasks, capacity);
        for lane in &mut bed.core.lanes {
            lane.egress = None;
        }
        bed
    }

    /// Makes a ring hold this number of packets, the oldest due at `due_ns`.
    pub(super) fn fill_due(&mut self, ring: usize, packets: u64, due_ns: u64) {
        let ring = &mut self.rings[ring];
        let now = ring.written - ring.read;
        ring.written += packets.saturating_sub(now);
        ring.read += now.saturating_sub(packets);
        ring.due_ns = if packets == 0 { u64::MAX } else { due_ns };
    }

    /// Makes a ring hold this number of packets without a deadline.
    pub(super) fn fill(&mut self, ring: usize, packets: u64) {
        self.fill_due(ring, packets, u64::MAX);
    }

    pub(super) fn view(&self) -> CoreView<'_> {
        CoreView {
            running: self.running,
            switch_ns: 0,
            reads: self.reads,
            alive: &self.alive,
            rings: &self.rings,
            lanes: &self.lanes,
        }
    }

    /// Asks the policy, and lets the task run that it chose. Returns the actions and the time of
    /// the next question.
    pub(super) fn ask<P>(&mut self, policy: &mut P, now_ns: u64) -> (Vec<Action>, u64)
    where
        P: for<'a> Policy<View<'a> = CoreView<'a>, Action = Action>,
    {
        let mut actions = Vec::new();
        let next_ns = policy.decide(now_ns, self.view(), &mut |action| actions.push(action));
        for action in &actions {
            if let Action::Run(task) = action {
                self.running = Some(*task);
                self.reads = 0;
            }
        }
        (actions, next_ns)
    }
}
