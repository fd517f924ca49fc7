//! NFVnice for tasks that hand the core over: shares of the load become lengths of turns.

use super::load_based::{LoadBased, LoadBasedParameters, TOTAL_WEIGHT};
use super::{Action, CoreView, SharedCore};
use crate::Policy;

/// The shortest turn, and the longest time between two decisions, as parts of a round.
const ROUND_PARTS: u64 = 16;

/// Gives each task a part of a round in proportion to its load, arrival rate times cost of a packet
/// ([`LoadBased`]). A task without packets, or without room behind it, gives up the core at once.
///
/// The published NFVnice writes weights of the kernel's fair class. The shares are the same here,
/// but the task with packets changes without the kernel's slices. There is no backpressure, because
/// a task that hands over leaves packets whose next ring has no room. Packets that a full ring
/// drops are not seen, so the load of an overloaded task seems lower than it is.
#[derive(Debug, Clone)]
pub struct LoadTurns {
    core: SharedCore,
    pub(super) shares: LoadBased,
    round_ns: u64,
    /// Packets of a batch. A task leaves the packets of a lane without room for a batch behind it.
    batch: u32,
    /// End of the running task's turn.
    pub(super) ends_ns: u64,
}

impl LoadTurns {
    /// Creates the policy with rounds of `round_ns`, at least 1, for tasks that read up to `batch`
    /// packets at once.
    pub(super) fn new(core: SharedCore, round_ns: u64, batch: u32) -> Self {
        let parameters = LoadBasedParameters {
            backpressure: false,
            ..LoadBasedParameters::default()
        };
        Self {
            shares: LoadBased::new(core.clone(), parameters),
            core,
            round_ns: round_ns.max(1),
            batch,
            ends_ns: 0,
        }
    }

    /// Whether the task has a packet that it can process.
    fn has_work(&self, view: &CoreView<'_>, task: usize) -> bool {
        let mut lanes = self.core.lanes.iter().filter(|lane| lane.task == task);
        lanes.any(|lane| {
            let packets = |ring: usize| view.rings[ring].packets();
            packets(lane.ingress) > 0 && self.core.has_room(lane, self.batch, packets)
        })
    }

    fn turn_ns(&self, task: usize) -> u64 {
        let weight = u64::from(self.shares.weights[task]);
        let share_ns = self.round_ns.saturating_mul(weight) / u64::from(TOTAL_WEIGHT);
        share_ns.max(self.round_ns / ROUND_PARTS).max(1)
    }
}

impl Policy for LoadTurns {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    #[inline]
    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        if !self.core.is_in(&view) {
            return u64::MAX;
        }
        // The weights stay here: no kernel class has them.
        self.shares.decide(now_ns, view, &mut |_| ());
        let ask_ns = now_ns.saturating_add((self.round_ns / ROUND_PARTS).max(1));
        let goes_on = view.running.is_some_and(|running| {
            view.alive[running] && now_ns < self.ends_ns && self.has_work(&view, running)
        });
        if !goes_on
            && let Some(next) = self
                .core
                .next_task(&view, |task| self.has_work(&view, task))
        {
            self.ends_ns = now_ns.saturating_add(self.turn_ns(next));
            if view.running != Some(next) {
                act(Action::Run(next));
            }
        }
        if now_ns < self.ends_ns {
            ask_ns.min(self.ends_ns)
        } else {
            ask_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::testbed::Testbed;

    const ROUND_NS: u64 = 1_000_000;
    const BATCH: u32 = 32;
    /// Time between two changes of the shares.
    const WEIGH_NS: u64 = 10_000_000;

    #[test]
    fn turns_are_shares_of_the_load() {
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = LoadTurns::new(bed.core.clone(), ROUND_NS, BATCH);
        bed.fill(0, 500);
        bed.fill(1, 500);
        bed.lanes[1].cost_ps *= 3;
        // Both have written 500 packets, of which the second task's cost three times as much.
        let (actions, next_ns) = bed.ask(&mut policy, 5);
        assert_eq!(actions, [Action::Run(0)]);
        assert_eq!(next_ns, 5 + ROUND_NS / ROUND_PARTS);
        let end_ns = 5 + ROUND_NS / 4;
        assert_eq!(bed.ask(&mut policy, end_ns - 1), (vec![], end_ns));
        assert_eq!(bed.ask(&mut policy, end_ns).0, [Action::Run(1)]);
        let second_ns = end_ns + ROUND_NS * 3 / 4;
        assert_eq!(bed.ask(&mut policy, second_ns - 1).0, []);
        assert_eq!(bed.ask(&mut policy, second_ns).0, [Action::Run(0)]);
    }

    #[test]
    fn a_task_without_packets_or_room_gives_up_the_core() {
        let mut bed = Testbed::chain(2, 100);
        let mut policy = LoadTurns::new(bed.core.clone(), ROUND_NS, BATCH);
        assert_eq!(bed.ask(&mut policy, 0).0, [], "nobody has packets");
        bed.fill(0, 50);
        assert_eq!(bed.ask(&mut policy, 1).0, [Action::Run(0)]);
        bed.fill(1, 68);
        assert_eq!(bed.ask(&mut policy, 2).0, [], "room for a batch");
        bed.fill(1, 69);
        assert_eq!(bed.ask(&mut policy, 3).0, [Action::Run(1)], "no room");
        bed.fill(1, 0);
        assert_eq!(bed.ask(&mut policy, 4).0, [Action::Run(0)], "no packets");
        bed.alive[0] = false;
        bed.fill(1, 1);
        assert_eq!(bed.ask(&mut policy, 5).0, [Action::Run(1)], "dead");
    }

    #[test]
    fn a_ring_that_is_shorter_than_a_batch_takes_packets_when_it_is_empty() {
        let mut bed = Testbed::chain(2, 16);
        let mut policy = LoadTurns::new(bed.core.clone(), ROUND_NS, BATCH);
        bed.fill(0, 16);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        bed.fill(1, 1);
        assert_eq!(bed.ask(&mut policy, 1).0, [Action::Run(1)]);
        bed.fill(1, 0);
        assert_eq!(bed.ask(&mut policy, 2).0, [Action::Run(0)]);
    }

    #[test]
    fn a_task_alone_with_packets_keeps_the_core_and_one_without_load_gets_short_turns() {
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = LoadTurns::new(bed.core.clone(), ROUND_NS, BATCH);
        bed.fill(0, 1000);
        bed.ask(&mut policy, 0);
        assert_eq!(bed.ask(&mut policy, 2 * ROUND_NS).0, []);
        assert_eq!(bed.running, Some(0));
        // Its packets come after the last change of the shares.
        bed.fill(1, 10);
        assert_eq!(bed.ask(&mut policy, 4 * ROUND_NS).0, [Action::Run(1)]);
        let end_ns = 4 * ROUND_NS + ROUND_NS / ROUND_PARTS;
        assert_eq!(bed.ask(&mut policy, end_ns - 1).0, []);
        assert_eq!(bed.ask(&mut policy, end_ns).0, [Action::Run(0)]);
        // The next change sees the load of both.
        bed.ask(&mut policy, WEIGH_NS);
        assert!(policy.shares.weights[1] > 1);
    }
}
