//! Keeps each worker on its core.
//!
//! A worker can lose its core while it runs: the core goes offline, or the control group no longer
//! includes it. The kernel then runs the worker on other cores, which other work uses. The agent
//! then gives the worker `SCHED_IDLE`, so the guarantees of other chains hold until the worker's
//! core is back.

use myelin_linux::affinity;
use myelin_linux::sched::{self, Policy};
use myelin_policy::sla::Binding;

/// Checks the affinity of a worker's forwarding thread (the main thread of the process) and binds
/// the thread to `core` again. `None`: the process has just ended, and the supervisor restarts it.
pub(crate) fn restore(pid: u32, core: u32) -> Option<Binding> {
    let cpu = core as usize;
    let cpus = affinity::get(pid).ok()?;
    if cpus == [cpu] {
        return Some(Binding::Kept);
    }
    match affinity::set(pid, &[cpu]) {
        Ok(()) => {
            switch_policy(pid, Policy::Idle, Policy::Other);
            Some(Binding::Restored)
        }
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
    fn restore_binds_a_thread_to_its_core_again() {
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
        assert_eq!(restore(id, core), Some(expected));
        assert_eq!(affinity::get(id).unwrap(), cpus[..1]);
        assert_eq!(restore(id, core), Some(Binding::Kept));
        drop(end_thread);
        thread.join().unwrap();
        assert_eq!(restore(u32::MAX >> 1, core), None);
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
                assert_eq!(restore(0, 1000), Some(Binding::Offline));
                assert_eq!(sched::get(0).unwrap(), Policy::Idle);
                assert_eq!(affinity::get(0).unwrap(), cpus);
                // The thread is not bound to this core, so `restore` must bind it.
                if let [_, .., last] = cpus[..] {
                    assert_eq!(restore(0, last as u32), Some(Binding::Restored));
                    assert_eq!(sched::get(0).unwrap(), Policy::Other);
                }
            });
        });
    }
}
