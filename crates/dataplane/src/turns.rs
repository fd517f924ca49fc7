//! Turns: workers and pipeline stages on one core hand the core over to each other.
//!
//! A process that polls looks busy to an operating system also when it has no packet. So processes
//! that share a core waste their time slices, and every packet waits for several of them. Here one
//! process at a time, the *holder*, has the core. Between two batches it looks at the rings of all
//! processes and asks the policy ([`myelin_policy::sharing`]) who is next. It hands the core over
//! by a futex; the others wait.
//!
//! ```text
//! holder:   batch - policy? - batch - policy: run B - wake B - wait ............
//! B:        ................................................... turn - batch - ...
//! ```
//!
//! Every process has a copy of the policy, whose state is in the [`Table`]. A process is trusted to
//! hand over, because it could keep the core anyway. But no process waits for a dead one: if the
//! holder shows no sign of life for [`STALL_NS`], another takes the core. Two holders are harmless:
//! the kernel then shares the core between them.
//!
//! A holder without packets sleeps for all: it watches the sockets of the others too.

mod cost;
mod members;
mod ring_record;
mod sensor;
mod table;
#[cfg(test)]
mod tests;

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use myelin_policy::Policy;
use myelin_policy::sharing::{
    Action, CoreView, LaneState, Parameters, RingState, SharedCore, Sharing,
};
use myelin_spec::SharingSpec;
use serde::{Deserialize, Serialize};

use cost::{FIRST_COST_PS, known_cost_ps, next_cost_ps};
pub use members::{CoreTable, Member, TaskLevel, TaskObserver};
pub(crate) use members::{MemberLane, MemberRing};
use sensor::RingSensor;
pub use sensor::{RingKind, RingObserver};
pub use table::{CoreStats, TaskStats};
pub(crate) use table::{Table, TableFile};

use crate::chain::SocketId;
use crate::clock::monotonic_ns;
use crate::forwarder::Forwarder;
use crate::port::Port;
use crate::sys;

/// Longest time without a sign of life of the holder, ns. A batch takes microseconds.
const STALL_NS: u64 = 50_000_000;

/// A task's place on a shared core, as the agent tells it to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnSetup {
    pub(crate) core: SharedCore,
    pub(crate) policy: Parameters,
    /// The worker's task.
    pub(crate) task: usize,
    /// The kind of each ring; their descriptors come with the request.
    pub(crate) rings: Vec<RingKind>,
    /// Longest time of a packet until it leaves its chain, ns, for each ring: from its stamp in a
    /// pipeline's ring, else from the look that finds it.
    pub(crate) budgets_ns: Vec<u64>,
    /// The ports that the worker reads, each with its lane.
    pub(crate) ports: Vec<(SocketId, usize)>,
}

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The worker has the core.
    Turn,
    /// Another thread has something for the loop, or a time has come.
    Other,
}

/// A worker's share of its core.
#[derive(Debug)]
pub(crate) struct Turns {
    table: Arc<Table>,
    core: SharedCore,
    policy: Sharing,
    task: usize,
    sensors: Vec<RingSensor>,
    budgets_ns: Vec<u64>,
    /// The lane of each port that the worker reads, by port.
    lane_of_port: Vec<Option<usize>>,
    /// Whether each ring is one that this task reads.
    own_rings: Vec<bool>,
    /// The indices of each ring at the last look of this turn.
    indices: Vec<Option<(u32, u32)>>,
    has_core: bool,
    turn_start_ns: u64,
    /// The end of the last turn, ns.
    turn_end_ns: u64,
    /// The time of the policy's next decision, ns.
    ask_ns: u64,
    reads: u32,
    empty_reads: u64,
    seen: Seen,
    words: Vec<u64>,
}

/// The state of the core at the last look. Every look reuses the vectors.
#[derive(Debug)]
struct Seen {
    alive: Vec<bool>,
    rings: Vec<RingState>,
    lanes: Vec<LaneState>,
}

impl Seen {
    fn view(&self, running: usize, switch_ns: u64, reads: u32) -> CoreView<'_> {
        CoreView {
            running: Some(running),
            switch_ns,
            reads,
            alive: &self.alive,
            rings: &self.rings,
            lanes: &self.lanes,
        }
    }
}

