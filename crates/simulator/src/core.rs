//! A core: the task that runs, and the time that its work takes.

use myelin_policy::Policy;
use myelin_policy::sharing::{Action, CoreView, LaneState, RingState, Sharing};

use crate::fair::FairClass;
use crate::island::World;
use crate::result::CoreResult;
use crate::setup::{CoreSetup, LaneSetup, Mechanism, Scheduler};

/// A core that runs.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    /// Its rings are those of the island.
    setup: CoreSetup,
    policy: Option<Sharing>,
    /// The rings, in the policy's order.
    rings: Vec<usize>,
    /// The rings that have sources.
    fed_rings: Vec<usize>,
    /// For each task, whether it uses one of them.
    uses_fed: Vec<bool>,
    /// For each lane, whether full batches may be read in one step: its task reads no other ring,
    /// and nobody else sees its rings meanwhile.
    joins_reads: Vec<bool>,
    /// Whether rings join the core to others.
    has_neighbours: bool,
    /// End of the simulated time, ns. Reads that start later do not count yet.
    end_ns: u64,
    running: Option<usize>,
    reads: u32,
    /// The last lane of a read that has not ended, and how many reads it is.
    open_read: Option<(usize, u32)>,
    alive: Vec<bool>,
    ring_states: Vec<RingState>,
    lane_states: Vec<LaneState>,
    /// Time of the next decision, ns.
    ask_ns: u64,
    /// Whether the running task asks before that time.
    must_ask: bool,
    /// Whether the running task has asked since its ring became empty.
    has_asked_empty: bool,
    /// Whether the core has just spent the time of a decision.
    has_decided: bool,
    /// The lane that the running task reads next.
    next_lane: usize,
    fair: FairClass,
    /// For each task, whether it could work.
    has_work: Vec<bool>,
    /// For each task, since when it could work but does not run.
    starves_since: Vec<Option<u64>>,
    /// Whether the core waits for packets.
    pub(crate) waits: bool,
    pub(crate) result: CoreResult,
}

impl Core {
    /// `index` returns a ring's number in the island.
    pub(crate) fn new(
        mut setup: CoreSetup,
        policy: Option<Sharing>,
        index: impl Fn(usize) -> usize,
    ) -> Self {
        let rings: Vec<usize> = setup.rings().into_iter().map(&index).collect();
        for lane in &mut setup.lanes {
            lane.ingress = index(lane.ingress);
            lane.egress = lane.egress.map(&index);
        }
        // Time advances with each read.
        setup.mechanism.batch = setup.mechanism.batch.max(1);
        setup.mechanism.read_ns = setup.mechanism.read_ns.max(1);
        let tasks = setup.tasks();
        let assumed = setup.lanes.iter().map(|lane| LaneState {
            cost_ps: lane.assumed_cost_ps,
        });
        Self {
            fed_rings: Vec::new(),
            uses_fed: vec![false; tasks],
            joins_reads: vec![false; setup.lanes.len()],
            has_neighbours: true,
            end_ns: 0,
            has_work: vec![false; tasks],
            lane_states: assumed.collect(),
            ring_states: vec![RingState::EMPTY; rings.len()],
            rings,
            running: None,
            reads: 0,
            open_read: None,
            alive: vec![true; tasks],
            ask_ns: if policy.is_some() { 0 } else { u64::MAX },
            policy,
            must_ask: true,
            has_asked_empty: false,
            has_decided: false,
            next_lane: 0,
            fair: FairClass::new(tasks),
            starves_since: vec![None; tasks],
            waits: false,
            result: CoreResult::default(),
            setup,
        }
    }

    /// Adds `rings` to the number of each ring.
    pub(crate) fn move_rings(&mut self, rings: usize) {
        self.rings.iter_mut().for_each(|ring| *ring += rings);
        for lane in &mut self.setup.lanes {
            lane.ingress += rings;
            lane.egress = lane.egress.map(|ring| ring + rings);
        }
    }

    /// Looks who else uses the core's rings. `cores` is the number of cores of the island.
    pub(crate) fn link(&mut self, cores: usize, world: &World) {
        self.has_neighbours = cores > 1;
        let is_fed = |ring: usize| !world.sources_of[ring].is_empty();
        self.fed_rings = self.rings.clone();
        self.fed_rings.retain(|ring| is_fed(*ring));
        self.uses_fed.fill(false);
        for lane in &self.setup.lanes {
            self.uses_fed[lane.task] |= is_fed(lane.ingress) || lane.egress.is_some_and(is_fed);
        }
        let crosses = |ring: usize| world.rings[ring].crosses_cores;
        let lanes = &self.setup.lanes;
        let joins = |lane: &LaneSetup| {
            let mut others = lanes.iter();
            others.all(|other| other.task != lane.task || other.ingress == lane.ingress)
                && !crosses(lane.ingress)
                && !lane
                    .egress
                    .is_some_and(|ring| crosses(ring) || is_fed(ring))
        };
        self.joins_reads = lanes.iter().map(joins).collect();
    }

