//! Scheduling policy and niceness of a thread (sched(7)).

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, setpriority_process};

use crate::error::{Error, ErrorKind, Result};
use crate::machine;

/// Scheduling policy of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// A fair share of CPU time (`SCHED_OTHER`).
    Other,
    /// Runs until the thread sleeps or a thread of higher priority (1 to 99) needs the CPU
    /// (`SCHED_FIFO`).
    Fifo(u8),
    /// As [`Self::Fifo`], but the thread takes turns with threads of equal priority (`SCHED_RR`).
    RoundRobin(u8),
    /// Runs only if no other thread needs the CPU (`SCHED_IDLE`).
    Idle,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("SCHED_OTHER"),
            Self::Fifo(priority) => write!(f, "SCHED_FIFO {priority}"),
            Self::RoundRobin(priority) => write!(f, "SCHED_RR {priority}"),
            Self::Idle => f.write_str("SCHED_IDLE"),
        }
    }
}

/// Returns the longest time that a thread keeps a core while another thread of the same weight
/// waits, and the source of this value.
///
/// The scheduler decides again at the first tick after the end of a slice. The slice comes from
/// debugfs. If debugfs is not readable, the slice is the kernel's default for this number of CPUs:
/// `base_slice`, or before Linux 6.6 half of `latency` (kernel/sched/fair.c).
pub fn longest_turn() -> (Duration, String) {
    const READ: [(&str, u64); 2] = [
        ("/sys/kernel/debug/sched/base_slice_ns", 1),
        // Two threads share the latency.
        ("/sys/kernel/debug/sched/latency_ns", 2),
    ];
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let read = READ.into_iter().find_map(|(path, threads)| {
        let ns: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        Some((ns.div_ceil(threads), path.to_owned()))
    });
    let (slice_ns, source) = read.unwrap_or_else(|| {
        let release = machine::release();
        let ns = default_slice_ns(machine::version(&release), cpus);
        let source = format!("the default of Linux {release} with {cpus} CPUs");
        (ns, source)
    });
    // The resolution of the coarse clocks is the tick.
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE);
    let tick_ns = tick.map_or(10_000_000, |tick| Duration::from(tick).as_nanos() as u64);
    let turn_ns = slice_ns.div_ceil(tick_ns.max(1)) * tick_ns.max(1);
    let tick_us = tick_ns / 1000;
    (
        Duration::from_nanos(turn_ns),
        format!("{source}: {} us, a tick of {tick_us} us", slice_ns / 1000),
    )
}

/// Returns the default slice, ns. The kernel multiplies the slice of one CPU by 1 + log2 of the
/// number of CPUs, of which at most 8 count (default `sched_tunable_scaling`). An unknown version
/// counts as the latest version.
fn default_slice_ns(version: Option<(u32, u32)>, cpus: usize) -> u64 {
    let factor = u64::from(1 + cpus.clamp(1, 8).ilog2());
    let single_ns = match version.unwrap_or((u32::MAX, 0)) {
        (6, 6..=14) => 750_000,
        version if version > (6, 14) => 700_000,
        // CFS: 6 ms for all runnable threads together.
        _ => 3_000_000,
    };
    single_ns * factor
}

/// Sets the policy of a thread, 0 for the calling thread. The thread's children inherit the policy.
pub fn set(thread: u32, policy: Policy) -> Result<()> {
    let (number, priority) = match policy {
        Policy::Other => (libc::SCHED_OTHER, 0),
        Policy::Fifo(priority) => (libc::SCHED_FIFO, priority),
        Policy::RoundRobin(priority) => (libc::SCHED_RR, priority),
        Policy::Idle => (libc::SCHED_IDLE, 0),
    };
    let parameters = libc::sched_param {
        sched_priority: priority.into(),
    };
    let id = thread.cast_signed();
    // SAFETY: `parameters` outlives the call, and the call only reads `parameters`.
    let result = unsafe { libc::sched_setscheduler(id, number, &raw const parameters) };
    if result == 0 {
        return Ok(());
    }
    let error = Error::os(
        format!("set {} to {policy}", thread_name(thread)),
        io::Error::last_os_error(),
    );
    Err(match (error.kind(), policy) {
        (ErrorKind::Invalid, _) => error.because("a real-time priority must be 1 to 99"),
        // A capability may be missing. Another cause: a CPU group of cgroup v1 has no real-time
        // budget by default.
        (ErrorKind::Denied, Policy::Fifo(_) | Policy::RoundRobin(_)) => error.remedy(
            "run as root, in the root CPU control group (real-time threads have no budget in other groups)",
        ),
        _ => error,
    })
}