impl Turns {
    /// Maps the table and the rings. `fds` has the table and the descriptor of each ring.
    pub(crate) fn open(setup: TurnSetup, fds: Vec<OwnedFd>) -> Result<Self, String> {
        let mut fds = fds.into_iter();
        let TurnSetup {
            core,
            policy,
            task,
            rings,
            budgets_ns,
            ports,
        } = setup;
        let table = fds.next().ok_or("the request has no table")?;
        let counts = [rings.len(), budgets_ns.len(), fds.len()];
        let has_lanes = ports.iter().all(|(_, lane)| *lane < core.lanes.len());
        if task >= core.tasks || counts != [core.capacities.len(); 3] || !has_lanes {
            return Err("the description of the shared core is inconsistent".into());
        }
        let table = Table::map(std::os::fd::AsFd::as_fd(&table), &core);
        let table = table.map_err(|error| error.to_string())?;
        let sensors = rings.into_iter().zip(fds);
        let sensors = sensors.map(|(kind, fd)| RingSensor::open(kind, fd));
        let sensors: Vec<_> = sensors.collect::<Result<_, _>>()?;
        let policy = policy.policy(core.clone());
        let policy = policy.ok_or("the description of the shared core names a missing ring")?;
        let mut lane_of_port = Vec::new();
        for (SocketId(port), lane) in ports {
            let port = usize::from(port);
            if lane_of_port.len() <= port {
                lane_of_port.resize(port + 1, None);
            }
            // The first of several lanes from one ring stands for all.
            lane_of_port[port].get_or_insert(lane);
        }
        let is_own = |ring| {
            let mut lanes = core.lanes.iter();
            lanes.any(|lane| lane.task == task && lane.ingress == ring)
        };
        Ok(Self {
            table: Arc::new(table),
            policy,
            task,
            own_rings: (0..sensors.len()).map(is_own).collect(),
            indices: vec![None; sensors.len()],
            sensors,
            budgets_ns,
            lane_of_port,
            has_core: false,
            turn_start_ns: 0,
            turn_end_ns: monotonic_ns(),
            ask_ns: 0,
            reads: 0,
            empty_reads: 0,
            seen: Seen {
                alive: vec![true; core.tasks],
                rings: vec![RingState::EMPTY; core.capacities.len()],
                lanes: vec![
                    LaneState {
                        cost_ps: FIRST_COST_PS
                    };
                    core.lanes.len()
                ],
            },
            words: vec![0; Sharing::state_len(&core)],
            core,
        })
    }

    /// What another thread needs to wake the loop while it waits for its turn.
    pub(crate) fn waker(&self) -> Waker {
        Waker {
            table: Arc::clone(&self.table),
            task: self.task,
        }
    }

    /// Whether the worker has the core.
    #[inline]
    pub(crate) fn has_core(&mut self) -> bool {
        // Another task takes the core from one that stalls.
        if self.has_core && self.table.running() != Some(self.task) {
            self.has_core = false;
        }
        self.has_core
    }

    /// Waits for the worker's turn, until `until_ns`, or until another thread wants something.
    pub(crate) fn wait(&mut self, until_ns: Option<u64>, has_changes: &AtomicBool) -> Wake {
        let mut pulse = (self.table.pulse(), monotonic_ns());
        loop {
            let wakes = self.table.wakes_of(self.task);
            self.table.set_alive(self.task, true);
            let running = self.table.running();
            if running == Some(self.task) || running.is_none() && self.table.take(None, self.task) {
                self.begin();
                return Wake::Turn;
            }
            let now_ns = monotonic_ns();
            let is_due = until_ns.is_some_and(|until_ns| now_ns >= until_ns);
            if has_changes.load(Ordering::Acquire) || is_due {
                return Wake::Other;
            }
            let seen = self.table.pulse();
            if seen != pulse.0 {
                pulse = (seen, now_ns);
            } else if now_ns.saturating_sub(pulse.1) >= STALL_NS
                && self.must_take_over()
                && self.table.take(running, self.task)
            {
                // A task that has handed the core over meanwhile is alive.
                if let Some(dead) = running {
                    self.table.set_alive(dead, false);
                }
                self.table.count_takeover();
                self.begin();
                return Wake::Turn;
            }
            let longest_ns = until_ns.map_or(STALL_NS, |until_ns| until_ns - now_ns);
            let longest = Duration::from_nanos(longest_ns.min(STALL_NS));
            sys::wait_for_change(self.table.wake_word(self.task), wakes, longest);
        }
    }

