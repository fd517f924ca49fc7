//! The tasks, lanes and rings of a shared core, as a policy sees them.

use serde::{Deserialize, Serialize};

/// The tasks of a core and the rings between them. They are constant while the tasks live.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SharedCore {
    /// Number of tasks. Tasks are numbered from 0, in chain order.
    pub tasks: usize,
    /// The lanes of all tasks, in chain order.
    pub lanes: Vec<Lane>,
    /// Capacity of each ring, packets.
    pub capacities: Vec<u32>,
}

/// A way of packets from one ring through one task to another ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The task that processes the packets.
    pub task: usize,
    /// The ring that the task reads.
    pub ingress: usize,
    /// The ring that the task writes; `None` for a port, which always has room.
    pub egress: Option<usize>,
}

/// The state of a core at one moment.
#[derive(Debug, Clone, Copy)]
pub struct CoreView<'a> {
    /// The task that has the core; `None` if no task has it.
    pub running: Option<usize>,
    /// Time that a switch takes from the core, ns, as [`next_switch_ns`] learns it; 0 if it is
    /// unknown.
    pub switch_ns: u64,
    /// Reads of the running task since it got the core, empty ones included. 0 if nobody counts
    /// them.
    pub reads: u32,
    /// Whether each task can run. A dead task cannot.
    pub alive: &'a [bool],
    /// The state of each ring.
    pub rings: &'a [RingState],
    /// The state of each lane.
    pub lanes: &'a [LaneState],
}

/// A switch takes at most the learned time in nine of ten cases.
const SWITCH_QUANTILE: f64 = 0.9;
/// Share of the learned time by which one switch changes it.
const SWITCH_STEP: f64 = 1.0 / 16.0;
/// Bounds of the learned time, ns: a longer one is an interruption, not a switch.
const SWITCH_NS: (u64, u64) = (200, 50_000);

/// Learns the time of a switch: returns a better estimate after one that took `seen_ns`. `known_ns`
/// is the last estimate, 0 at first. The estimate is a high quantile, because a deadline is missed
/// by the slow switches.
pub fn next_switch_ns(known_ns: u64, seen_ns: u64) -> u64 {
    let (least, most) = SWITCH_NS;
    if known_ns == 0 {
        return seen_ns.clamp(least, most);
    }
    let known = known_ns as f64;
    let step = if seen_ns > known_ns {
        SWITCH_QUANTILE
    } else {
        SWITCH_QUANTILE - 1.0
    };
    (known + step * SWITCH_STEP * known)
        .round()
        .clamp(least as f64, most as f64) as u64
}

/// The state of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingState {
    /// Packets that the producer has written since the ring exists.
    pub written: u64,
    /// Packets that the consumer has read since the ring exists.
    pub read: u64,
    /// The time at which the oldest packet must leave its chain: its stamp and the chain's delay
    /// budget, ns. `u64::MAX` without a packet or a stamp.
    pub due_ns: u64,
}

impl RingState {
    /// An empty ring.
    pub const EMPTY: Self = Self {
        written: 0,
        read: 0,
        due_ns: u64::MAX,
    };

    /// Packets in the ring.
    #[inline]
    pub fn packets(&self) -> u32 {
        // A foreign process writes the indices, so any distance may occur.
        u32::try_from(self.written.saturating_sub(self.read)).unwrap_or(u32::MAX)
    }
}

/// The state of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneState {
    /// Cost of a packet, ps.
    pub cost_ps: u64,
}

impl LaneState {
    /// Time for this number of packets, ns, rounded up.
    #[inline]
    pub fn time_ns(&self, packets: u32) -> u64 {
        self.cost_ps
            .saturating_mul(packets.into())
            .div_ceil(PS_PER_NS)
    }
}

const PS_PER_NS: u64 = 1000;
/// Most tasks of a core. The description of a core comes from another process.
const MOST_TASKS: usize = 1 << 16;

/// A change of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The task gets the core.
    Run(usize),
    /// The kernel's fair class gives the task this weight, 1 to 10,000.
    Weigh {
        /// The task.
        task: usize,
        /// Its weight.
        weight: u32,
    },
    /// Packets are dropped before they enter this ring (backpressure).
    Shed(usize),
    /// Packets enter this ring again.
    Admit(usize),
}

