//! CPU use during a measurement.

use serde::{Deserialize, Serialize};

/// Shares of the CPU time of a core, or of all cores together; they add up to 1. The resolution is
/// the kernel's tick of 10 ms, so measure for a second at least.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shares {
    /// In programs.
    pub user_share: f64,
    /// In the kernel on behalf of programs.
    pub system_share: f64,
    /// In hardware interrupts.
    pub irq_share: f64,
    /// In soft interrupts: most packet processing. On veth links it runs on the sender's core and
    /// is charged to no program.
    pub softirq_share: f64,
    /// Ready to run while the hypervisor ran something else. A high share makes the run's other
    /// figures meaningless.
    pub steal_share: f64,
    /// Idle.
    pub idle_share: f64,
}

impl Shares {
    /// The shares with their names, in the order of a stacked bar.
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
    /// Shares of its time.
    #[serde(flatten)]
    pub shares: Shares,
}

/// One process's use, all its threads together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessUse {
    /// The caller's name for it.
    pub name: String,
    /// Process number.
    pub pid: u32,
    /// CPU time, seconds; `None` if it ended during the measurement.
    pub cpu_s: Option<f64>,
    /// The same in cores: 1 is one core all the time.
    pub cores: Option<f64>,
}

/// The results of a CPU meter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuUse {
    /// Length of the measurement, seconds.
    pub duration_s: f64,
    /// All cores together; `None` if less than a tick passed.
    #[serde(flatten)]
    pub overall: Option<Shares>,
    /// Each core that was online at both ends.
    pub per_core: Vec<CoreUse>,
    /// The requested processes.
    pub processes: Vec<ProcessUse>,
}
