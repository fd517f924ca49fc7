//! Turns by deadline: the earliest deadline first, in batches as long as budgets allow.

use myelin_spec::SharingSpec;
use serde::{Deserialize, Serialize};

use super::{Action, CoreView, Lane, LaneState, SharedCore};
use crate::Policy;

/// Parameters of [`Deadline`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineParameters {
    /// Packets of a batch. A task ends its turn only between two batches.
    pub batch: u32,
    /// Time that a switch to another task costs, ns, until the core shows what it costs.
    pub switch_ns: u64,
    /// Time that a task with packets keeps the core, ns, when deadlines are missed already; three
    /// times as long if its own deadline is missed too. With twenty times `switch_ns`, switches
    /// take at most a twentieth of a busy core, and a sixtieth of an overloaded one.
    pub turn_ns: u64,
    /// Longest turn of a task whose packets have later deadlines than others', ns. Without one,
    /// there is no bound on delays.
    pub longest_turn_ns: u64,
    /// Longest time between two decisions, ns. A packet that arrives in between waits for the next
    /// one.
    pub interval_ns: u64,
    /// Budget of a packet without a deadline, ns, from the time at which the policy first sees it.
    pub default_budget_ns: u64,
    /// Whether a task that runs reads all its rings, also those behind which there is no room. So
    /// do tasks that know nothing of the policy; a task that asks it does not.
    pub reads_all_rings: bool,
}

impl Default for DeadlineParameters {
    fn default() -> Self {
        Self {
            batch: 64,
            switch_ns: 3000,
            turn_ns: 60_000,
            longest_turn_ns: u64::MAX,
            interval_ns: 10_000,
            default_budget_ns: SharingSpec::DEFAULT_BUDGET_NS,
            reads_all_rings: false,
        }
    }
}

/// The policy looks again before this part of a ring's room is used, so the ring does not overflow
/// even if a packet costs a quarter of what is known.
const ROOM_PARTS: u64 = 4;
/// The shortest turn that is worth a switch before an earlier deadline, in switches.
const SHORTEST_TURN: u64 = 8;
/// Turns in a row of a task whose own deadline is missed.
const LATE_TURNS: u64 = 3;

/// Gives the core to the task whose oldest packet has the earliest deadline, in turns that are long
/// where deadlines allow it.
///
/// * A task without packets, or without room behind it, gives up the core at once. If a task with
///   several lanes has room behind some of them, it reads those alone; with `reads_all_rings` it
///   waits until no other task has work, or until there is room.
/// * A task with packets keeps the core until the other tasks, in the order of their deadlines,
///   would be late, or its longest turn ends. Then the earliest deadline is next (it keeps all
///   deadlines that any order keeps: Liu and Layland 1973, section 7).
/// * A task has *drained* its rings if it has read all packets that were there when its turn began,
///   and the work of new ones takes less time than a switch. It gives up the core to the earliest
///   deadline, although budgets would allow it to wait for more. So turns are as long as the load
///   makes them, not as long as budgets: a core with time to spare spends it on switches, and
///   packets of a pipeline go through all functions together. On a busy core rings do not drain.
/// * If turns may have any length, few packets wait as long as their deadline allows it while
///   another task has work for a long turn. So a chain with a tight budget gets few turns, with the
///   packets of its whole budget, beside a chain with a backlog.
/// * If the earliest deadline is missed already, an early end saves little: the task keeps the core
///   for a turn, which bounds the share of the core that switches take. As long as one of its
///   lanes has an earlier deadline, it leaves the lanes with later ones.
/// * The first task of a pipeline also has its last lane. It leaves new packets until the old ones
///   are out, so that the pipeline does not start again with a single packet.
///
/// A packet's deadline is that of its chain's end. The cost of its further lanes on this core is
/// taken off. No packet waits for ever, because its deadline stays while time passes.
#[derive(Debug, Clone)]
pub struct Deadline {
    core: SharedCore,
    parameters: DeadlineParameters,
    /// For each lane: the lane on this core that reads its egress ring.
    next_lanes: Vec<Option<usize>>,
    /// For each lane: its further lanes on this core.
    rests: Vec<Rest>,
    /// The costs from which `rests` are.
    costs: Vec<LaneState>,
    /// For each lane without deadlines: a time, and the packets written until then.
    pub(super) seen: Vec<Option<(u64, u64)>>,
    pub(super) turn_start_ns: u64,
    /// Deadlines and work of the other tasks, in the order of deadlines.
    waiting: Vec<Waiting>,
    /// The running task and the start of its turn, ns, of which `gates` are.
    gated: Option<(usize, u64)>,
    /// For each lane: the packets that were ever written when the turn began.
    gates: Vec<u64>,
    /// Time until the running task has filled a ring, ns.
    room_ns: u64,
    /// Time of the running task's longest batch, ns.
    batch_ns: u64,
    /// Time of a switch, ns.
    switch_ns: u64,
    /// For each task: whether one of its lanes has packets and no room.
    blocked: Vec<bool>,
    /// Lane, deadline and work of the running task's lanes, ns.
    own: Vec<(usize, u64, u64)>,
    /// Work of the running task's lanes, ns.
    own_work_ns: u64,
    /// Work of those of them that it reads now, ns.
    ready_work_ns: u64,
    /// For each lane: whether the running task should leave its packets for now.
    later: Vec<bool>,
}