    /// Whether a holder that shows no sign of life keeps packets waiting. One that sleeps wakes up
    /// for them, if it lives.
    fn must_take_over(&self) -> bool {
        let has_packets = |(sensor, is_own): (&RingSensor, &bool)| {
            let (written, read) = sensor.indices();
            *is_own && written != read
        };
        let mut rings = self.sensors.iter().zip(&self.own_rings);
        !self.table.is_asleep() || rings.any(has_packets)
    }

    fn begin(&mut self) {
        let now_ns = monotonic_ns();
        self.has_core = true;
        self.table.set_asleep(false);
        self.table.arrive(now_ns);
        self.table.beat();
        self.turn_start_ns = now_ns;
        (self.reads, self.empty_reads) = (0, 0);
        self.table.read_state(&mut self.words);
        self.policy.load(&self.words);
        self.indices.fill(None);
        self.look(now_ns);
        if let Some(oldest_ns) = self.oldest_ns() {
            let since_ns = oldest_ns.max(self.turn_end_ns);
            self.table
                .count_wait(self.task, now_ns.saturating_sub(since_ns));
        }
        let view = self.seen.view(self.task, self.table.switch_ns(), 0);
        self.policy.observe(now_ns, &view);
        // The first decision follows the first batch.
        self.ask_ns = now_ns;
    }

    /// The time since which the oldest packet of an own ring is there, at the last look, ns.
    fn oldest_ns(&self) -> Option<u64> {
        let own = self
            .own_rings
            .iter()
            .enumerate()
            .filter(|(_, is_own)| **is_own);
        own.filter_map(|(ring, _)| self.table.ring(ring).level().1)
            .min()
    }

    /// Processes one batch from each port, and hands the core over if another task is next. Returns
    /// the number of arrivals, and whether the worker may sleep: no task has packets.
    #[inline]
    pub(crate) fn process<P: Port>(&mut self, forwarder: &mut Forwarder<'_, P>) -> (u32, bool) {
        let (received, now_ns) = self.read(forwarder);
        let is_short = received < forwarder.batch_size() && self.policy.watches_short_reads();
        (received, self.decide(received, is_short, now_ns))
    }

    /// Processes one batch from each port that the policy does not leave for later. Returns the
    /// number of arrivals, and the time after the last of them.
    #[inline]
    fn read<P: Port>(&mut self, forwarder: &mut Forwarder<'_, P>) -> (u32, u64) {
        let mut received = 0;
        let mut before_ns = monotonic_ns();
        for port in 0..forwarder.port_count() {
            let lane = self.lane_of_port.get(port).copied().flatten();
            if lane.is_some_and(|lane| self.leaves(lane, forwarder.batch_size())) {
                continue;
            }
            let arrived = forwarder.process_port(port);
            if arrived == 0 {
                continue;
            }
            received += arrived;
            let now_ns = monotonic_ns();
            if let Some(lane) = lane {
                self.record_cost(lane, now_ns.saturating_sub(before_ns), arrived);
            }
            before_ns = now_ns;
        }
        self.table.beat();
        self.reads = self.reads.saturating_add(1);
        self.empty_reads += u64::from(received == 0);
        (received, before_ns)
    }

    /// Whether the packets of a lane wait: the ring behind has no room for a batch, or the policy
    /// wants it so.
    fn leaves(&self, lane: usize, batch: u32) -> bool {
        let packets = |ring: usize| {
            let (written, read) = self.sensors[ring].indices();
            written.wrapping_sub(read)
        };
        self.policy.is_later(lane) || !self.core.has_room(&self.core.lanes[lane], batch, packets)
    }

    /// Records the time of a batch of a lane.
    fn record_cost(&self, lane: usize, ns: u64, packets: u32) {
        let seen_ps = ns.saturating_mul(1000) / u64::from(packets.max(1));
        let known_ps = known_cost_ps(self.table.lane_cost_ps(lane));
        self.table
            .set_lane_cost_ps(lane, next_cost_ps(known_ps, seen_ps));
    }

