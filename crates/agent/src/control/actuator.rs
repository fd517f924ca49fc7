//! Writes how the agent's threads, workers and control groups use the cores: affinity, scheduling
//! class and priority, quota, idle states. Controllers decide; this file alone acts. `clippy.toml`
//! of this crate refuses these calls in any other file.
//!
//! A worker can lose its core while it runs: the core goes offline, or the control group no longer
//! includes it. The kernel then runs the worker on other cores, which other work uses. The agent
//! then gives the worker `SCHED_IDLE`, so the guarantees of other chains hold until the worker's
//! core is back.

#![expect(
    clippy::disallowed_methods,
    reason = "the one file that calls these mechanisms"
)]

use myelin_linux::cgroup::{Cgroup, Limits};
use myelin_linux::pm_qos::{self, CpuLatency};
use myelin_linux::sched::{self, Policy};
use myelin_linux::{Result, affinity, priorities};
use myelin_policy::sla::Binding;

/// Makes the control group `path` with `limits`.
pub(crate) fn create_group(path: &str, limits: &Limits) -> Result<Cgroup> {
    Cgroup::create(path, limits)
}

/// Changes limits of a group. A limit of `None` stays as it is.
pub(crate) fn limit_group(group: &Cgroup, limits: &Limits) -> Result<()> {
    group.limit(limits)
}

/// Limits the processes of a group to these cores.
pub(crate) fn set_cores(group: &mut Cgroup, cores: &[u32]) -> Result<()> {
    group.set_cores(cores)
}

/// Limits the wake-up time of all cores, until the drop of the value.
pub(crate) fn limit_wake_up(limit_us: u32) -> Result<CpuLatency> {
    pm_qos::idle_driver()?;
    CpuLatency::request_limit(limit_us)
}

/// Binds a thread to a core. A thread that had lost its core gets its ordinary class again.
pub(crate) fn bind(thread: u32, core: u32) -> Result<()> {
    affinity::set(thread, &[core as usize])?;
    switch_policy(thread, Policy::Idle, Policy::Other);
    Ok(())
}

/// Runs a thread briefly on each of these CPUs. The thread inherits the caller's class. Returns
/// whether it got all of them.
pub(crate) fn visit(cpus: &[usize]) -> bool {
    // Binding the calling thread instead could lose a CPU that is offline now.
    let visit = || cpus.iter().all(|cpu| affinity::set(0, &[*cpu]).is_ok());
    std::thread::scope(|scope| scope.spawn(visit).join().unwrap_or(false))
}

/// Runs this thread with real-time priority, so it does not wait for a CPU behind busy threads such
/// as a spinning worker. Use the guard only for short steps during which packets may wait. Without
/// permission for the priority, those steps take some ms longer.
pub(crate) struct RealtimeGuard(Option<Policy>);

impl RealtimeGuard {
    pub(crate) fn begin() -> Self {
        let before = sched::get(0).ok();
        let realtime = Policy::Fifo(priorities::DRAIN_GUARD);
        Self(before.filter(|_| sched::set(0, realtime).is_ok()))
    }
}

impl Drop for RealtimeGuard {
    fn drop(&mut self) {
        if let Some(before) = self.0
            && let Err(error) = sched::set(0, before)
        {
            tracing::warn!(%error, "cannot restore the scheduling policy of an agent thread");
        }
    }
}

/// Whether the kernel gives threads of this process a real-time priority.
pub(crate) fn permits_real_time() -> bool {
    let policy = Policy::Fifo(priorities::WAITING_FUNCTION);
    let test = || sched::set(0, policy).is_ok();
    std::thread::scope(|scope| scope.spawn(test).join().unwrap_or(false))
}

/// Binds this thread to these CPUs.
pub(crate) fn bind_this_thread(cpus: &[usize]) -> Result<()> {
    affinity::set(0, cpus)
}

/// Sets the scheduling class of a task's thread, 0 for the calling thread.
pub(crate) fn set_policy(thread: u32, policy: Policy) -> Result<()> {
    sched::set(thread, policy)
}

/// Sets the niceness of a task's thread, 0 for the calling thread.
pub(crate) fn set_nice(thread: u32, nice: i32) -> Result<()> {
    sched::set_nice(thread, nice)
}

/// Sets the weight of a task's group in the fair class.
pub(crate) fn weigh(group: &Cgroup, weight: u32) -> Result<()> {
    group.set_weight(weight)
}

/// Stops a task's group, or lets it run again.
pub(crate) fn freeze(group: &mut Cgroup, is_frozen: bool) -> Result<()> {
    group.set_frozen(is_frozen)
}

/// Checks the affinity of a worker's forwarding thread (the main thread of the process) and binds
/// the thread to `core` again. `None`: the process has just ended, and the supervisor restarts it.
pub(crate) fn keep_on_core(pid: u32, core: u32) -> Option<Binding> {
    let cpu = core as usize;
    let cpus = affinity::get(pid).ok()?;
    if cpus == [cpu] {
        return Some(Binding::Kept);
    }
    match bind(pid, core) {
        Ok(()) => Some(Binding::Restored),
        Err(error) if error.is_not_found() => None,
        Err(_) => {
            switch_policy(pid, Policy::Other, Policy::Idle);
            Some(if affinity::is_online(cpu) {
                Binding::Forbidden
            } else {
                Binding::Offline
            })
        }
    }
}

/// Replaces a thread's scheduling policy `from` by `to`; leaves any other policy unchanged.
fn switch_policy(thread: u32, from: Policy, to: Policy) {
    if !sched::get(thread).is_ok_and(|policy| policy == from) {
        return;
    }
    if let Err(error) = sched::set(thread, to) {
        tracing::warn!(thread, %error, "cannot change the scheduling policy of a worker");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_on_core_binds_a_thread_to_its_core_again() {
        let cpus = affinity::get(0).unwrap();
        let core = cpus[0] as u32;
        let (send_id, receive_id) = std::sync::mpsc::channel();
        let (end_thread, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send_id
                .send(nix::unistd::gettid().as_raw().cast_unsigned())
                .unwrap();
            let _ = end.recv();
        });
        let id = receive_id.recv().unwrap();
        let expected = if cpus.len() == 1 {
            Binding::Kept
        } else {
            Binding::Restored
        };
        assert_eq!(keep_on_core(id, core), Some(expected));
        assert_eq!(affinity::get(id).unwrap(), cpus[..1]);
        assert_eq!(keep_on_core(id, core), Some(Binding::Kept));
        drop(end_thread);
        thread.join().unwrap();
        assert_eq!(keep_on_core(u32::MAX >> 1, core), None);
    }

    #[test]
    fn a_thread_without_its_core_runs_idle_until_the_core_is_back() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let cpus = affinity::get(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(keep_on_core(0, 1000), Some(Binding::Offline));
                assert_eq!(sched::get(0).unwrap(), Policy::Idle);
                assert_eq!(affinity::get(0).unwrap(), cpus);
                // The thread is not bound to this core, so `keep_on_core` must bind it.
                if let [_, .., last] = cpus[..] {
                    assert_eq!(keep_on_core(0, last as u32), Some(Binding::Restored));
                    assert_eq!(sched::get(0).unwrap(), Policy::Other);
                }
            });
        });
    }
}
