//! Waits until all eBPF programs that run now have ended.
//!
//! Programs at XDP and tcx run with softirqs disabled. Except on a real-time kernel, no thread
//! takes the CPU meanwhile. So after a thread has run on every CPU, every earlier program run has
//! ended. This method takes about 100 us. If a CPU is not allowed, the agent waits for an RCU grace
//! period instead, which takes 10 ms.

use myelin_kernel::{Error, Plane};
use myelin_linux::affinity;
use nix::unistd::{SysconfVar, sysconf};

use crate::control::actuator::{self, RealtimeGuard};

/// This file contains 1 on a real-time kernel, where softirqs are threads.
const REAL_TIME: &str = "/sys/kernel/realtime";

/// Waits until every program run that has begun has ended.
pub(crate) fn wait_for_programs(plane: &Plane) -> Result<(), Error> {
    let _realtime = RealtimeGuard::begin();
    let preemptible = std::fs::read_to_string(REAL_TIME).is_ok_and(|text| text.trim() == "1");
    if !preemptible && visit_every_cpu() {
        return Ok(());
    }
    plane.wait_for_packets()
}

/// Runs briefly on every CPU. Returns false if some CPU is not allowed.
fn visit_every_cpu() -> bool {
    let Ok(allowed) = affinity::get(0) else {
        return false;
    };
    if online_cpus() != Some(allowed.len()) {
        return false;
    }
    actuator::visit(&allowed)
}

fn online_cpus() -> Option<usize> {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten()?;
    usize::try_from(cpus).ok()
}

#[cfg(test)]
mod tests {
    use myelin_linux::sched;

    use super::*;

    #[test]
    fn visiting_every_cpu_leaves_affinity_and_policy_unchanged() {
        let settings = || (affinity::get(0).unwrap(), sched::get(0).unwrap());
        let before = settings();
        let visited = {
            let _realtime = RealtimeGuard::begin();
            visit_every_cpu()
        };
        assert_eq!(settings(), before);
        assert_eq!(visited, online_cpus() == Some(before.0.len()));
    }
}
