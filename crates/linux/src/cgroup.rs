//! Control groups: what processes may use, what they have used, and who belongs together.
//!
//! v2 and v1 are found at run time ([`Hierarchies`]); a [`Cgroup`] is the same path in each hierarchy that it needs.
//! Paths are `myelin-RUN/NAME` below the root: the first part says whose they are, so nothing here touches a group
//! of somebody else.
//!
//! With cgroup v1 a task with real-time priority cannot be in a group without real-time bandwidth of its own, so real-time
//! priority and a group exclude each other.

mod hierarchy;
mod removal;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::sched::{self, Policy};

pub use hierarchy::{Hierarchies, Mode};
pub use removal::remove;

/// What every path begins with.
const PREFIX: &str = "myelin-";

/// The time over which a CPU quota holds, where the quota is not too small for it. A process that has used its share up
/// stands still for the rest of it, so it is short.
const PERIOD: Duration = Duration::from_millis(10);
/// The kernel takes no smaller quota.
const MIN_QUOTA: Duration = Duration::from_millis(1);

/// What a group may use at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processor time, thousandths of a core; at least 1.
    pub cpu_millicores: Option<u32>,
    /// Memory, bytes. Swap is not given in its place.
    pub memory_bytes: Option<u64>,
}

/// What a group has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, ns.
    pub cpu_ns: u64,
    /// Memory in use, bytes: also file pages and shared memory that its processes touched first.
    pub memory_bytes: u64,
    /// Periods in which it had used its quota up.
    pub throttled_periods: u64,
    /// How long it stood still for that, ns.
    pub throttled_ns: u64,
    /// Processes that were killed at the memory limit.
    pub oom_kills: u64,
}

/// A group.
#[derive(Debug)]
pub struct Cgroup {
    path: String,
    /// In each hierarchy.
    directories: Vec<PathBuf>,
    cpu: Option<Directory>,
    cpuacct: Option<Directory>,
    memory: Option<Directory>,
    /// Kills at the memory limit in groups below that are gone.
    former_oom_kills: AtomicU64,
}

/// Where a controller's files are.
#[derive(Debug, Clone)]
struct Directory {
    path: PathBuf,
    unified: bool,
}

impl Cgroup {
    /// Makes the group `path` (`myelin-RUN/NAME`) with its limits, or nothing.
    pub fn create(path: &str, limits: &Limits) -> Result<Self> {
        check_path(path)?;
        let hierarchies = Hierarchies::detect()?;
        let action = format!("make the control group {path}");
        refuse_real_time(&action)?;
        if limits.cpu_millicores.is_some() {
            hierarchies.need("cpu", &action)?;
        }
        if limits.memory_bytes.is_some() {
            hierarchies.need("memory", &action)?;
        }
        let made = Self::make(path, &hierarchies, limits, &action)
            .and_then(|group| group.limit(limits).map(|()| group));
        made.inspect_err(|_| {
            // The first error is the one to report.
            let _ = remove(path);
        })
    }

    fn make(path: &str, hierarchies: &Hierarchies, limits: &Limits, action: &str) -> Result<Self> {
        let mut directories = Vec::new();
        let mut at = |controller: &str, is_needed: bool| -> Result<Option<Directory>> {
            let Some(hierarchy) = hierarchies.of(controller) else {
                return Ok(None);
            };
            let directory = hierarchy.mount.join(path);
            make_directory(&directory).map_err(|error| explain(action, error))?;
            if !directories.contains(&directory) {
                directories.push(directory.clone());
            }
            if hierarchy.unified
                && let Err(error) = enable(&hierarchy.mount, path, controller, action)
            {
                // In a container the root has processes of its own and hands nothing down. Then a group without limits lacks
                // this controller's figures, no more.
                return if is_needed { Err(error) } else { Ok(None) };
            }
            Ok(Some(Directory {
                path: directory,
                unified: hierarchy.unified,
            }))
        };
        let cpu = at("cpu", limits.cpu_millicores.is_some())?;
        let memory = at("memory", limits.memory_bytes.is_some())?;
        let cpuacct = match hierarchies.of("cpu") {
            // The processor time of a group of v2 needs no controller.
            Some(hierarchy) if hierarchy.unified => Some(Directory {
                path: hierarchy.mount.join(path),
                unified: true,
            }),
            _ => at("cpuacct", false)?,
        };
        if directories.is_empty() {
            // Any hierarchy says who belongs together.
            let hierarchy = hierarchies.iter().next().ok_or_else(|| {
                Error::new(
                    action,
                    ErrorKind::Unsupported,
                    "no cgroup hierarchy is mounted",
                )
                .remedy("mount -t cgroup2 none /sys/fs/cgroup")
            })?;
            let directory = hierarchy.mount.join(path);
            make_directory(&directory).map_err(|error| explain(action, error))?;
            directories.push(directory);
        }
        Ok(Self {
            path: path.to_owned(),
            directories,
            cpu,
            cpuacct,
            memory,
            former_oom_kills: AtomicU64::new(0),
        })
    }

