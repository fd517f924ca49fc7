//! A plain simulator, which steps by single packets and reads.

use std::collections::VecDeque;

use myelin_policy::Policy;
use myelin_policy::sharing::{Action, CoreView, LaneState, RingState, Sharing};
use myelin_simulator::{ChainResult, CoreResult, CoreSetup, LaneSetup, Pattern, Scheduler, Source};

use crate::SEED;

#[derive(Clone, Copy)]
pub(super) struct Packet {
    chain: usize,
    stamp_ps: u64,
    ready_ns: u64,
}

pub(super) struct Ring {
    pub(super) capacity: u32,
    pub(super) packets: VecDeque<Packet>,
    pub(super) read: u64,
}

impl Ring {
    fn ready(&self, now_ns: u64) -> usize {
        self.packets
            .partition_point(|packet| packet.ready_ns <= now_ns)
    }

    /// Whether the packet fits.
    fn push(&mut self, packet: Packet) -> bool {
        let fits = self.packets.len() < self.capacity as usize;
        if fits {
            self.packets.push_back(packet);
        }
        fits
    }
}

pub(super) struct Sender {
    source: Source,
    gap_ps: u64,
    next_ps: u64,
    random: fastrand::Rng,
    pub(super) result: ChainResult,
    sheds: bool,
}

impl Sender {
    /// Time of the packet after the next one, ps.
    fn following_ps(&mut self) -> u64 {
        let distance_ps = match self.source.pattern {
            Pattern::Poisson => (-(1.0 - self.random.f64()).ln() * self.gap_ps as f64) as u64,
            _ => self.gap_ps,
        };
        self.outside_pauses_ps(self.next_ps + distance_ps)
    }

    fn outside_pauses_ps(&self, at_ps: u64) -> u64 {
        let Pattern::OnOff { on_ns, off_ns } = self.source.pattern else {
            return at_ps;
        };
        let period_ps = (on_ns + off_ns) * 1000;
        if at_ps % period_ps < on_ns * 1000 {
            at_ps
        } else {
            at_ps.next_multiple_of(period_ps)
        }
    }
}

pub(super) struct Fair {
    weight: u64,
    virtual_ns: u64,
    sleeps: bool,
}

pub(super) struct Core {
    setup: CoreSetup,
    rings: Vec<usize>,
    policy: Option<Sharing>,
    next_ns: u64,
    running: Option<usize>,
    reads: u32,
    open_read: Option<usize>,
    ask_ns: u64,
    must_ask: bool,
    has_asked_empty: bool,
    has_decided: bool,
    next_lane: usize,
    fair: Vec<Fair>,
    slice_start_ns: u64,
    slice_end_ns: u64,
    starves_since: Vec<Option<u64>>,
    waits: bool,
    pub(super) result: CoreResult,
}

/// All rings, senders and cores.
pub(super) struct Plain {
    pub(super) rings: Vec<Ring>,
    pub(super) senders: Vec<Sender>,
    pub(super) cores: Vec<Core>,
}

impl Plain {
    /// Sends all packets of a core's rings until now, the earliest first.
    fn emit(&mut self, rings: &[usize], now_ns: u64) {
        loop {
            let senders = self.senders.iter().enumerate();
            let due = senders.filter(|(_, sender)| {
                rings.contains(&sender.source.ring) && sender.next_ps <= now_ns * 1000
            });
            let Some((chain, _)) = due.min_by_key(|(_, sender)| sender.next_ps) else {
                return;
            };
            let sender = &mut self.senders[chain];
            let packet = Packet {
                chain,
                stamp_ps: sender.next_ps,
                ready_ns: sender.next_ps.div_ceil(1000),
            };
            sender.next_ps = sender.following_ps();
            sender.result.offered += 1;
            if sender.sheds {
                sender.result.shed += 1;
            } else if !self.rings[sender.source.ring].push(packet) {
                sender.result.lost_at_entry += 1;
            }
        }
    }

    fn has_packets(&self, core: &Core, task: usize, now_ns: u64) -> bool {
        let mut lanes = core.setup.lanes.iter();
        lanes.any(|lane| lane.task == task && self.rings[lane.ingress].ready(now_ns) > 0)
    }

    fn record_starvation(&self, core: &mut Core, now_ns: u64) {
        for task in 0..core.starves_since.len() {
            if core.running == Some(task) || !self.has_packets(core, task, now_ns) {
                core.starves_since[task] = None;
                continue;
            }
            let since_ns = *core.starves_since[task].get_or_insert(now_ns);
            let longest_ns = core.result.longest_starvation_ns;
            core.result.longest_starvation_ns = longest_ns.max(now_ns - since_ns);
        }
    }

