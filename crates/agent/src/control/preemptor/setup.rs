//! What the agent tells a preemptor, and a preemptor its guardian: one line of JSON.

use std::os::fd::RawFd;

use myelin_dataplane::RingKind;
use myelin_policy::sharing::Parameters;
use myelin_spec::SharingMechanism;
use serde::{Deserialize, Serialize};

/// A shared core.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CoreSetup {
    pub(crate) core: u32,
    pub(crate) policy: Parameters,
    /// The preemptor uses the first one that the kernel permits.
    pub(crate) mechanisms: Vec<SharingMechanism>,
    /// In chain order.
    pub(crate) tasks: Vec<TaskSetup>,
    /// The descriptor of the kernel's packet counters, and their layout.
    pub(crate) counters: (RawFd, (u32, u32)),
    /// The descriptor of the file with the preemptor's counters.
    pub(crate) record: RawFd,
}

/// A task of the core.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TaskSetup {
    pub(crate) members: TaskMembers,
    pub(crate) lanes: Vec<LaneSetup>,
}

/// The threads of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum TaskMembers {
    /// All threads in this control group, now and later.
    Group(String),
    /// The main thread of this process.
    Process(u32),
}

/// A ring that a task reads. It has the number of the lane, counted over all tasks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LaneSetup {
    pub(crate) ring: RingSetup,
    /// Packets.
    pub(crate) capacity: u32,
    /// The ring that the task then writes, if a task of this core reads it.
    pub(crate) egress: Option<usize>,
    /// Measured cost of a packet, ps, if there is one. The preemptor learns the present one.
    pub(crate) cost_ps: Option<u64>,
    /// Longest time of a packet on the core, ns, if a contract has one.
    pub(crate) budget_ns: Option<u64>,
}

/// How a preemptor sees the packets in a ring.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RingSetup {
    /// By counters of the packets that the kernel delivers to a black box and takes from it.
    Counted { entered: u32, left: [u32; 2] },
    /// By the indices of a ring in shared memory.
    Mapped { kind: RingKind, fd: RawFd },
}

/// The tasks of a preemptor, for its guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GuardianSetup {
    pub(crate) preemptor: u32,
    pub(crate) core: u32,
    /// Those that the preemptor may try.
    pub(crate) mechanisms: Vec<SharingMechanism>,
    pub(crate) tasks: Vec<TaskMembers>,
}