impl SharedCore {
    /// Whether every lane names a task and rings that exist, and the tasks are not too many. There
    /// are policies only for such a core.
    pub(super) fn is_consistent(&self) -> bool {
        let exists = |ring: usize| ring < self.capacities.len();
        let mut lanes = self.lanes.iter();
        self.tasks <= MOST_TASKS
            && lanes.all(|lane| {
                lane.task < self.tasks && exists(lane.ingress) && lane.egress.is_none_or(exists)
            })
    }

    /// Whether the view is one of this core. From another one, a policy decides nothing.
    #[inline]
    pub(super) fn is_in(&self, view: &CoreView<'_>) -> bool {
        view.alive.len() == self.tasks
            && view.rings.len() == self.capacities.len()
            && view.lanes.len() == self.lanes.len()
            && view.running.is_none_or(|running| running < self.tasks)
    }

    /// Packets that fit into the ring behind a lane.
    #[inline]
    pub(super) fn room(&self, lane: &Lane, rings: &[RingState]) -> u32 {
        lane.egress.map_or(u32::MAX, |ring| {
            self.capacities[ring].saturating_sub(rings[ring].packets())
        })
    }

    /// Whether a task may read a lane: there is room for a batch behind the lane. A ring shorter
    /// than a batch has room when it is empty. `packets` returns the packets in a ring.
    #[inline]
    pub fn has_room(&self, lane: &Lane, batch: u32, packets: impl Fn(usize) -> u32) -> bool {
        lane.egress.is_none_or(|ring| {
            let capacity = self.capacities[ring];
            capacity.saturating_sub(packets(ring)) >= batch.min(capacity)
        })
    }

    /// The lane that reads the ring; `None` if no task of this core does.
    pub(super) fn reader(&self, ring: usize) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.ingress == ring)
    }

    /// The next task after `running` that can run and for which `is_ready` holds, in cyclic order;
    /// `running` itself comes last. Without a running task, the search starts at task 0.
    #[inline]
    pub(super) fn next_task(
        &self,
        view: &CoreView<'_>,
        mut is_ready: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let first = view.running.map_or(0, |running| running + 1);
        (first..self.tasks)
            .chain(0..first)
            .find(|task| view.alive[*task] && is_ready(*task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_indices_are_no_panic() {
        let ring = RingState {
            written: 3,
            read: 9,
            ..RingState::EMPTY
        };
        assert_eq!(ring.packets(), 0);
        let ring = RingState {
            written: u64::MAX,
            ..ring
        };
        assert_eq!(ring.packets(), u32::MAX);
    }

    #[test]
    fn the_time_of_a_switch_is_a_high_quantile_of_those_seen() {
        let mut known_ns = next_switch_ns(0, 1000);
        assert_eq!(known_ns, 1000);
        // One of eight takes 5 us: more than a tenth.
        for switch in 0..2000 {
            known_ns = next_switch_ns(known_ns, if switch % 8 == 0 { 5000 } else { 2000 });
        }
        assert!((4000..6000).contains(&known_ns), "{known_ns}");
        // One of thirty-two: less than a tenth.
        for switch in 0..2000 {
            known_ns = next_switch_ns(known_ns, if switch % 32 == 0 { 5000 } else { 2000 });
        }
        assert!((1500..2500).contains(&known_ns), "{known_ns}");
        for seen_ns in [0, u64::MAX] {
            let learned = (0..1000).fold(0, |known_ns, _| next_switch_ns(known_ns, seen_ns));
            assert_eq!(learned, seen_ns.clamp(SWITCH_NS.0, SWITCH_NS.1));
        }
    }

    #[test]
    fn times_are_rounded_up() {
        let lane = LaneState { cost_ps: 16_667 };
        assert_eq!((lane.time_ns(1), lane.time_ns(3)), (17, 51));
        let endless = LaneState { cost_ps: u64::MAX };
        assert_eq!(endless.time_ns(2), u64::MAX.div_ceil(1000));
    }
}