    fn ask(&mut self, core: &mut Core, now_ns: u64) {
        let Some(policy) = &mut core.policy else {
            return;
        };
        let state = |ring: &usize| {
            let ring = &self.rings[*ring];
            let ready = ring.ready(now_ns);
            let head = ring.packets.front().filter(|_| ready > 0);
            let due_ns = head.and_then(|head| {
                let budget_ns = self.senders[head.chain].source.budget_ns?;
                Some(head.stamp_ps.div_ceil(1000) + budget_ns)
            });
            RingState {
                written: ring.read + ready as u64,
                read: ring.read,
                due_ns: due_ns.unwrap_or(u64::MAX),
            }
        };
        let rings: Vec<RingState> = core.rings.iter().map(state).collect();
        let lanes = core.setup.lanes.iter().map(|lane| LaneState {
            cost_ps: lane.assumed_cost_ps,
        });
        let lanes: Vec<LaneState> = lanes.collect();
        let alive = vec![true; core.fair.len()];
        let view = CoreView {
            running: core.running,
            switch_ns: 0,
            reads: core.reads,
            alive: &alive,
            rings: &rings,
            lanes: &lanes,
        };
        let mut actions = Vec::new();
        core.ask_ns = policy.decide(now_ns, view, &mut |action| actions.push(action));
        core.result.decisions += 1;
        for action in actions {
            match action {
                Action::Run(task) => {
                    core.running = Some(task);
                    let running = core.running;
                    policy.observe(now_ns, &CoreView { running, ..view });
                }
                Action::Weigh { task, weight } => core.fair[task].weight = weight.max(1).into(),
                Action::Shed(ring) | Action::Admit(ring) => {
                    let ring = core.rings[ring];
                    let senders = self.senders.iter_mut();
                    for sender in senders.filter(|sender| sender.source.ring == ring) {
                        sender.sheds = matches!(action, Action::Shed(_));
                    }
                }
            }
        }
    }

    fn ask_policy(&mut self, core: &mut Core, now_ns: u64) -> u64 {
        if std::mem::take(&mut core.has_decided) || now_ns < core.ask_ns && !core.must_ask {
            return now_ns;
        }
        core.must_ask = false;
        let before = core.running;
        self.record_starvation(core, now_ns);
        self.ask(core, now_ns);
        let mut free_ns = now_ns + core.setup.mechanism.decision_ns;
        if core.running != before {
            free_ns += core.setup.mechanism.switch_ns;
            core.result.switches += 1;
            core.reads = 0;
            (core.open_read, core.next_lane) = (None, 0);
        }
        core.has_decided = free_ns > now_ns;
        free_ns
    }

    fn ask_kernel(&mut self, core: &mut Core, now_ns: u64) -> u64 {
        let Scheduler::Fair {
            slice_ns,
            wake_ns,
            polls,
        } = core.setup.scheduler
        else {
            return self.ask_policy(core, now_ns);
        };
        if core.policy.is_some() && now_ns >= core.ask_ns {
            self.ask(core, now_ns);
        }
        let tasks = 0..core.fair.len();
        let can_run: Vec<bool> = tasks
            .clone()
            .map(|task| polls || self.has_packets(core, task, now_ns))
            .collect();
        if core.running.is_some_and(|task| can_run[task]) && now_ns < core.slice_end_ns {
            return now_ns;
        }
        self.record_starvation(core, now_ns);
        if polls && let Some(task) = core.running {
            let fair = &mut core.fair[task];
            fair.virtual_ns += (now_ns - core.slice_start_ns) * 1024 / fair.weight;
        }
        let runnable = tasks.filter(|task| can_run[*task]);
        let Some(next) = runnable.min_by_key(|task| core.fair[*task].virtual_ns) else {
            if let Some(task) = core.running.take() {
                core.fair[task].sleeps = true;
            }
            return now_ns;
        };
        core.slice_start_ns = now_ns;
        core.slice_end_ns = now_ns + slice_ns;
        let mut free_ns = now_ns;
        if core.running != Some(next) {
            if let Some(before) = core.running {
                core.fair[before].sleeps = !can_run[before];
            }
            free_ns += core.setup.mechanism.switch_ns;
            core.result.switches += 1;
            core.running = Some(next);
        }
        if std::mem::take(&mut core.fair[next].sleeps) && !polls {
            free_ns += wake_ns;
        }
        let least_ns = core.fair[next].virtual_ns.saturating_sub(slice_ns);
        for task in &mut core.fair {
            task.virtual_ns = task.virtual_ns.max(least_ns);
        }
        free_ns
    }