    /// Reads the state of all rings, tasks and lanes. Returns whether another task has packets.
    fn look(&mut self, now_ns: u64) -> bool {
        for (ring, sensor) in self.sensors.iter().enumerate() {
            let indices = sensor.indices();
            // In its turn only this task looks, so it knows a ring that has not changed.
            if self.indices[ring].replace(indices) == Some(indices) {
                continue;
            }
            let record = self.table.ring(ring);
            let (written, read) = record.extend(indices.0, indices.1);
            let budget_ns = self.budgets_ns[ring];
            let spacing_ns = SharingSpec::mark_spacing_ns(budget_ns);
            let since_ns = record.look(now_ns, written, read, spacing_ns);
            // In a pipeline the budget counts from the packet's arrival at its chain. A stamp from
            // another process counts for one budget at most.
            let arrived_ns = since_ns.map(|since_ns| match sensor.stamp_ns(now_ns) {
                Some(stamp_ns) => {
                    stamp_ns.clamp(since_ns.saturating_sub(budget_ns), since_ns.max(1))
                }
                None => since_ns,
            });
            let due_ns = arrived_ns.map(|arrived_ns| arrived_ns.saturating_add(budget_ns));
            self.seen.rings[ring] = RingState {
                written,
                read,
                due_ns: due_ns.unwrap_or(u64::MAX),
            };
        }
        for (task, alive) in self.seen.alive.iter_mut().enumerate() {
            *alive = self.table.is_alive(task);
        }
        for (lane, state) in self.seen.lanes.iter_mut().enumerate() {
            state.cost_ps = known_cost_ps(self.table.lane_cost_ps(lane));
        }
        let mut rings = self.seen.rings.iter().zip(&self.own_rings);
        rings.any(|(ring, is_own)| !is_own && ring.packets() > 0)
    }

    /// Asks the policy after a read with this number of arrivals, and hands the core over if
    /// another task is next. Returns whether the worker may sleep: no task has packets.
    #[inline]
    fn decide(&mut self, received: u32, is_short: bool, now_ns: u64) -> bool {
        if received > 0 && !is_short && now_ns < self.ask_ns {
            return false;
        }
        let others_have_packets = self.look(now_ns);
        let switch_ns = self.table.switch_ns();
        let view = self.seen.view(self.task, switch_ns, self.reads);
        if !others_have_packets {
            // An idle core stays where it is. Lanes that were left for later may have their turn.
            self.policy.observe(now_ns, &view);
            let mut rings = self.seen.rings.iter();
            return received == 0 && rings.all(|ring| ring.packets() == 0);
        }
        let mut next = None;
        let mut act = |action| {
            if let Action::Run(task) = action {
                next = Some(task);
            }
        };
        self.ask_ns = self.policy.decide(now_ns, view, &mut act);
        let decided_ns = monotonic_ns();
        self.table.count_decision(decided_ns.saturating_sub(now_ns));
        if let Some(task) = next.filter(|task| *task != self.task && *task < self.core.tasks) {
            self.hand_over(task, decided_ns);
        }
        false
    }

    fn hand_over(&mut self, task: usize, now_ns: u64) {
        self.end_turn(now_ns);
        self.table.leave(now_ns);
        self.table.give(task);
    }

    fn end_turn(&mut self, now_ns: u64) {
        self.has_core = false;
        self.turn_end_ns = now_ns;
        self.policy.save(&mut self.words);
        self.table.write_state(&self.words);
        let run_ns = now_ns.saturating_sub(self.turn_start_ns);
        self.table.count_turn(self.task, run_ns, self.empty_reads);
    }

    /// Says that the holder sleeps, or no longer sleeps.
    pub(crate) fn set_asleep(&self, is_asleep: bool) {
        self.table.set_asleep(is_asleep);
    }

    /// The descriptors that are readable while other tasks have packets.
    pub(crate) fn foreign_fds(&self) -> impl Iterator<Item = RawFd> {
        let rings = self.sensors.iter().zip(&self.own_rings);
        let foreign = rings.filter(|(_, is_own)| !**is_own);
        foreign.filter_map(|(sensor, _)| sensor.readable_fd())
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if self.has_core() {
            self.end_turn(monotonic_ns());
        }
        self.table.set_alive(self.task, false);
        self.table.free(self.task);
    }
}

/// Wakes a loop that waits for its turn.
#[derive(Debug, Clone)]
pub(crate) struct Waker {
    table: Arc<Table>,
    task: usize,
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.table.wake(self.task);
    }
}
