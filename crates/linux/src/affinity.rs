//! The CPUs that a thread may run on.

use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, ErrorKind, Result};

/// Pins a thread to `cpus`. `thread` is the thread identifier; 0 selects the calling thread, and a
/// process identifier the main thread of the process.
pub fn set(thread: u32, cpus: &[usize]) -> Result<()> {
    let action = || format!("pin {} to CPUs {cpus:?}", crate::sched::thread_name(thread));
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu).map_err(|_| {
            Error::new(
                action(),
                ErrorKind::Invalid,
                format!("CPU numbers end at {}", CpuSet::count() - 1),
            )
        })?;
    }
    sched_setaffinity(Pid::from_raw(thread.cast_signed()), &set).map_err(|errno| {
        let error = Error::os(action(), errno);
        match error.kind() {
            ErrorKind::Invalid => error
                .because("none of these CPUs is online and allowed")
                .remedy(format!("choose from {:?}", get(0).unwrap_or_default())),
            _ => error,
        }
    })
}

/// Returns the CPUs that a thread may run on, ascending. `thread` 0 is the calling thread.
pub fn get(thread: u32) -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(thread.cast_signed())).map_err(|errno| {
        Error::os(
            format!("read the CPUs of {}", crate::sched::thread_name(thread)),
            errno,
        )
    })?;
    Ok((0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .collect())
}

/// Returns the highest CPU number that the calling thread may use.
pub fn highest_core() -> u32 {
    let allowed = get(0).unwrap_or_default();
    allowed.last().map_or(0, |&last| last as u32)
}

/// Returns whether the machine has this CPU, online or not.
pub fn is_present(cpu: u32) -> bool {
    Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}")).exists()
}

/// Returns how many CPUs the calling thread may use.
pub fn count_cores() -> usize {
    get(0).map_or(1, |allowed| allowed.len())
}

/// Returns whether the CPU is present and online (Documentation/core-api/cpu_hotplug.rst).
pub fn is_online(cpu: usize) -> bool {
    let directory = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}"));
    match fs::read_to_string(directory.join("online")) {
        Ok(text) => text.trim() != "0",
        // A CPU that cannot be taken offline has no such file.
        Err(_) => directory.exists(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_affects_one_thread_only() {
        let all = get(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set(0, &all[..1]).unwrap();
                assert_eq!(get(0).unwrap(), all[..1]);
            });
        });
        assert_eq!(get(0).unwrap(), all);
    }

    #[test]
    fn allowed_cpus_are_online() {
        assert!(get(0).unwrap().into_iter().all(is_online));
        assert!(!is_online(1 << 20));
    }

    #[test]
    fn impossible_cpus_are_refused_and_the_error_lists_valid_cpus() {
        let error = set(0, &[1000]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.to_string().contains("[1000]") && error.to_string().contains("choose from [0"),
            "{error}"
        );
        assert_eq!(set(0, &[1 << 20]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(set(0, &[]).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(get(u32::MAX >> 1).unwrap_err().is_not_found());
    }
}