    /// Runs a core until its next event. Returns the rings that packets entered.
    fn step(&mut self, core: &mut Core) -> Vec<usize> {
        let now_ns = core.next_ns;
        let rings = core.rings.clone();
        self.emit(&rings, now_ns);
        core.waits = false;
        // A read takes a batch of each lane.
        let is_later = |last: usize, index: usize| {
            index > last && core.setup.lanes[index].task == core.setup.lanes[last].task
        };
        if let Some(last) = core.open_read
            && !(0..core.setup.lanes.len())
                .any(|index| is_later(last, index) && self.can_read(core, index, now_ns))
        {
            core.reads += 1;
            core.open_read = None;
        }
        let free_ns = self.ask_kernel(core, now_ns);
        if free_ns > now_ns {
            core.result.overhead_ns += free_ns - now_ns;
            core.next_ns = free_ns;
            return Vec::new();
        }
        let lanes = core.setup.lanes.len();
        let lane = (0..lanes).map(|step| (core.next_lane + step) % lanes);
        let lane = lane.into_iter().find(|index| {
            core.running == Some(core.setup.lanes[*index].task)
                && self.can_read(core, *index, now_ns)
        });
        let Some(lane) = lane else {
            self.wait(core, now_ns);
            return Vec::new();
        };
        core.next_lane = lane + 1;
        core.open_read = Some(lane);
        let lane = core.setup.lanes[lane];
        self.read(core, &lane, now_ns)
    }

    fn can_read(&self, core: &Core, index: usize, now_ns: u64) -> bool {
        let ring = core.setup.lanes[index].ingress;
        self.rings[ring].ready(now_ns) > 0 && !self.leaves(core, index)
    }

    /// Whether a task that hands over leaves the packets of a lane.
    fn leaves(&self, core: &Core, index: usize) -> bool {
        let mechanism = &core.setup.mechanism;
        if !mechanism.between_batches || core.setup.scheduler != Scheduler::Policy {
            return false;
        }
        let room = |ring: usize| self.rings[ring].capacity - self.rings[ring].packets.len() as u32;
        let is_full = |ring: usize| room(ring) < mechanism.batch.min(self.rings[ring].capacity);
        let policy = core.policy.as_ref();
        policy.is_some_and(|policy| policy.is_later(index))
            || core.setup.lanes[index].egress.is_some_and(is_full)
    }

    fn read(&mut self, core: &mut Core, lane: &LaneSetup, now_ns: u64) -> Vec<usize> {
        let mechanism = core.setup.mechanism;
        let is_fair = core.setup.scheduler != Scheduler::Policy;
        core.has_asked_empty = false;
        let ready = self.rings[lane.ingress].ready(now_ns) as u64;
        let mut packets = ready.min(mechanism.batch.into());
        if !mechanism.between_batches {
            let until_ns = if is_fair {
                core.slice_end_ns
            } else {
                core.ask_ns
            };
            let left_ps = until_ns.saturating_sub(now_ns) * 1000;
            packets = packets.min(left_ps / lane.cost_ps).max(1);
        }
        let end_ns = now_ns + mechanism.read_ns + (packets * lane.cost_ps).div_ceil(1000);
        for _ in 0..packets {
            let ring = &mut self.rings[lane.ingress];
            let mut packet = ring.packets.pop_front().expect("the packet is ready");
            ring.read += 1;
            packet.ready_ns = end_ns;
            let result = &mut self.senders[packet.chain].result;
            if let Some(ring) = lane.egress {
                result.lost_inside += u64::from(!self.rings[ring].push(packet));
                continue;
            }
            result.delivered += 1;
            let sojourn_ps = end_ns * 1000 - packet.stamp_ps;
            result.sojourn.record(sojourn_ps / 1000);
        }
        core.result.busy_ns += end_ns - now_ns;
        let polls = matches!(core.setup.scheduler, Scheduler::Fair { polls: true, .. });
        if is_fair
            && !polls
            && let Some(task) = core.running
        {
            let fair = &mut core.fair[task];
            fair.virtual_ns += (end_ns - now_ns) * 1024 / fair.weight;
        }
        let room = |ring: usize| {
            let ring = &self.rings[ring];
            ring.capacity as usize - ring.packets.len()
        };
        let is_full = lane
            .egress
            .is_some_and(|ring| room(ring) < mechanism.batch as usize);
        let watches = core.policy.as_ref();
        let watches = watches.is_some_and(Sharing::watches_short_reads);
        let is_short = watches && packets < u64::from(mechanism.batch);
        core.must_ask = mechanism.between_batches && (is_full || is_short);
        core.next_ns = end_ns;
        lane.egress.into_iter().collect()
    }

