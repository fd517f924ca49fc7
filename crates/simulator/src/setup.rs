//! The description of a core.

use myelin_policy::sharing::{Lane, SharedCore};

/// A way of packets from one ring through one task to another ring. Rings are those of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneSetup {
    /// The task. Tasks are numbered from 0, in chain order.
    pub task: usize,
    /// The ring that the task reads, and no task of another core.
    pub ingress: usize,
    /// The ring that the task writes; `None` for a port.
    pub egress: Option<usize>,
    /// Cost of a packet, ps.
    pub cost_ps: u64,
    /// The cost of a packet that the policy assumes, ps.
    pub assumed_cost_ps: u64,
}

impl LaneSetup {
    /// Time for this number of packets, ns, rounded up.
    #[inline]
    pub(crate) fn work_ns(&self, packets: u32) -> u64 {
        let work_ps = self.cost_ps.saturating_mul(packets.into());
        work_ps.div_ceil(1000)
    }
}

/// What a switch costs, and when the policy acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mechanism {
    /// Time that a switch takes from the core, ns.
    pub switch_ns: u64,
    /// Time that a decision takes from the core, ns. 0 if another core decides.
    pub decision_ns: u64,
    /// Whether tasks turn between two batches (hand-over, `sched_yield`). Else the policy preempts
    /// a task at any time.
    pub between_batches: bool,
    /// Most packets of a batch, at least 1.
    pub batch: u32,
    /// Time of a read, with or without packets, ns, at least 1.
    pub read_ns: u64,
}

/// Who chooses the next task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The policy.
    Policy,
    /// The kernel's fair class, by weights that the policy may set.
    Fair {
        /// Longest time between two decisions of the kernel, ns.
        slice_ns: u64,
        /// Time to wake a task that sleeps, ns.
        wake_ns: u64,
        /// Whether tasks poll. Else they sleep without packets.
        polls: bool,
    },
}

/// A core and what runs on it.
#[derive(Debug, Clone)]
pub struct CoreSetup {
    /// The lanes of its tasks, in chain order.
    pub lanes: Vec<LaneSetup>,
    /// What a switch costs.
    pub mechanism: Mechanism,
    /// Who chooses the next task.
    pub scheduler: Scheduler,
}

impl CoreSetup {
    /// The machine's numbers of the core's rings, each once.
    pub(crate) fn rings(&self) -> Vec<usize> {
        let ends = self
            .lanes
            .iter()
            .flat_map(|lane| [Some(lane.ingress), lane.egress]);
        let mut rings: Vec<usize> = ends.flatten().collect();
        rings.sort_unstable();
        rings.dedup();
        rings
    }

    pub(crate) fn tasks(&self) -> usize {
        let tasks = self.lanes.iter().map(|lane| lane.task + 1);
        tasks.max().unwrap_or(0)
    }

    /// The core as a policy sees it. `capacity` returns the capacity of a ring of the machine.
    pub fn shared_core(&self, capacity: impl Fn(usize) -> u32) -> SharedCore {
        let rings = self.rings();
        let local = |ring: usize| rings.partition_point(|other| *other < ring);
        let lane = |lane: &LaneSetup| Lane {
            task: lane.task,
            ingress: local(lane.ingress),
            egress: lane.egress.map(local),
        };
        SharedCore {
            tasks: self.tasks(),
            lanes: self.lanes.iter().map(lane).collect(),
            capacities: rings.iter().map(|ring| capacity(*ring)).collect(),
        }
    }
}
