//! How CPUs and processes spent the time of a measurement.

use serde::{Deserialize, Serialize};

/// How a core, or all together, spent the time: shares that add up to 1. Resolution is the kernel's tick of 10 ms, so measure for a second at least.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shares {
    /// In programs.
    pub user_share: f64,
    /// In the kernel on behalf of programs.
    pub system_share: f64,
    /// In hardware interrupts.
    pub irq_share: f64,
    /// In soft interrupts: most packet processing. On veth links it happens on the sender's core and is charged to no program.
    pub softirq_share: f64,
    /// Ready to run while the hypervisor ran something else: figures of a run with much of it are the neighbour's.
    pub steal_share: f64,
    /// Nothing to do.
    pub idle_share: f64,
}

impl Shares {
    /// The shares by the names a table shows, in the order of a stacked bar.
    pub fn parts(&self) -> [(&'static str, f64); 6] {
        [
            ("user", self.user_share),
            ("system", self.system_share),
            ("softirq", self.softirq_share),
            ("irq", self.irq_share),
            ("steal", self.steal_share),
            ("idle", self.idle_share),
        ]
    }
}

/// One core's use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CoreUse {
    /// The core's number.
    pub core: usize,
    /// How it spent the time.
    #[serde(flatten)]
    pub shares: Shares,
}

/// One process's use, all its threads together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessUse {
    /// What the caller calls it.
    pub name: String,
    /// Its number.
    pub pid: u32,
    /// CPU time it took, seconds; `None` when it ended meanwhile.
    pub cpu_s: Option<f64>,
    /// The same in cores: 1 is one core all the time.
    pub cores: Option<f64>,
}

/// What a CPU meter found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuUse {
    /// Length of the measurement, seconds.
    pub duration_s: f64,
    /// All cores together; `None` when less than a tick passed.
    #[serde(flatten)]
    pub overall: Option<Shares>,
    /// Core by core, those that were online at both ends.
    pub per_core: Vec<CoreUse>,
    /// The processes that were asked for.
    pub processes: Vec<ProcessUse>,
}