    fn wait(&self, core: &mut Core, now_ns: u64) {
        core.reads += 1;
        core.result.empty_reads += 1;
        let until_ns = match core.setup.scheduler {
            Scheduler::Policy => core.ask_ns,
            Scheduler::Fair { polls: true, .. } => core.slice_end_ns,
            Scheduler::Fair { .. } => u64::MAX,
        };
        let read_ns = core.setup.mechanism.read_ns.max(1);
        if core.setup.scheduler == Scheduler::Policy && core.setup.mechanism.between_batches {
            core.must_ask = true;
            if !std::mem::replace(&mut core.has_asked_empty, true) {
                core.next_ns = now_ns + read_ns;
                return;
            }
        }
        core.waits = true;
        let senders = self.senders.iter();
        let senders = senders.filter(|sender| core.rings.contains(&sender.source.ring));
        let sent = senders.map(|sender| sender.next_ps.div_ceil(1000));
        let heads = core.rings.iter().filter_map(|ring| {
            let head = self.rings[*ring].packets.front()?;
            Some(head.ready_ns).filter(|ready_ns| *ready_ns > now_ns)
        });
        let arrival_ns = sent.chain(heads).min().unwrap_or(u64::MAX);
        core.next_ns = until_ns.min(arrival_ns).max(now_ns + read_ns);
    }

    pub(super) fn run(&mut self, end_ns: u64) {
        loop {
            let indices = 0..self.cores.len();
            let first = indices.min_by_key(|index| self.cores[*index].next_ns);
            let Some(first) = first.filter(|first| self.cores[*first].next_ns < end_ns) else {
                break;
            };
            let now_ns = self.cores[first].next_ns;
            let mut core = self.cores.remove(first);
            let rings = self.step(&mut core);
            let end_ns = core.next_ns;
            self.cores.insert(first, core);
            for (index, other) in self.cores.iter_mut().enumerate() {
                let mut lanes = other.setup.lanes.iter();
                let is_reader = lanes.any(|lane| rings.contains(&lane.ingress));
                if is_reader && index != first && other.waits {
                    other.next_ns = other.next_ns.min(end_ns.max(now_ns));
                }
            }
        }
        let rings: Vec<usize> = (0..self.rings.len()).collect();
        self.emit(&rings, end_ns);
    }
}

impl Core {
    pub(super) fn new(setup: CoreSetup, policy: Option<Sharing>) -> Self {
        let lanes = setup.lanes.iter();
        let ends = lanes.flat_map(|lane| [Some(lane.ingress), lane.egress]);
        let mut rings: Vec<usize> = ends.flatten().collect();
        rings.sort_unstable();
        rings.dedup();
        let task = |_| Fair {
            weight: 1024,
            virtual_ns: 0,
            sleeps: true,
        };
        let fair: Vec<Fair> = (0..next_task(&setup.lanes)).map(task).collect();
        Self {
            starves_since: vec![None; fair.len()],
            setup,
            rings,
            policy,
            next_ns: 0,
            running: None,
            reads: 0,
            open_read: None,
            ask_ns: 0,
            must_ask: true,
            has_asked_empty: false,
            has_decided: false,
            next_lane: 0,
            fair,
            slice_start_ns: 0,
            slice_end_ns: 0,
            waits: false,
            result: CoreResult::default(),
        }
    }
}

impl Sender {
    pub(super) fn new(chain: usize, source: Source) -> Self {
        let gap_ps = (1e12 / source.rate_pps).max(1.0) as u64;
        let seed = SEED ^ (chain as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = fastrand::Rng::with_seed(seed);
        let next_ps = random.u64(0..gap_ps);
        let mut sender = Self {
            source,
            gap_ps,
            next_ps,
            random,
            result: ChainResult::default(),
            sheds: false,
        };
        sender.next_ps = sender.outside_pauses_ps(next_ps);
        sender
    }
}

/// The number of tasks of these lanes.
pub(super) fn next_task(lanes: &[LaneSetup]) -> usize {
    lanes.iter().map(|lane| lane.task + 1).max().unwrap_or(0)
}