    /// Its path below the root of each hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets the limits that are given; the others stay as they are.
    pub fn limit(&self, limits: &Limits) -> Result<()> {
        let action = || format!("limit the control group {}", self.path);
        let write = |directory: &Directory, file: &str, value: &str| {
            let path = directory.path.join(file);
            fs::write(&path, value).map_err(|error| {
                Error::os(
                    format!("{}: write `{value}` to {}", action(), path.display()),
                    error,
                )
            })
        };
        if let (Some(cpu), Some(millicores)) = (&self.cpu, limits.cpu_millicores) {
            let (quota, period) = quota(millicores);
            let (quota, period) = (quota.as_micros(), period.as_micros());
            if cpu.unified {
                write(cpu, "cpu.max", &format!("{quota} {period}"))?;
            } else {
                // A quota that is too small for the new period would be refused.
                write(cpu, "cpu.cfs_quota_us", "-1")?;
                write(cpu, "cpu.cfs_period_us", &period.to_string())?;
                write(cpu, "cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        if let (Some(memory), Some(bytes)) = (&self.memory, limits.memory_bytes) {
            let limit = bytes.to_string();
            if memory.unified {
                write(memory, "memory.max", &limit)?;
                // Absent without swap accounting.
                let _ = write(memory, "memory.swap.max", "0");
            } else {
                // Memory and swap together are never below memory alone, so the way up begins with them.
                let _ = write(memory, "memory.memsw.limit_in_bytes", "-1");
                write(memory, "memory.limit_in_bytes", &limit)?;
                let _ = write(memory, "memory.memsw.limit_in_bytes", &limit);
            }
        }
        Ok(())
    }

    /// Makes `command` start inside: it and all its children are members from their first instruction.
    pub fn join(&self, command: &mut Command) -> Result<()> {
        let mut files = Vec::new();
        for directory in &self.directories {
            let path = directory.join("cgroup.procs");
            let file = OpenOptions::new().write(true).open(&path);
            files.push(file.map_err(|error| Error::os(format!("open {}", path.display()), error))?);
        }
        let enter = move || -> io::Result<()> {
            // "0" is the process that writes.
            files.iter().try_for_each(|mut file| file.write_all(b"0"))
        };
        // SAFETY: the closure only writes to descriptors that it owns: it neither allocates nor takes a lock, so it may
        // run between fork and exec of a process with several threads.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// The processes inside and below.
    pub fn processes(&self) -> Vec<u32> {
        let directory = &self.directories[0];
        let all = removal::tree(directory);
        all.iter()
            .flat_map(|directory| processes_in(directory))
            .collect()
    }

    /// Ends all processes inside, and removes the groups below.
    pub fn clear(&self) -> Result<()> {
        let below = |root: &PathBuf| {
            let mut all = removal::tree(root);
            all.pop();
            all
        };
        if let Some(memory) = self.memory.as_ref().filter(|memory| !memory.unified) {
            let kills = below(&memory.path)
                .iter()
                .map(|directory| oom_kills_of(directory))
                .sum();
            self.former_oom_kills.fetch_add(kills, Ordering::Relaxed);
        }
        removal::clear(&self.path)
    }

    /// What its processes have used since it was made, the ended ones included. A figure whose controller is not there
    /// is 0.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        if let Some(cpu) = &self.cpu {
            let stat = cpu.text("cpu.stat");
            usage.throttled_periods = field(&stat, "nr_throttled");
            usage.throttled_ns = if cpu.unified {
                field(&stat, "throttled_usec") * 1000
            } else {
                field(&stat, "throttled_time")
            };
        }
        if let Some(cpuacct) = &self.cpuacct {
            usage.cpu_ns = if cpuacct.unified {
                field(&cpuacct.text("cpu.stat"), "usage_usec") * 1000
            } else {
                number(&cpuacct.text("cpuacct.usage"))
            };
        }
        if let Some(memory) = &self.memory {
            if memory.unified {
                usage.memory_bytes = number(&memory.text("memory.current"));
                usage.oom_kills = field(&memory.text("memory.events"), "oom_kill");
            } else {
                usage.memory_bytes = number(&memory.text("memory.usage_in_bytes"));
                // v1 counts where the process was, not above.
                let all = removal::tree(&memory.path);
                let kills: u64 = all.iter().map(|directory| oom_kills_of(directory)).sum();
                usage.oom_kills = kills + self.former_oom_kills.load(Ordering::Relaxed);
            }
        }
        usage
    }
}

impl Directory {
    fn text(&self, file: &str) -> String {
        read(&self.path.join(file))
    }
}

/// The children of a thread with real-time priority have it too, and could not join.
fn refuse_real_time(action: &str) -> Result<()> {
    match sched::get(0)? {
        Policy::Other | Policy::Idle => Ok(()),
        policy => Err(Error::new(
            action,
            ErrorKind::Invalid,
            format!("its processes would run as {policy}, like this one: real-time priority and a quota exclude each other"),
        )
        .remedy("start this program without real-time priority (`chrt --other 0 ...`)")),
    }
}

/// Quota and period of a share, in whole microseconds, as the kernel takes them.
fn quota(millicores: u32) -> (Duration, Duration) {
    let millicores = u64::from(millicores.max(1));
    let us = |duration: Duration| duration.as_micros() as u64;
    // Rounded up: a period that is a bit too short makes the quota too small.
    let least = (us(MIN_QUOTA) * 1000).div_ceil(millicores);
    let period = us(PERIOD).max(least);
    let quota = period * millicores / 1000;
    (Duration::from_micros(quota), Duration::from_micros(period))
}

/// The paths that this module touches: two plain names, the first of which is Myelin's.
fn check_path(path: &str) -> Result<()> {
    let mut parts = path.split('/');
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    let run = parts.next().unwrap_or_default();
    let name = parts.next().unwrap_or_default();
    if run.starts_with(PREFIX) && plain(run) && plain(name) && parts.next().is_none() {
        return Ok(());
    }
    Err(Error::new(
        format!("use the control group {path}"),
        ErrorKind::Invalid,
        "its path is not of the form myelin-RUN/NAME",
    ))
}

fn make_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        match fs::create_dir(parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Hands a controller of v2 down to the group.
fn enable(mount: &Path, path: &str, controller: &str, action: &str) -> Result<()> {
    let run = path.split('/').next().unwrap_or(path);
    for directory in [mount.to_path_buf(), mount.join(run)] {
        let file = directory.join("cgroup.subtree_control");
        if read(&file)
            .split_whitespace()
            .any(|word| word == controller)
        {
            continue;
        }
        fs::write(&file, format!("+{controller}")).map_err(|error| {
            let busy = error.raw_os_error() == Some(libc::EBUSY);
            let error = Error::os(format!("{action}: write +{controller} to {}", file.display()), error);
            if busy {
                error
                    .because("the group above has processes of its own, so it can hand no controller down")
                    .remedy(format!(
                        "move them into a group below it (`mkdir {0}/init; for pid in $(cat {0}/cgroup.procs); do \
                         echo $pid > {0}/init/cgroup.procs; done`)",
                        directory.display()
                    ))
            } else {
                error
            }
        })?;
    }
    Ok(())
}

fn explain(action: &str, error: io::Error) -> Error {
    let read_only = error.raw_os_error() == Some(libc::EROFS);
    let error = Error::os(action, error);
    if read_only {
        error.remedy("the cgroup file system is mounted read-only here: in a container, mount it writable (`--privileged`)")
    } else {
        error
    }
}

/// Kills at the memory limit of one group of v1.
fn oom_kills_of(directory: &Path) -> u64 {
    field(&read(&directory.join("memory.oom_control")), "oom_kill")
}

/// The processes of one group, without those below.
fn processes_in(directory: &Path) -> Vec<u32> {
    let text = read(&directory.join("cgroup.procs"));
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A group that has gone reads as empty.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// `name value` on a line of its own.
fn field(text: &str, name: &str) -> u64 {
    let value = |line: &str| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    };
    text.lines().find_map(value).unwrap_or(0)
}

#[cfg(test)]
mod tests;
