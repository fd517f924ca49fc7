//! Waiting until packets have left the programs that they were in.
//!
//! A program at XDP or tcx runs with softirqs disabled, and on a kernel that is not a real-time one no thread takes the
//! CPU meanwhile. So once a thread has been on every CPU, every program that ran before has ended. That takes
//! some 100 us where an RCU grace period takes 10 ms; the latter is the way where the thread may not go everywhere.

use myelin_kernel::{Error, Plane};
use myelin_linux::sched::Policy;
use myelin_linux::{affinity, sched};
use nix::unistd::{SysconfVar, sysconf};

/// Says of a real-time kernel, where softirqs are threads, that it is one.
const REAL_TIME: &str = "/sys/kernel/realtime";

/// Waits until every packet that was in a program when this was called has left it.
pub(crate) fn wait(plane: &Plane) -> Result<(), Error> {
    let _urgent = Urgent::begin();
    let preemptible = std::fs::read_to_string(REAL_TIME).is_ok_and(|text| text.trim() == "1");
    if !preemptible && visit_every_cpu() {
        return Ok(());
    }
    plane.wait_for_packets()
}

/// Runs a moment on every CPU; false when some may not be visited.
fn visit_every_cpu() -> bool {
    let Ok(allowed) = affinity::get(0) else {
        return false;
    };
    if online_cpus() != Some(allowed.len()) {
        return false;
    }
    // A thread of its own, which inherits the priority and takes where it is bound to along: this one could not be given back a CPU that is offline just now.
    let visit = || allowed.iter().all(|cpu| affinity::set(0, &[*cpu]).is_ok());
    std::thread::scope(|scope| scope.spawn(visit).join().unwrap_or(false))
}

fn online_cpus() -> Option<usize> {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten()?;
    usize::try_from(cpus).ok()
}

/// While it lives this thread does not wait for a CPU behind those that are busy: a worker that spins, say. For the few
/// steps of an exchange that packets see; where it is not permitted they take some ms more.
pub(crate) struct Urgent(Option<Policy>);

impl Urgent {
    pub(crate) fn begin() -> Self {
        let before = sched::get(0).ok();
        Self(before.filter(|_| sched::set(0, Policy::Fifo(1)).is_ok()))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.0
            && let Err(error) = sched::set(0, before)
        {
            tracing::warn!(%error, "a thread of the agent stays a real-time one");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_is_visited_and_the_thread_is_as_it_was() {
        let was = || (affinity::get(0).unwrap(), sched::get(0).unwrap());
        let before = was();
        let visited = {
            let _urgent = Urgent::begin();
            visit_every_cpu()
        };
        assert_eq!(was(), before);
        assert_eq!(visited, online_cpus() == Some(before.0.len()));
    }
}