/// The rest of a packet's way on the core, behind a lane.
#[derive(Debug, Clone, Copy)]
struct Rest {
    cost: LaneState,
    switches_ns: u64,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            cost: LaneState { cost_ps: 0 },
            switches_ns: 0,
        }
    }
}

/// A task that waits for the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due_ns: u64,
    task: usize,
    work_ns: u64,
}

impl Deadline {
    /// Creates the policy.
    pub(super) fn new(core: SharedCore, parameters: DeadlineParameters) -> Self {
        let next = |lane: &Lane| core.reader(lane.egress?);
        Self {
            next_lanes: core.lanes.iter().map(next).collect(),
            rests: vec![Rest::default(); core.lanes.len()],
            costs: Vec::with_capacity(core.lanes.len()),
            seen: vec![None; core.lanes.len()],
            waiting: Vec::with_capacity(core.tasks),
            turn_start_ns: 0,
            gated: None,
            gates: vec![0; core.lanes.len()],
            room_ns: u64::MAX,
            batch_ns: 0,
            switch_ns: parameters.switch_ns,
            blocked: vec![false; core.tasks],
            own: Vec::with_capacity(core.lanes.len()),
            own_work_ns: 0,
            ready_work_ns: 0,
            later: vec![false; core.lanes.len()],
            core,
            parameters,
        }
    }

    /// The time at which the lane's oldest packet must be processed, and the work of its packets,
    /// ns; `None` without a packet, or without room behind the lane.
    fn lane_due(&mut self, now_ns: u64, view: &CoreView<'_>, index: usize) -> Option<(u64, u64)> {
        let lane = self.core.lanes[index];
        let ring = view.rings[lane.ingress];
        let packets = ring.packets();
        if packets == 0 {
            self.seen[index] = None;
            return None;
        }
        let room = self.core.room(&lane, view.rings);
        let packets_in = |ring: usize| view.rings[ring].packets();
        if !self.core.has_room(&lane, self.parameters.batch, packets_in) {
            self.blocked[lane.task] = self.parameters.reads_all_rings;
            return None;
        }
        let due_ns = if ring.due_ns == u64::MAX {
            // The oldest packet was written before the time, as long as one of those is left.
            let seen = self.seen[index].filter(|(_, written)| ring.read < *written);
            let (seen_ns, _) = *self.seen[index].insert(seen.unwrap_or((now_ns, ring.written)));
            seen_ns.saturating_add(self.parameters.default_budget_ns)
        } else {
            self.seen[index] = None;
            ring.due_ns
        };
        // Each further task reads all of these packets in its turn.
        let rest = self.rests[index];
        let rest_ns = rest.cost.time_ns(packets).saturating_add(rest.switches_ns);
        let work_ns = view.lanes[index].time_ns(packets.min(room));
        Some((due_ns.saturating_sub(rest_ns), work_ns))
    }