    /// Rings that tasks of this core read.
    pub(crate) fn read_rings(&self) -> impl Iterator<Item = usize> + '_ {
        self.setup.lanes.iter().map(|lane| lane.ingress)
    }

    /// Rings that tasks of this core write.
    pub(crate) fn written_rings(&self) -> impl Iterator<Item = usize> + '_ {
        self.setup.lanes.iter().filter_map(|lane| lane.egress)
    }

    /// Runs until the next event that may concern another core, or `end_ns`. Returns the time of
    /// that event, ns.
    pub(crate) fn step(&mut self, mut now_ns: u64, end_ns: u64, world: &mut World) -> u64 {
        self.waits = false;
        self.end_ns = end_ns;
        loop {
            // A task that uses no ring with sources sees nothing of what they send.
            if self.asks(now_ns) || self.running.is_none_or(|task| self.uses_fed[task]) {
                self.emit(now_ns, world);
            }
            self.end_read(now_ns, world);
            let free_ns = self.ask_scheduler(now_ns, world);
            let next_ns = if free_ns > now_ns {
                self.result.overhead_ns += free_ns - now_ns;
                free_ns
            } else {
                self.work(now_ns, world)
            };
            if self.has_neighbours || next_ns >= end_ns {
                return next_ns;
            }
            now_ns = next_ns;
        }
    }

    /// Asks the policy, and the kernel, if it is time. Returns the time at which the core is free.
    fn ask_scheduler(&mut self, now_ns: u64, world: &mut World) -> u64 {
        if self.setup.scheduler == Scheduler::Policy {
            return self.ask_policy(now_ns, world);
        }
        // Another core decides, so decisions take no time here.
        if now_ns >= self.ask_ns {
            self.ask(now_ns, world);
        }
        self.ask_kernel(now_ns, world)
    }

    /// Lets the running task read. Returns the time of the end.
    fn work(&mut self, now_ns: u64, world: &mut World) -> u64 {
        let lane = self
            .running
            .and_then(|task| self.pick_lane(task, now_ns, world));
        if let Some(lane) = lane {
            return self.process(lane, now_ns, world);
        }
        self.emit(now_ns, world);
        self.wait(now_ns, world)
    }

    /// Lets the sources of all rings send.
    fn emit(&self, now_ns: u64, world: &mut World) {
        for ring in &self.fed_rings {
            world.emit(*ring, now_ns);
        }
    }

    /// Whether the policy or the kernel may decide now.
    fn asks(&self, now_ns: u64) -> bool {
        let is_fair = self.setup.scheduler != Scheduler::Policy;
        is_fair || !self.has_decided && (now_ns >= self.ask_ns || self.must_ask)
    }

    /// Asks the policy if it is time. Returns the time at which the core is free.
    fn ask_policy(&mut self, now_ns: u64, world: &mut World) -> u64 {
        if !self.asks(now_ns) {
            self.has_decided = false;
            return now_ns;
        }
        self.must_ask = false;
        let before = self.running;
        self.record_starvation(now_ns, world);
        self.ask(now_ns, world);
        let mut free_ns = now_ns.saturating_add(self.setup.mechanism.decision_ns);
        if self.running != before {
            free_ns = free_ns.saturating_add(self.setup.mechanism.switch_ns);
            self.result.switches += 1;
            self.reads = 0;
            (self.open_read, self.next_lane) = (None, 0);
        }
        self.has_decided = free_ns > now_ns;
        free_ns
    }

    fn ask(&mut self, now_ns: u64, world: &mut World) {
        let Some(policy) = &mut self.policy else {
            return;
        };
        for (state, ring) in self.ring_states.iter_mut().zip(&self.rings) {
            let (ring, budgets) = (&world.rings[*ring], &world.budgets);
            let due_ns = ring.head(now_ns).and_then(|(chain, stamp_ps)| {
                budgets[chain].map(|budget_ns| stamp_ps.div_ceil(1000).saturating_add(budget_ns))
            });
            *state = RingState {
                written: ring.read + u64::from(ring.ready(now_ns)),
                read: ring.read,
                due_ns: due_ns.unwrap_or(u64::MAX),
            };
        }
        let view = CoreView {
            running: self.running,
            switch_ns: 0,
            reads: self.reads,
            alive: &self.alive,
            rings: &self.ring_states,
            lanes: &self.lane_states,
        };
        let (rings, fair) = (&self.rings, &mut self.fair);
        let mut run = None;
        let mut act = |action| match action {
            Action::Run(task) => run = Some(task),
            Action::Weigh { task, weight } => fair.weigh(task, weight),
            Action::Shed(ring) => world.sheds[rings[ring]] = true,
            Action::Admit(ring) => world.sheds[rings[ring]] = false,
        };
        self.ask_ns = policy.decide(now_ns, view, &mut act);
        self.result.decisions += 1;
        if run.is_some() {
            self.running = run;
            policy.observe(
                now_ns,
                &CoreView {
                    running: run,
                    ..view
                },
            );
        }
    }

    /// Lets the kernel choose. Returns the time at which the core is free.
    fn ask_kernel(&mut self, now_ns: u64, world: &World) -> u64 {
        let polls = matches!(self.setup.scheduler, Scheduler::Fair { polls: true, .. });
        let has_packets = |task: usize| has_packets(&self.setup.lanes, task, now_ns, world);
        let goes_on = self
            .running
            .is_some_and(|task| now_ns < self.fair.slice_end_ns && (polls || has_packets(task)));
        if goes_on {
            return now_ns;
        }
        let scheduler = self.setup.scheduler;
        let chosen = self
            .fair
            .choose(now_ns, scheduler, self.running, has_packets);
        self.record_starvation(now_ns, world);
        let Some((next, wake_ns)) = chosen else {
            self.running = None;
            return now_ns;
        };
        let awake_ns = now_ns.saturating_add(wake_ns);
        if self.running == Some(next) {
            return awake_ns;
        }
        self.result.switches += 1;
        self.running = Some(next);
        awake_ns.saturating_add(self.setup.mechanism.switch_ns)
    }

    /// The next lane of the task with packets. Lanes take turns.
    fn pick_lane(&mut self, task: usize, now_ns: u64, world: &World) -> Option<usize> {
        let can_read = |lane: &usize| self.can_read(task, *lane, now_ns, world);
        let mut lanes_on = self.next_lane..self.setup.lanes.len();
        let mut lanes_before = 0..self.next_lane;
        let found = lanes_on
            .find(can_read)
            .or_else(|| lanes_before.find(can_read))?;
        self.next_lane = found + 1;
        Some(found)
    }

    fn can_read(&self, task: usize, index: usize, now_ns: u64, world: &World) -> bool {
        let lane = &self.setup.lanes[index];
        lane.task == task
            && world.rings[lane.ingress].ready(now_ns) > 0
            && !self.leaves(index, world)
    }

    /// Ends the read of a task that has no packets in later lanes: a read takes a batch of each.
    fn end_read(&mut self, now_ns: u64, world: &World) {
        let Some((last, reads)) = self.open_read else {
            return;
        };
        let task = self.setup.lanes[last].task;
        let mut later = last + 1..self.setup.lanes.len();
        if !later.any(|lane| self.can_read(task, lane, now_ns, world)) {
            self.reads = self.reads.saturating_add(reads);
            self.open_read = None;
        }
    }

    /// Whether a task that asks the policy leaves the packets of a lane: the ring behind has no
    /// room for a batch, or the policy wants it so.
    fn leaves(&self, lane: usize, world: &World) -> bool {
        let Some(policy) = self.policy.as_ref().filter(|_| self.hands_over()) else {
            return false;
        };
        let has_room = |ring: usize| {
            let ring = &world.rings[ring];
            ring.room() >= self.setup.mechanism.batch.min(ring.capacity)
        };
        policy.is_later(lane) || !self.setup.lanes[lane].egress.is_none_or(has_room)
    }

    /// Whether tasks ask the policy themselves.
    fn hands_over(&self) -> bool {
        self.setup.mechanism.between_batches && self.setup.scheduler == Scheduler::Policy
    }

    /// Processes one batch of a lane, or all full ones until the next decision. Returns the time of
    /// the end.
    fn process(&mut self, lane: usize, now_ns: u64, world: &mut World) -> u64 {
        self.has_asked_empty = false;
        let Mechanism {
            batch,
            read_ns,
            between_batches,
            ..
        } = self.setup.mechanism;
        let (index, joins_reads) = (lane, self.joins_reads[lane]);
        let lane = self.setup.lanes[lane];
        let reads = if joins_reads {
            self.full_reads(&lane, now_ns, world)
        } else {
            1
        };
        let mut packets = world.rings[lane.ingress].ready(now_ns).min(batch);
        if !between_batches && lane.cost_ps > 0 && reads == 1 {
            // A preemption interrupts a batch.
            let left_ps = self
                .turn_end_ns()
                .saturating_sub(now_ns)
                .saturating_mul(1000);
            let most = u32::try_from(left_ps / lane.cost_ps).unwrap_or(batch);
            packets = packets.min(most.max(1));
        }
        let batch_ns = read_ns.saturating_add(lane.work_ns(packets));
        let mut end_ns = now_ns;
        for _ in 0..reads {
            end_ns = end_ns.saturating_add(batch_ns);
            let mut left = packets;
            while left > 0
                && let Some(run) = world.rings[lane.ingress].take(left)
            {
                left -= run.packets;
                world.pass(run, lane.egress, end_ns);
            }
        }
        self.open_read = Some((index, reads));
        self.result.busy_ns += end_ns - now_ns;
        // A task that polls pays for its whole slices.
        let sleeps = matches!(self.setup.scheduler, Scheduler::Fair { polls: false, .. });
        if let (true, Some(task)) = (sleeps, self.running) {
            self.fair.charge(task, batch_ns, reads);
        }
        let is_full = lane
            .egress
            .is_some_and(|ring| world.rings[ring].room() < batch);
        let watches = self.policy.as_ref();
        let watches = watches.is_some_and(Sharing::watches_short_reads);
        self.must_ask = between_batches && (is_full || watches && packets < batch);
        end_ns
    }

    /// The time at which the running task is interrupted, ns.
    fn turn_end_ns(&self) -> u64 {
        match self.setup.scheduler {
            Scheduler::Policy => self.ask_ns,
            Scheduler::Fair { .. } => self.fair.slice_end_ns,
        }
    }

    /// How many full batches the lane reads until anything but a further read may happen: a
    /// decision, a full ring, or a loss. At least 1, also if the first batch is not full.
    fn full_reads(&self, lane: &LaneSetup, now_ns: u64, world: &World) -> u32 {
        let mechanism = &self.setup.mechanism;
        let batch = mechanism.batch;
        let room = lane
            .egress
            .map_or(u32::MAX, |ring| world.rings[ring].room());
        let reads = world.rings[lane.ingress].ready(now_ns).min(room) / batch;
        if reads < 2 {
            return 1;
        }
        let work_ns = lane.work_ns(batch);
        let batch_ns = mechanism.read_ns.saturating_add(work_ns);
        let turn_end_ns = self.turn_end_ns();
        let until_ns = turn_end_ns.min(self.ask_ns).min(self.end_ns);
        let left_ns = until_ns.saturating_sub(now_ns);
        let mut most = u64::from(reads);
        if (most - 1).saturating_mul(batch_ns) >= left_ns {
            most = left_ns.div_ceil(batch_ns);
        }
        if !mechanism.between_batches {
            let before_ns = turn_end_ns.saturating_sub(now_ns).checked_sub(work_ns);
            most = most.min(before_ns.map_or(0, |before_ns| before_ns / batch_ns + 1));
        }
        let reads = u32::try_from(most).unwrap_or(reads);
        let busy_ns = u64::from(reads).saturating_mul(batch_ns);
        if reads < 2 || !world.fits(lane.ingress, now_ns.saturating_add(busy_ns)) {
            return 1;
        }
        reads
    }

    /// Waits without packets until something may change. Returns the time of the end.
    fn wait(&mut self, now_ns: u64, world: &World) -> u64 {
        self.reads = self.reads.saturating_add(1);
        self.result.empty_reads += 1;
        let until_ns = match self.setup.scheduler {
            Scheduler::Policy => self.ask_ns,
            Scheduler::Fair { polls: true, .. } => self.fair.slice_end_ns,
            Scheduler::Fair { .. } => u64::MAX,
        };
        let read_end_ns = now_ns.saturating_add(self.setup.mechanism.read_ns);
        if self.hands_over() {
            self.must_ask = true;
            if !std::mem::replace(&mut self.has_asked_empty, true) {
                return read_end_ns;
            }
        }
        self.waits = true;
        let arrivals = self
            .rings
            .iter()
            .filter_map(|ring| world.next_arrival_ns(*ring, now_ns));
        let arrival_ns = arrivals.min().unwrap_or(u64::MAX);
        until_ns.min(arrival_ns).max(read_end_ns)
    }

    /// Call it where tasks may turn, before they do.
    fn record_starvation(&mut self, now_ns: u64, world: &World) {
        self.has_work.fill(false);
        for lane in &self.setup.lanes {
            self.has_work[lane.task] |= world.rings[lane.ingress].ready(now_ns) > 0;
        }
        for (task, since_ns) in self.starves_since.iter_mut().enumerate() {
            if self.has_work[task] && self.running != Some(task) {
                let waited_ns = now_ns - *since_ns.get_or_insert(now_ns);
                let longest_ns = &mut self.result.longest_starvation_ns;
                *longest_ns = waited_ns.max(*longest_ns);
            } else {
                *since_ns = None;
            }
        }
    }
}

fn has_packets(lanes: &[LaneSetup], task: usize, now_ns: u64, world: &World) -> bool {
    let mut lanes = lanes.iter();
    lanes.any(|lane| lane.task == task && world.rings[lane.ingress].ready(now_ns) > 0)
}