/// Sets the niceness of a thread under [`Policy::Other`], 0 for the calling thread. Niceness -20
/// gets the most CPU time, 19 the least. (On Linux, setpriority(2) applies to the thread, not to
/// the process.)
pub fn set_nice(thread: u32, nice: i32) -> Result<()> {
    setpriority_process(Pid::from_raw(thread.cast_signed()), nice).map_err(|errno| {
        let action = format!("set {} to niceness {nice}", thread_name(thread));
        Error::os(action, errno)
    })
}

/// Returns the policy of a thread, 0 for the calling thread. Returns [`Policy::Other`] for policies
/// that [`Policy`] lacks (batch, deadline).
pub fn get(thread: u32) -> Result<Policy> {
    let failed = || {
        Error::os(
            format!("read the scheduling policy of {}", thread_name(thread)),
            io::Error::last_os_error(),
        )
    };
    // SAFETY: the call passes no pointer.
    let number = unsafe { libc::sched_getscheduler(thread.cast_signed()) };
    if number < 0 {
        return Err(failed());
    }
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` is writable and outlives the call.
    if unsafe { libc::sched_getparam(thread.cast_signed(), &raw mut parameters) } < 0 {
        return Err(failed());
    }
    let priority = u8::try_from(parameters.sched_priority).unwrap_or(0);
    Ok(match number & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_FIFO => Policy::Fifo(priority),
        libc::SCHED_RR => Policy::RoundRobin(priority),
        libc::SCHED_IDLE => Policy::Idle,
        _ => Policy::Other,
    })
}

pub(crate) fn thread_name(thread: u32) -> String {
    if thread == 0 {
        "this thread".to_owned()
    } else {
        format!("thread {thread}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::version;
    use crate::tests::root_or_skip;

    #[test]
    fn the_slice_depends_on_kernel_and_cpus_and_a_turn_is_at_least_a_tick() {
        assert_eq!(default_slice_ns(version("6.18.44-fc-v769"), 2), 1_400_000);
        assert_eq!(default_slice_ns(version("6.8.0-45-generic"), 64), 3_000_000);
        assert_eq!(default_slice_ns(version("6.1.0"), 8), 12_000_000);
        assert_eq!(default_slice_ns(version("5.15.0"), 1), 3_000_000);
        assert_eq!(default_slice_ns(version("unknown"), 1), 700_000);
        let (turn, source) = longest_turn();
        let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
        assert!(turn >= Duration::from(tick), "{turn:?} {source}");
        assert_eq!(turn.as_nanos() % Duration::from(tick).as_nanos(), 0);
    }

    #[test]
    fn the_idle_policy_needs_no_root() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set(0, Policy::Idle).unwrap();
                assert_eq!(get(0).unwrap(), Policy::Idle);
            });
        });
        assert_eq!(get(0).unwrap(), Policy::Other);
    }

    #[test]
    fn niceness_applies_to_one_thread() {
        // Field 19 of proc_pid_stat(5), the 17th after the name.
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            fields
                .split_whitespace()
                .nth(16)
                .unwrap()
                .parse::<i32>()
                .unwrap()
        };
        let before = nice();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_nice(0, 19).unwrap();
                assert_eq!(nice(), 19);
            });
        });
        assert_eq!(nice(), before);
        assert!(set_nice(u32::MAX >> 1, 19).unwrap_err().is_not_found());
    }

    #[test]
    fn real_time_policies_are_set_and_invalid_priorities_refused() {
        if !root_or_skip("real_time_policies_are_set_and_invalid_priorities_refused") {
            return;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for policy in [Policy::Fifo(1), Policy::RoundRobin(2), Policy::Other] {
                    set(0, policy).unwrap();
                    assert_eq!(get(0).unwrap(), policy);
                }
            });
        });
        let error = set(0, Policy::Fifo(100)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot set this thread to SCHED_FIFO 100: a real-time priority must be 1 to 99"
        );
        assert!(
            set(u32::MAX >> 1, Policy::Other)
                .unwrap_err()
                .is_not_found()
        );
    }
}
