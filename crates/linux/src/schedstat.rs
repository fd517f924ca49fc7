//! How long tasks ran and how long they waited for a core (`/proc/PID/task/TID/schedstat`, sched-stats.rst of the kernel).

use std::fs;
use std::ops::AddAssign;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// What the scheduler gave a process since it began, all threads together that it has now: one that ends takes its part along.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// On a core.
    pub run: Duration,
    /// Ready to run, while something else had the core. What the hypervisor took is not in it.
    pub waited: Duration,
}

impl AddAssign for Scheduled {
    fn add_assign(&mut self, other: Self) {
        self.run += other.run;
        self.waited += other.waited;
    }
}

/// What the scheduler gave a process.
///
/// # Errors
/// No such process, or a kernel without `CONFIG_SCHED_INFO`.
pub fn of_process(pid: u32) -> Result<Scheduled> {
    let action = format!("read how long process {pid} ran and waited");
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|error| Error::os(action.clone(), error))?;
    let mut sum = Scheduled::default();
    for task in tasks.flatten() {
        // A thread may end between the listing and the reading.
        match fs::read_to_string(task.path().join("schedstat")) {
            Ok(text) => sum += parse(&text).ok_or_else(|| unreadable(&action))?,
            Err(error) if task.path().exists() => return Err(Error::os(action, error)),
            Err(_) => {}
        }
    }
    Ok(sum)
}

/// What the scheduler gave the calling thread since it began; nothing where the kernel does not tell (`CONFIG_SCHED_INFO`).
///
/// # Errors
/// A file that cannot be read, or is malformed.
pub fn of_this_thread() -> Result<Scheduled> {
    let action = "read how long this thread ran and waited";
    match fs::read_to_string("/proc/thread-self/schedstat") {
        Ok(text) => parse(&text).ok_or_else(|| unreadable(action)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Scheduled::default()),
        Err(error) => Err(Error::os(action.to_owned(), error)),
    }
}

/// `RUN WAITED SLICES`, the first two in nanoseconds.
fn parse(text: &str) -> Option<Scheduled> {
    let mut fields = text.split_whitespace().map(str::parse);
    let mut time = || Some(Duration::from_nanos(fields.next()?.ok()?));
    Some(Scheduled {
        run: time()?,
        waited: time()?,
    })
}

fn unreadable(action: &str) -> Error {
    Error::new(action, ErrorKind::Other, "`schedstat` is malformed")
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;
    use crate::tests::Child;

    #[test]
    fn a_line_of_schedstat() {
        let parsed = parse("86901446 61214176 302\n").unwrap();
        assert_eq!(parsed.run, Duration::from_nanos(86_901_446));
        assert_eq!(parsed.waited, Duration::from_nanos(61_214_176));
        assert!(parse("7").is_none() && parse("a b c").is_none());
    }

    #[test]
    fn work_counts_as_run_and_a_process_that_is_gone_is_an_error() {
        let mut worker = Command::new("sh");
        let worker = Child::spawn(worker.args(["-c", "while :; do :; done"]));
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut last = Scheduled::default();
        while last.run < Duration::from_millis(50) && Instant::now() < deadline {
            last = of_process(worker.id()).unwrap();
        }
        assert!(last.run >= Duration::from_millis(50), "{last:?}");
        assert!(of_process(u32::MAX >> 1).unwrap_err().is_not_found());
    }
}
