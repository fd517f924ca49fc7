//! Cores whose workers take turns.

use serde::{Deserialize, Serialize};

/// A core whose workers hand it over to each other (`worker.sharing`). The counters begin anew when
/// a worker or a ring comes or goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CoreStatus {
    /// The core.
    pub core: u32,
    /// The policy that chooses the next worker.
    pub policy: String,
    /// How a preemptor gives turns: `flip`, `preempt`, `weights` or `freezer`; null if the workers
    /// hand over.
    #[serde(default)]
    pub mechanism: Option<String>,
    /// Hand-overs from one task to another.
    pub switches: u64,
    /// Time of a hand-over, us: its 0.9 quantile, learned; null before the first.
    pub switch_us: Option<f64>,
    /// Times that a task took the core from one that showed no sign of life.
    pub takeovers: u64,
    /// Decisions of the policy.
    pub decisions: u64,
    /// Time of all decisions, us.
    pub decide_us: f64,
    /// The workers and pipeline stages, in the order of the turns.
    pub tasks: Vec<TaskStatus>,
}

/// A worker or pipeline stage that takes turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskStatus {
    /// The process, as in its command line.
    pub worker: String,
    /// Whether the task can run.
    pub alive: bool,
    /// Turns that have ended.
    pub turns: u64,
    /// Time of these turns, us.
    pub run_us: f64,
    /// Time in which packets waited for the worker's turn, us.
    #[serde(default)]
    pub wait_us: f64,
    /// Reads in these turns that found no packet.
    pub empty_reads: u64,
}
