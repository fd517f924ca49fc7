//! Whether a worker runs on the core that it was given, and what becomes of it when not.
//!
//! A core can be taken from a worker while it runs: unplugged, or put out of the set that its control group may use. The kernel then lets the worker
//! run on the cores that are left, which belong to other work. There it takes only time that is left over, so that what others were promised
//! holds, until its own core is back.

use myelin_linux::affinity;
use myelin_linux::sched::{self, Policy};
use myelin_policy::sla::Binding;

/// Looks where the forwarding thread of a worker may run, a process's main thread, and binds it to its core again if that was changed. `None` when it has
/// just ended: the supervision starts a new one.
pub(crate) fn hold(pid: u32, core: u32) -> Option<Binding> {
    let cpu = core as usize;
    let cpus = affinity::get(pid).ok()?;
    if cpus == [cpu] {
        return Some(Binding::Kept);
    }
    match affinity::set(pid, &[cpu]) {
        Ok(()) => {
            turn(pid, Policy::Idle, Policy::Other);
            Some(Binding::Restored)
        }
        Err(error) if error.is_not_found() => None,
        Err(_) => {
            turn(pid, Policy::Other, Policy::Idle);
            Some(if affinity::is_online(cpu) {
                Binding::Forbidden
            } else {
                Binding::Offline
            })
        }
    }
}

/// Changes a policy, where it is that one.
fn turn(thread: u32, from: Policy, to: Policy) {
    if !sched::get(thread).is_ok_and(|policy| policy == from) {
        return;
    }
    if let Err(error) = sched::set(thread, to) {
        tracing::warn!(%error, "a worker keeps its scheduling policy");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_taken_off_its_core_is_bound_to_it_again() {
        let all = affinity::get(0).unwrap();
        let core = all[0] as u32;
        let (tell, told) = std::sync::mpsc::channel();
        let (end, until) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw().cast_unsigned())
                .unwrap();
            let _ = until.recv();
        });
        let id = told.recv().unwrap();
        let expected = if all.len() == 1 {
            Binding::Kept
        } else {
            Binding::Restored
        };
        assert_eq!(hold(id, core), Some(expected));
        assert_eq!(affinity::get(id).unwrap(), all[..1]);
        assert_eq!(hold(id, core), Some(Binding::Kept));
        drop(end);
        thread.join().unwrap();
        assert_eq!(hold(u32::MAX >> 1, core), None);
    }

    #[test]
    fn who_cannot_have_its_core_gives_way_to_others_until_it_can() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let all = affinity::get(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(hold(0, 1000), Some(Binding::Offline));
                assert_eq!(sched::get(0).unwrap(), Policy::Idle);
                assert_eq!(affinity::get(0).unwrap(), all);
                // Away from its core, so that it has something to come back from.
                if let [_, .., last] = all[..] {
                    assert_eq!(hold(0, last as u32), Some(Binding::Restored));
                    assert_eq!(sched::get(0).unwrap(), Policy::Other);
                }
            });
        });
    }
}