    /// Takes over the time of a switch and the costs of lanes. If one has changed, sums them for
    /// each lane's further lanes on this core.
    fn update_rests(&mut self, switch_ns: u64, lanes: &[LaneState]) {
        let switch_ns = if switch_ns > 0 {
            switch_ns
        } else {
            self.parameters.switch_ns
        };
        let before_ns = std::mem::replace(&mut self.switch_ns, switch_ns);
        if before_ns == switch_ns && self.costs == lanes {
            return;
        }
        self.costs.clear();
        self.costs.extend_from_slice(lanes);
        for (index, rest) in self.rests.iter_mut().enumerate() {
            *rest = Rest::default();
            let mut next = self.next_lanes[index];
            // Bounded, because a pipeline may lead back to a ring.
            for _ in 0..self.next_lanes.len() {
                let Some(lane) = next else { break };
                let cost_ps = &mut rest.cost.cost_ps;
                *cost_ps = cost_ps.saturating_add(lanes[lane].cost_ps);
                let switches_ns = &mut rest.switches_ns;
                *switches_ns = switches_ns.saturating_add(self.switch_ns);
                next = self.next_lanes[lane];
            }
        }
    }

    /// Collects the tasks that have work, and returns the deadline of the running one.
    fn collect(&mut self, now_ns: u64, view: &CoreView<'_>) -> Option<u64> {
        self.update_rests(view.switch_ns, view.lanes);
        self.set_gates(view);
        self.waiting.clear();
        self.blocked.fill(false);
        self.own.clear();
        self.own_work_ns = 0;
        self.ready_work_ns = 0;
        self.room_ns = u64::MAX;
        self.batch_ns = 0;
        for index in 0..self.core.lanes.len() {
            let task = self.core.lanes[index].task;
            let Some((due_ns, work_ns)) = self.lane_due(now_ns, view, index) else {
                continue;
            };
            if !view.alive[task] {
                continue;
            }
            if view.running == Some(task) {
                let room = self.core.room(&self.core.lanes[index], view.rings);
                self.room_ns = self.room_ns.min(view.lanes[index].time_ns(room));
                let batch_ns = view.lanes[index].time_ns(self.parameters.batch);
                self.batch_ns = self.batch_ns.max(batch_ns);
                self.own.push((index, due_ns, work_ns));
                self.own_work_ns = self.own_work_ns.saturating_add(work_ns);
                continue;
            }
            match self.waiting.iter_mut().find(|waiting| waiting.task == task) {
                Some(waiting) => {
                    waiting.due_ns = waiting.due_ns.min(due_ns);
                    waiting.work_ns = waiting.work_ns.saturating_add(work_ns);
                }
                None => self.waiting.push(Waiting {
                    due_ns,
                    task,
                    work_ns,
                }),
            }
        }
        for waiting in &mut self.waiting {
            if self.blocked[waiting.task] {
                waiting.due_ns = u64::MAX;
            }
        }
        self.waiting.sort_unstable();
        let is_blocked = view.running.is_some_and(|task| self.blocked[task]);
        let first_ns = self.waiting.first().map_or(u64::MAX, |first| first.due_ns);
        if is_blocked && first_ns < u64::MAX {
            return None;
        }
        let own_first = self.own.iter().copied();
        let own_first = own_first.min_by_key(|(_, due_ns, _)| *due_ns);
        self.later.fill(false);
        let (first_lane, own_ns, _) = own_first?;
        if self.parameters.reads_all_rings {
            self.ready_work_ns = self.own_work_ns;
            return Some(own_ns);
        }
        // If another task is late, and this task has earlier packets, its later ones wait: an
        // overloaded core would only fill rings with them.
        let leaves_later = self.is_missed(now_ns, first_ns) && own_ns <= first_ns;
        for (lane, due_ns, work_ns) in &self.own {
            let is_later = leaves_later && *due_ns > first_ns
                || *due_ns > own_ns && self.leads_to(*lane, first_lane);
            self.later[*lane] = is_later;
            if !is_later {
                self.ready_work_ns = self.ready_work_ns.saturating_add(*work_ns);
            }
        }
        Some(own_ns)
    }

    /// Whether the packets of a lane pass `other` later.
    fn leads_to(&self, lane: usize, other: usize) -> bool {
        let mut next = self.next_lanes[lane];
        // Bounded, because a pipeline may lead back to a ring.
        for _ in 0..self.next_lanes.len() {
            match next {
                Some(lane) if lane == other => return true,
                Some(lane) => next = self.next_lanes[lane],
                None => return false,
            }
        }
        false
    }

    /// Whether an end of the turn now would be too late for a deadline.
    fn is_missed(&self, now_ns: u64, due_ns: u64) -> bool {
        due_ns < now_ns.saturating_add(self.switch_ns)
    }

