//! Run time and waiting time of tasks (`/proc/PID/task/TID/schedstat`, sched-stats.rst of the
//! kernel).

use std::fs;
use std::ops::AddAssign;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Scheduling times of a process since its start, summed over its threads that have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulingTimes {
    /// Time on a core.
    pub run: Duration,
    /// Time during which a thread was runnable while another task used the core. Excludes time that
    /// the hypervisor took.
    pub waited: Duration,
}

impl AddAssign for SchedulingTimes {
    fn add_assign(&mut self, other: Self) {
        self.run += other.run;
        self.waited += other.waited;
    }
}

/// Reads the scheduling times of a process.
///
/// # Errors
/// The process does not exist, or the kernel lacks `CONFIG_SCHED_INFO`.
pub fn read_process(pid: u32) -> Result<SchedulingTimes> {
    let action = format!("read the scheduling times of process {pid}");
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|error| Error::os(action.clone(), error))?;
    let mut sum = SchedulingTimes::default();
    for task in tasks.flatten() {
        // A thread may have ended since the listing.
        match fs::read_to_string(task.path().join("schedstat")) {
            Ok(text) => sum += parse(&text).ok_or_else(|| unreadable_error(&action))?,
            Err(error) if task.path().exists() => return Err(Error::os(action, error)),
            Err(_) => {}
        }
    }
    Ok(sum)
}

/// Reads the scheduling times of the calling thread. Returns zeros if the kernel lacks
/// `CONFIG_SCHED_INFO`.
///
/// # Errors
/// The file cannot be read, or is malformed.
pub fn read_this_thread() -> Result<SchedulingTimes> {
    let action = "read the scheduling times of this thread";
    match fs::read_to_string("/proc/thread-self/schedstat") {
        Ok(text) => parse(&text).ok_or_else(|| unreadable_error(action)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(SchedulingTimes::default())
        }
        Err(error) => Err(Error::os(action.to_owned(), error)),
    }
}

/// Parses `RUN WAITED SLICES`. The first two numbers are in nanoseconds.
fn parse(text: &str) -> Option<SchedulingTimes> {
    let mut fields = text.split_whitespace().map(str::parse);
    let mut time = || Some(Duration::from_nanos(fields.next()?.ok()?));
    Some(SchedulingTimes {
        run: time()?,
        waited: time()?,
    })
}

fn unreadable_error(action: &str) -> Error {
    Error::new(action, ErrorKind::Other, "`schedstat` is malformed")
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;
    use crate::tests::Child;

    #[test]
    fn a_line_of_schedstat_is_parsed() {
        let parsed = parse("86901446 61214176 302\n").unwrap();
        assert_eq!(parsed.run, Duration::from_nanos(86_901_446));
        assert_eq!(parsed.waited, Duration::from_nanos(61_214_176));
        assert!(parse("7").is_none() && parse("a b c").is_none());
    }

    #[test]
    fn work_counts_as_run_time_and_a_missing_process_is_an_error() {
        let mut worker = Command::new("sh");
        let worker = Child::spawn(worker.args(["-c", "while :; do :; done"]));
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut last = SchedulingTimes::default();
        while last.run < Duration::from_millis(50) && Instant::now() < deadline {
            last = read_process(worker.id()).unwrap();
        }
        assert!(last.run >= Duration::from_millis(50), "{last:?}");
        assert!(read_process(u32::MAX >> 1).unwrap_err().is_not_found());
    }
}
