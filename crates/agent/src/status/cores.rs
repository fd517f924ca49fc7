//! The cores whose workers take turns.

use myelin_dataplane::TaskStats;

use crate::api::{CoreStatus, TaskStatus};
use crate::node::cores::Cores;

/// Reads the counters of all such cores. Leaves them out while a worker's turns change.
pub(crate) fn read(cores: &Cores) -> Vec<CoreStatus> {
    let task = |(worker, stats): (String, &TaskStats)| TaskStatus {
        worker,
        alive: stats.is_alive,
        turns: stats.turns,
        run_us: microseconds(stats.run_ns),
        wait_us: microseconds(stats.wait_ns),
        empty_reads: stats.empty_reads,
    };
    let cores = cores.stats().into_iter().map(|shared| CoreStatus {
        core: shared.core,
        policy: shared.policy.to_string(),
        mechanism: shared.mechanism.map(|mechanism| mechanism.to_string()),
        switches: shared.stats.switches,
        switch_us: (shared.stats.switch_ns > 0).then(|| microseconds(shared.stats.switch_ns)),
        takeovers: shared.stats.takeovers,
        decisions: shared.stats.decisions,
        decide_us: microseconds(shared.stats.decide_ns),
        tasks: shared
            .tasks
            .into_iter()
            .zip(&shared.stats.tasks)
            .map(task)
            .collect(),
    });
    cores.collect()
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}