    /// Whether the running task should leave the packets of this lane until the next decision.
    pub(super) fn is_later(&self, lane: usize) -> bool {
        self.later.get(lane).copied().unwrap_or(false)
    }

    /// Looks at the core without a decision, for [`Self::is_later`].
    pub(super) fn observe(&mut self, now_ns: u64, view: &CoreView<'_>) {
        if self.core.is_in(view) {
            self.collect(now_ns, view);
        }
    }

    /// Remembers the packets that are there when a turn begins.
    fn set_gates(&mut self, view: &CoreView<'_>) {
        let turn = view.running.map(|task| (task, self.turn_start_ns));
        if self.gated != turn {
            self.gated = turn;
            for (gate, lane) in self.gates.iter_mut().zip(&self.core.lanes) {
                *gate = view.rings[lane.ingress].written;
            }
        }
    }

    /// Whether the running task has drained its rings, and another has packets.
    fn yields(&self, view: &CoreView<'_>, own_due_ns: u64, first: Waiting) -> bool {
        // With a longest turn, the bound assumes that the earliest deadline is always next.
        let may_yield = self.parameters.longest_turn_ns == u64::MAX || first.due_ns <= own_due_ns;
        let is_behind_gate = |(lane, _, _): &(usize, u64, u64)| {
            let ring = view.rings[self.core.lanes[*lane].ingress];
            ring.read >= self.gates[*lane] || self.later[*lane]
        };
        may_yield
            && self.ready_work_ns < self.switch_ns
            && first.due_ns < u64::MAX
            && self.own.iter().all(is_behind_gate)
    }

    /// The task with much work whose turn comes before earlier deadlines, because these allow it
    /// and the visits to their few packets would cost more switches than work; and the end of its
    /// turn, ns.
    fn find_longer(&self, now_ns: u64, own_due_ns: Option<u64>) -> Option<(Waiting, u64)> {
        if self.parameters.longest_turn_ns < u64::MAX {
            // The bound assumes that the earliest deadline is always next.
            return None;
        }
        let switch_ns = self.switch_ns;
        let is_worth = |waiting: &&Waiting| waiting.work_ns >= self.parameters.turn_ns;
        let longer = self.waiting.iter().find(is_worth);
        let longer = longer.filter(|longer| longer.due_ns < u64::MAX)?;
        let mut latest_ns = self.latest_start_ns(longer.due_ns);
        if let Some(own_due_ns) = own_due_ns {
            let back_ns = self.own_work_ns.saturating_add(switch_ns);
            if self.own_work_ns > switch_ns || own_due_ns >= longer.due_ns {
                return None;
            }
            latest_ns = latest_ns.min(own_due_ns).saturating_sub(back_ns);
        }
        let shortest_ns = SHORTEST_TURN.saturating_mul(switch_ns);
        (now_ns.saturating_add(shortest_ns) <= latest_ns).then_some((*longer, latest_ns))
    }

    /// The latest time at which the first waiting task can start so that all others with a deadline
    /// before `before_ns` are in time.
    fn latest_start_ns(&self, before_ns: u64) -> u64 {
        let mut work_ns = 0_u64;
        let mut latest_ns = u64::MAX;
        for waiting in &self.waiting {
            if waiting.due_ns >= before_ns {
                break;
            }
            work_ns = work_ns
                .saturating_add(waiting.work_ns)
                .saturating_add(self.switch_ns);
            latest_ns = latest_ns.min(waiting.due_ns.saturating_sub(work_ns));
        }
        latest_ns
    }
}

impl Policy for Deadline {
    type View<'a> = CoreView<'a>;
    type Action = Action;

    fn decide(&mut self, now_ns: u64, view: CoreView<'_>, act: &mut dyn FnMut(Action)) -> u64 {
        if !self.core.is_in(&view) {
            return u64::MAX;
        }
        let own_due_ns = self.collect(now_ns, &view);
        let ask_ns = now_ns.saturating_add(self.parameters.interval_ns.max(1));
        let Some(first) = self.waiting.first().copied() else {
            return ask_ns;
        };
        let longer = self.find_longer(now_ns, own_due_ns);
        let keeps_core =
            |own_due_ns: &u64| longer.is_none() && !self.yields(&view, *own_due_ns, first);
        if let Some(own_due_ns) = own_due_ns.filter(keeps_core) {
            let turns = if own_due_ns < now_ns { LATE_TURNS } else { 1 };
            let turn_ns = self.parameters.turn_ns.saturating_mul(turns);
            let turn_end_ns = self.turn_start_ns.saturating_add(turn_ns);
            let is_missed = self.is_missed(now_ns, first.due_ns);
            let end_ns = if is_missed {
                turn_end_ns
            } else {
                // A turn ends between two batches.
                let latest_ns = self.latest_start_ns(own_due_ns);
                latest_ns.saturating_sub(self.batch_ns)
            };
            let longest_ns = self.parameters.longest_turn_ns;
            let end_ns = end_ns.min(self.turn_start_ns.saturating_add(longest_ns));
            if own_due_ns <= first.due_ns || now_ns < end_ns {
                // Only a full ring ends such a turn early.
                let until_full_ns = if is_missed {
                    self.room_ns / ROOM_PARTS
                } else {
                    0
                };
                let ask_ns = ask_ns.max(now_ns.saturating_add(until_full_ns));
                return ask_ns.min(end_ns.max(now_ns.saturating_add(1)));
            }
        }
        self.turn_start_ns = now_ns;
        let Some((longer, latest_ns)) = longer else {
            act(Action::Run(first.task));
            return ask_ns;
        };
        act(Action::Run(longer.task));
        // Its turn ends in time for the earlier deadlines.
        let lanes = self.core.lanes.iter().zip(view.lanes);
        let lanes = lanes.filter(|(lane, _)| lane.task == longer.task);
        let batch_ns = lanes.map(|(_, state)| state.time_ns(self.parameters.batch));
        let end_ns = latest_ns.saturating_sub(batch_ns.max().unwrap_or(0));
        ask_ns.min(end_ns.max(now_ns.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::RingState;
    use crate::sharing::testbed::Testbed;

    const PARAMETERS: DeadlineParameters = DeadlineParameters {
        batch: 64,
        switch_ns: 1000,
        turn_ns: 20_000,
        longest_turn_ns: u64::MAX,
        interval_ns: 5000,
        default_budget_ns: 1_000_000,
        reads_all_rings: false,
    };

    fn deadline(bed: &Testbed) -> Deadline {
        Deadline::new(bed.core.clone(), PARAMETERS)
    }

    /// Task 0 reads ring 0 into ring 1, and ring 2 into a port; task 1 leads from ring 1 to 2.
    fn pipeline() -> Testbed {
        let mut bed = Testbed::chain(2, 1024);
        bed.core.lanes.push(Lane {
            task: 0,
            ingress: 2,
            egress: None,
        });
        bed.core.lanes[1].egress = Some(2);
        bed.lanes.push(bed.lanes[0]);
        bed.rings.resize(3, RingState::EMPTY);
        bed.core.capacities.resize(3, 1024);
        bed
    }

    #[test]
    fn the_earliest_deadline_runs_first_and_an_idle_core_waits() {
        let mut bed = Testbed::separate(3, 1024);
        let mut policy = deadline(&bed);
        assert_eq!(bed.ask(&mut policy, 0), (vec![], 5000));
        bed.fill_due(0, 10, 90_000);
        bed.fill_due(2, 10, 80_000);
        assert_eq!(bed.ask(&mut policy, 5000).0, [Action::Run(2)]);
        // Its ring is empty: the other task follows at once.
        bed.fill(2, 0);
        assert_eq!(bed.ask(&mut policy, 6000).0, [Action::Run(0)]);
        bed.alive[0] = false;
        bed.fill_due(1, 1, 500_000);
        assert_eq!(bed.ask(&mut policy, 7000).0, [Action::Run(1)]);
    }

    /// The lanes that the running task leaves.
    fn later(policy: &Deadline) -> [bool; 3] {
        [0, 1, 2].map(|lane| policy.is_later(lane))
    }

    #[test]
    fn with_late_packets_elsewhere_a_task_reads_only_its_earlier_lanes() {
        let mut bed = Testbed::separate(3, 1024);
        bed.core.tasks = 2;
        bed.core.lanes[2].task = 0;
        bed.alive.truncate(2);
        let mut policy = deadline(&bed);
        bed.running = Some(0);
        bed.fill_due(0, 500, 900_000);
        bed.fill_due(1, 500, 300_000);
        bed.fill_due(2, 500, 200_000);
        bed.ask(&mut policy, 1000);
        assert_eq!(later(&policy), [false; 3], "nobody is late");
        assert_eq!(bed.ask(&mut policy, 400_000).0, []);
        assert_eq!(later(&policy), [true, false, false]);
        // Its late lane is empty: the next task follows, although ring 0 has packets.
        bed.fill(2, 0);
        assert_eq!(bed.ask(&mut policy, 401_000).0, [Action::Run(1)]);
        bed.running = Some(1);
        bed.ask(&mut policy, 402_000);
        assert_eq!(later(&policy), [false; 3]);
    }

    #[test]
    fn new_packets_wait_until_the_old_ones_have_left_the_pipeline() {
        let mut bed = pipeline();
        let mut policy = deadline(&bed);
        bed.running = Some(0);
        bed.fill_due(0, 500, 900_000);
        bed.fill_due(2, 500, 200_000);
        bed.ask(&mut policy, 1000);
        assert_eq!(later(&policy), [true, false, false]);
        bed.fill(2, 0);
        bed.ask(&mut policy, 2000);
        assert_eq!(later(&policy), [false; 3]);
    }

    #[test]
    fn few_packets_wait_while_another_task_has_work_for_a_long_turn() {
        // A tight deadline, packets of the other task, and the next task.
        for (due_ns, others, next) in [(100_000, 200, 2), (100_000, 199, 1), (19_999, 200, 1)] {
            let mut bed = Testbed::separate(3, 1024);
            let mut policy = deadline(&bed);
            bed.running = Some(0);
            bed.fill_due(1, 10, due_ns);
            bed.fill_due(2, others, 900_000);
            assert_eq!(bed.ask(&mut policy, 10_000).0, [Action::Run(next)]);
        }
        // The long turn ends in time for the tight deadline: 1 us, a switch, and a batch before.
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 10, 21_000);
        bed.fill_due(1, 1000, 900_000);
        assert_eq!(bed.ask(&mut policy, 9000), (vec![Action::Run(1)], 12_600));
        assert_eq!(bed.ask(&mut policy, 9100), (vec![], 12_600));
        assert_eq!(bed.ask(&mut policy, 12_600).0, [Action::Run(0)]);
    }

    #[test]
    fn a_task_with_few_packets_gives_up_the_core_if_their_deadline_allows_a_long_turn() {
        // Packets of the running task, their deadline, and whether the other task is next.
        for (packets, due_ns, gives_up) in [
            (10, 100_000, true),
            (11, 100_000, false),
            (10, 20_000, true),
            (10, 19_999, false),
        ] {
            let mut bed = Testbed::separate(2, 1024);
            let mut policy = deadline(&bed);
            bed.running = Some(0);
            bed.fill_due(0, packets, due_ns);
            bed.fill_due(1, 200, 900_000);
            // The long turn takes 8 us; the way back takes a switch, and 1 us of work.
            let actions = bed.ask(&mut policy, 10_000).0;
            assert_eq!(!actions.is_empty(), gives_up, "{packets}, {due_ns}");
        }
    }

    #[test]
    fn a_task_that_has_drained_its_rings_gives_up_the_core_before_others_are_urgent() {
        // Packets of the running task, the longest turn, the other task's deadline.
        for (packets, longest_turn_ns, due_ns, gives_up) in [
            (9, u64::MAX, 500_000, true),
            (9, u64::MAX, 300_000, true),
            (10, u64::MAX, 300_000, false),
            (9, 1_000_000, 500_000, false),
            (9, 1_000_000, 300_000, true),
        ] {
            let mut bed = Testbed::separate(2, 1024);
            let parameters = DeadlineParameters {
                longest_turn_ns,
                ..PARAMETERS
            };
            let mut policy = Deadline::new(bed.core.clone(), parameters);
            bed.running = Some(0);
            bed.fill_due(0, 20, 400_000);
            bed.fill_due(1, 20, due_ns);
            assert_eq!(bed.ask(&mut policy, 1000).0, []);
            // These were there when the turn began.
            bed.rings[0].read += 15;
            assert_eq!(bed.ask(&mut policy, 2000).0, []);
            bed.rings[0].written += packets;
            bed.rings[0].read = bed.rings[0].written - packets;
            let actions = bed.ask(&mut policy, 10_000).0;
            let case = (packets, longest_turn_ns, due_ns);
            assert_eq!(!actions.is_empty(), gives_up, "{case:?}");
        }
    }

    #[test]
    fn a_task_that_reads_all_rings_waits_for_room_behind_each() {
        let mut bed = pipeline();
        for (reads_all_rings, next) in [(false, None), (true, Some(Action::Run(1)))] {
            let parameters = DeadlineParameters {
                reads_all_rings,
                ..PARAMETERS
            };
            let mut policy = Deadline::new(bed.core.clone(), parameters);
            bed.running = Some(0);
            bed.fill_due(0, 500, 400_000);
            bed.fill_due(1, 1024, 300_000);
            bed.fill_due(2, 100, 100_000);
            assert_eq!(bed.ask(&mut policy, 1000).0.first().copied(), next);
            // Without other work it runs.
            bed.running = Some(0);
            bed.alive[1] = false;
            assert_eq!(bed.ask(&mut policy, 2000).0, []);
            bed.alive[1] = true;
        }
    }

    #[test]
    fn a_turn_ends_early_if_another_task_would_be_late() {
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 900_000);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        // 20 packets of 100 ns, a switch, and a batch of task 0: its last one starts at 7 us.
        bed.fill_due(1, 20, 16_400);
        assert_eq!(bed.ask(&mut policy, 1000), (vec![], 6000));
        assert_eq!(bed.ask(&mut policy, 6000), (vec![], 7000));
        assert_eq!(bed.ask(&mut policy, 7000).0, [Action::Run(1)]);
        // Task 0 has the later deadline and waits until task 1 has nothing left.
        assert_eq!(bed.ask(&mut policy, 8000).0, []);
        bed.fill(1, 0);
        assert_eq!(bed.ask(&mut policy, 9000).0, [Action::Run(0)]);
    }

    #[test]
    fn a_turn_lasts_as_long_as_the_budgets_of_the_others_allow() {
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 900_000);
        bed.ask(&mut policy, 0);
        bed.fill_due(1, 20, 506_400);
        assert_eq!(bed.ask(&mut policy, 494_000), (vec![], 497_000));
        assert_eq!(bed.ask(&mut policy, 497_000).0, [Action::Run(1)]);
    }

    #[test]
    fn with_a_longest_turn_the_earliest_deadline_is_next_when_it_ends() {
        let mut bed = Testbed::separate(3, 1024);
        let parameters = DeadlineParameters {
            longest_turn_ns: 15_000,
            ..PARAMETERS
        };
        let mut policy = Deadline::new(bed.core.clone(), parameters);
        bed.fill_due(0, 200, 900_000);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(0)]);
        bed.fill_due(1, 10, 500_000);
        bed.fill_due(2, 200, 800_000);
        assert_eq!(bed.ask(&mut policy, 11_000), (vec![], 15_000));
        // Without the longest turn, task 0 would keep the core: task 1 would be in time.
        assert_eq!(bed.ask(&mut policy, 15_000).0, [Action::Run(1)]);
    }

    #[test]
    fn the_work_of_all_earlier_deadlines_counts() {
        let mut bed = Testbed::separate(3, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 900_000);
        bed.ask(&mut policy, 0);
        bed.fill_due(1, 50, 26_400);
        bed.fill_due(2, 50, 26_900);
        // 6 us for each: the first must start at 14.9 us, so that the second starts at 20.9 us. A
        // batch of task 0 takes 6.4 us.
        assert_eq!(bed.ask(&mut policy, 8_499), (vec![], 8500));
        assert_eq!(bed.ask(&mut policy, 8_500).0, [Action::Run(1)]);
    }

    #[test]
    fn the_rest_of_the_way_on_the_core_is_taken_off_the_budget() {
        let mut bed = Testbed::chain(3, 1024);
        bed.core.tasks = 4;
        bed.core.lanes.push(Lane {
            task: 3,
            ingress: 3,
            egress: None,
        });
        bed.core.capacities.push(1024);
        bed.alive.push(true);
        bed.rings.push(super::super::RingState::EMPTY);
        bed.lanes.push(bed.lanes[0]);
        let mut policy = deadline(&bed);
        bed.fill_due(3, 1000, 900_000);
        bed.ask(&mut policy, 0);
        assert_eq!(bed.running, Some(3));
        // 10 packets at task 0: 1 us and a switch there, and at each of two further tasks. Before,
        // a batch of task 3.
        bed.fill_due(0, 10, 22_400);
        assert_eq!(bed.ask(&mut policy, 9_999), (vec![], 10_000));
        assert_eq!(bed.ask(&mut policy, 10_000).0, [Action::Run(0)]);
    }

    #[test]
    fn missed_deadlines_end_no_turn_before_the_shortest_one() {
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 50_000);
        bed.ask(&mut policy, 100_000);
        bed.fill_due(0, 1000, 60_000);
        bed.fill_due(1, 1000, 55_000);
        assert_eq!(bed.ask(&mut policy, 101_000), (vec![], 160_000));
        assert_eq!(bed.ask(&mut policy, 160_000).0, [Action::Run(1)]);
        // A task whose own deadline can be kept has a shorter turn.
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 900_000);
        bed.ask(&mut policy, 100_000);
        bed.fill_due(1, 1000, 55_000);
        assert_eq!(bed.ask(&mut policy, 101_000), (vec![], 120_000));
        assert_eq!(bed.ask(&mut policy, 120_000).0, [Action::Run(1)]);
        // A deadline that can still be kept ends the turn at once.
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 200_000);
        bed.ask(&mut policy, 100_000);
        bed.fill_due(1, 10, 103_000);
        assert_eq!(bed.ask(&mut policy, 101_000).0, [Action::Run(1)]);
    }

    #[test]
    fn a_late_turn_is_checked_before_the_ring_behind_it_is_full() {
        let mut bed = Testbed::chain(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 50_000);
        bed.ask(&mut policy, 100_000);
        bed.fill_due(1, 64, 40_000);
        // A quarter of the time for the 960 packets that fit: 24 us.
        assert_eq!(bed.ask(&mut policy, 101_000), (vec![], 125_000));
        bed.fill_due(1, 1000, 40_000);
        assert_eq!(bed.ask(&mut policy, 125_000).0, [Action::Run(1)]);
    }

    #[test]
    fn a_ring_that_is_shorter_than_a_batch_takes_packets_when_it_is_empty() {
        let mut bed = Testbed::chain(2, 16);
        let mut policy = deadline(&bed);
        bed.fill_due(1, 16, 50_000);
        assert_eq!(bed.ask(&mut policy, 0).0, [Action::Run(1)]);
        bed.fill_due(0, 1000, 20_000);
        bed.fill_due(1, 1, 50_000);
        assert_eq!(bed.ask(&mut policy, 1).0, []);
        bed.fill(1, 0);
        assert_eq!(bed.ask(&mut policy, 2).0, [Action::Run(0)]);
    }

    #[test]
    fn a_task_without_room_behind_it_gives_up_the_core() {
        let mut bed = Testbed::chain(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill_due(0, 1000, 1000);
        bed.ask(&mut policy, 0);
        bed.fill_due(1, 961, 900_000);
        assert_eq!(bed.ask(&mut policy, 1).0, [Action::Run(1)]);
        bed.fill_due(1, 960, 900_000);
        // There is room for a batch again, and the deadline of task 0 is missed.
        assert_eq!(bed.ask(&mut policy, 2).0, []);
        assert_eq!(bed.ask(&mut policy, 20_001).0, [Action::Run(0)]);
    }

    #[test]
    fn packets_without_a_deadline_get_the_default_budget_and_do_not_wait_for_ever() {
        let mut bed = Testbed::separate(2, 1024);
        let mut policy = deadline(&bed);
        bed.fill(1, 5);
        bed.fill_due(0, 1000, 100_000);
        bed.ask(&mut policy, 0);
        assert_eq!(bed.running, Some(0));
        let mut now_ns = 0;
        while bed.running == Some(0) {
            // Task 0 always has packets that are due soon.
            now_ns = bed.ask(&mut policy, now_ns).1;
            bed.fill_due(0, 1000, now_ns + 100_000);
            assert!(now_ns < 2_000_000);
        }
        assert!(now_ns >= 800_000, "{now_ns}");
        // The packets are read; further ones get a budget of their own.
        bed.rings[1].read += 5;
        bed.rings[1].written += 5;
        assert_eq!(bed.ask(&mut policy, now_ns).0, [Action::Run(0)]);
    }
}
