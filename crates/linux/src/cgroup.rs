//! Control groups: limits, usage and membership of processes.
//!
//! [`Hierarchies`] detects v2 and v1 at run time. A [`Cgroup`] has the same path in each hierarchy
//! that it needs. Paths are `myelin-RUN/NAME` below the root, and deeper for the groups of an agent
//! that has a group of its own. Only Myelin uses this prefix, so this module never changes the
//! group of another program.
//!
//! With cgroup v1, a real-time task cannot join a group that has no real-time bandwidth. So
//! real-time priority and a group exclude each other.

mod cpuset;
mod hierarchy;
mod members;
mod quota;
mod removal;
mod turns;

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
pub use quota::{Quota, cpu_quota};
pub use removal::{enter, remove};
pub use turns::{DEFAULT_WEIGHT, MAX_WEIGHT};

/// Prefix of the path of every group.
const PREFIX: &str = "myelin-";

/// Default period of a CPU quota; longer if the quota would be too small. The period is short,
/// because a process that has used its quota stops for the rest of the period.
const PERIOD: Duration = Duration::from_millis(10);
/// The smallest quota that the kernel accepts.
const MIN_QUOTA: Duration = Duration::from_millis(1);

/// Resource limits of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processor time, thousandths of a core; at least 1.
    pub cpu_millicores: Option<u32>,
    /// Memory, bytes, without swap.
    pub memory_bytes: Option<u64>,
    /// Whether the group's threads may have a real-time priority, which the kernel refuses in most
    /// groups of controller `cpu`. Then the group has neither this controller nor a weight, and
    /// `cpu_millicores` is refused.
    pub is_real_time: bool,
}

/// Resource usage of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, ns.
    pub cpu_ns: u64,
    /// Memory in use, bytes. Includes file pages and shared memory that a process of the group
    /// accessed first.
    pub memory_bytes: u64,
    /// Periods in which the group used up its quota.
    pub throttled_periods: u64,
    /// Time during which the group was throttled, ns.
    pub throttled_ns: u64,
    /// Processes that the kernel killed at the memory limit.
    pub oom_kills: u64,
}

/// A control group.
#[derive(Debug)]
pub struct Cgroup {
    path: String,
    /// One directory for each hierarchy.
    directories: Vec<PathBuf>,
    cpu: Option<Directory>,
    cpuacct: Option<Directory>,
    memory: Option<Directory>,
    /// Number of processes that the kernel killed at the memory limit in removed subgroups.
    removed_oom_kills: AtomicU64,
}

/// The directory of a controller's files.
#[derive(Debug, Clone)]
struct Directory {
    path: PathBuf,
    unified: bool,
}

impl Cgroup {
    /// Creates the group `path` (`myelin-RUN/NAME`) with `limits`. A failure leaves no group
    /// behind.
    pub fn create(path: &str, limits: &Limits) -> Result<Self> {
        check_path(path)?;
        let hierarchies = Hierarchies::detect()?;
        let action = format!("create the control group {path}");
        refuse_real_time(&action)?;
        if limits.cpu_millicores.is_some() {
            if limits.is_real_time {
                let cause = "a quota and a real-time priority exclude each other";
                return Err(Error::new(action, ErrorKind::Invalid, cause));
            }
            hierarchies.require("cpu", &action)?;
        }
        if limits.memory_bytes.is_some() {
            hierarchies.require("memory", &action)?;
        }
        let created = Self::make_directories(path, &hierarchies, limits, &action)
            .and_then(|group| group.limit(limits).map(|()| group));
        created.inspect_err(|_| {
            // The first error is the cause.
            let _ = remove(path);
        })
    }

    fn make_directories(
        path: &str,
        hierarchies: &Hierarchies,
        limits: &Limits,
        action: &str,
    ) -> Result<Self> {
        let mut directories = Vec::new();
        let mut prepare = |controller: &str, is_needed: bool| -> Result<Option<Directory>> {
            let Some(hierarchy) = hierarchies.find(controller) else {
                return Ok(None);
            };
            let directory = hierarchy.mount.join(path);
            make_directory(&directory).map_err(|error| add_remedy(action, error))?;
            if !directories.contains(&directory) {
                directories.push(directory.clone());
            }
            if hierarchy.unified
                && let Err(error) = delegate_controller(&hierarchy.mount, path, controller, action)
            {
                // In a container the root group contains processes, so it cannot delegate a
                // controller. Without limits, the group then only lacks this controller's usage.
                return if is_needed { Err(error) } else { Ok(None) };
            }
            Ok(Some(Directory {
                path: directory,
                unified: hierarchy.unified,
            }))
        };
        let cpu = if limits.is_real_time {
            None
        } else {
            prepare("cpu", limits.cpu_millicores.is_some())?
        };
        let memory = prepare("memory", limits.memory_bytes.is_some())?;
        let cpuacct = match hierarchies.find("cpu") {
            // In v2, the processor time of a group needs no controller.
            Some(hierarchy) if hierarchy.unified => Some(Directory {
                path: hierarchy.mount.join(path),
                unified: true,
            }),
            _ => prepare("cpuacct", false)?,
        };
        if directories.is_empty() {
            // Any hierarchy can record the members of a group.
            let hierarchy = hierarchies.iter().next().ok_or_else(|| {
                Error::new(
                    action,
                    ErrorKind::Unsupported,
                    "no cgroup hierarchy is mounted",
                )
                .remedy("mount a hierarchy: `mount -t cgroup2 none /sys/fs/cgroup`")
            })?;
            let directory = hierarchy.mount.join(path);
            make_directory(&directory).map_err(|error| add_remedy(action, error))?;
            directories.push(directory);
        }
        Ok(Self {
            path: path.to_owned(),
            directories,
            cpu,
            cpuacct,
            memory,
            removed_oom_kills: AtomicU64::new(0),
        })
    }

    /// Returns the path of the group below the root of each hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets the given limits. Other limits do not change.
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
            let (quota, period) = compute_quota(millicores);
            let (quota, period) = (quota.as_micros(), period.as_micros());
            if cpu.unified {
                write(cpu, "cpu.max", &format!("{quota} {period}"))?;
            } else {
                // The kernel refuses a new period for which the old quota is too small.
                write(cpu, "cpu.cfs_quota_us", "-1")?;
                write(cpu, "cpu.cfs_period_us", &period.to_string())?;
                write(cpu, "cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        if let (Some(memory), Some(bytes)) = (&self.memory, limits.memory_bytes) {
            let limit = bytes.to_string();
            if memory.unified {
                write(memory, "memory.max", &limit)?;
                // The file is absent without swap accounting.
                let _ = write(memory, "memory.swap.max", "0");
            } else {
                // The kernel refuses a memory limit above the limit of memory plus swap. So raise
                // the limit of memory plus swap first.
                let _ = write(memory, "memory.memsw.limit_in_bytes", "-1");
                write(memory, "memory.limit_in_bytes", &limit)?;
                let _ = write(memory, "memory.memsw.limit_in_bytes", &limit);
            }
        }
        Ok(())
    }

    /// Makes `command` start in the group. The process and all its children are members of the
    /// group from their first instruction.
    pub fn join(&self, command: &mut Command) -> Result<()> {
        let mut files = Vec::new();
        for directory in &self.directories {
            let path = directory.join("cgroup.procs");
            let file = OpenOptions::new().write(true).open(&path);
            files.push(file.map_err(|error| Error::os(format!("open {}", path.display()), error))?);
        }
        let enter = move || -> io::Result<()> {
            // The kernel takes "0" as the writing process.
            files.iter().try_for_each(|mut file| file.write_all(b"0"))
        };
        // SAFETY: the closure only writes to its own descriptors. The closure neither allocates nor
        // takes a lock, so it may run between fork and exec of a process with several threads.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// Returns the processes in the group and its subgroups.
    pub fn processes(&self) -> Vec<u32> {
        let directory = &self.directories[0];
        let all = removal::list_groups(directory);
        all.iter()
            .flat_map(|directory| processes_in(directory))
            .collect()
    }

    /// Ends all processes in the group and removes its subgroups.
    pub fn remove_members(&self) -> Result<()> {
        let subgroups = |root: &PathBuf| {
            let mut all = removal::list_groups(root);
            all.pop();
            all
        };
        if let Some(memory) = self.memory.as_ref().filter(|memory| !memory.unified) {
            let kills = subgroups(&memory.path)
                .iter()
                .map(|directory| oom_kills_of(directory))
                .sum();
            self.removed_oom_kills.fetch_add(kills, Ordering::Relaxed);
        }
        removal::remove_members(&self.path)
    }

    /// Returns the resource usage of the group since its creation, including ended processes.
    /// Values of a missing controller are 0.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        if let Some(cpu) = &self.cpu {
            let stat = cpu.read_file("cpu.stat");
            usage.throttled_periods = parse_field(&stat, "nr_throttled");
            usage.throttled_ns = if cpu.unified {
                parse_field(&stat, "throttled_usec") * 1000
            } else {
                parse_field(&stat, "throttled_time")
            };
        }
        if let Some(cpuacct) = &self.cpuacct {
            usage.cpu_ns = if cpuacct.unified {
                parse_field(&cpuacct.read_file("cpu.stat"), "usage_usec") * 1000
            } else {
                parse_number(&cpuacct.read_file("cpuacct.usage"))
            };
        }
        if let Some(memory) = &self.memory {
            if memory.unified {
                usage.memory_bytes = parse_number(&memory.read_file("memory.current"));
                usage.oom_kills = parse_field(&memory.read_file("memory.events"), "oom_kill");
            } else {
                usage.memory_bytes = parse_number(&memory.read_file("memory.usage_in_bytes"));
                // v1 counts a kill only in the group of the process, not in parent groups.
                let all = removal::list_groups(&memory.path);
                let kills: u64 = all.iter().map(|directory| oom_kills_of(directory)).sum();
                usage.oom_kills = kills + self.removed_oom_kills.load(Ordering::Relaxed);
            }
        }
        usage
    }
}

impl Directory {
    fn read_file(&self, file: &str) -> String {
        read(&self.path.join(file))
    }
}

/// Returns an error if this thread has a real-time priority. Its children would inherit the
/// priority, and could then not join a group.
fn refuse_real_time(action: &str) -> Result<()> {
    match sched::get(0)? {
        Policy::Other | Policy::Idle => Ok(()),
        policy => Err(Error::new(
            action,
            ErrorKind::Invalid,
            format!("the group's processes would inherit {policy} from this thread, but real-time priority and a quota exclude each other"),
        )
        .remedy("start this program without real-time priority (`chrt --other 0 ...`)")),
    }
}

/// Converts a share of a core into quota and period in whole microseconds, within the kernel's
/// limits.
fn compute_quota(millicores: u32) -> (Duration, Duration) {
    let millicores = u64::from(millicores.max(1));
    let us = |duration: Duration| duration.as_micros() as u64;
    // Round up, because a shorter period would make the quota too small.
    let min_period = (us(MIN_QUOTA) * 1000).div_ceil(millicores);
    let period = us(PERIOD).max(min_period);
    let quota = period * millicores / 1000;
    (Duration::from_micros(quota), Duration::from_micros(period))
}

/// Returns the directories between a hierarchy's mount and the group's own, the outermost first.
fn parents(mount: &Path, path: &str) -> Vec<PathBuf> {
    let names: Vec<&str> = path.split('/').collect();
    let lengths = 1..names.len();
    lengths
        .map(|len| mount.join(names[..len].join("/")))
        .collect()
}

/// Deepest path of a group.
const MAX_DEPTH: usize = 8;

/// Accepts several plain names, the first with Myelin's prefix. This module uses no other path.
fn check_path(path: &str) -> Result<()> {
    let parts: Vec<&str> = path.split('/').collect();
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    let is_own = parts[0].starts_with(PREFIX);
    if is_own && (2..=MAX_DEPTH).contains(&parts.len()) && parts.iter().all(|part| plain(part)) {
        return Ok(());
    }
    Err(Error::new(
        format!("use the control group {path}"),
        ErrorKind::Invalid,
        "the path is not of the form myelin-RUN/NAME",
    ))
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Delegates a v2 controller to the group.
fn delegate_controller(mount: &Path, path: &str, controller: &str, action: &str) -> Result<()> {
    let above = std::iter::once(mount.to_path_buf()).chain(parents(mount, path));
    for directory in above {
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
                    .because("the parent group contains processes, so it cannot delegate a controller")
                    .remedy(format!(
                        "move these processes into a subgroup (`mkdir {0}/init; for pid in $(cat {0}/cgroup.procs); do \
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

fn add_remedy(action: &str, error: io::Error) -> Error {
    let read_only = error.raw_os_error() == Some(libc::EROFS);
    let error = Error::os(action, error);
    if read_only {
        error.remedy("mount the cgroup file system writable (in a container: `--privileged`)")
    } else {
        error
    }
}

/// Returns the number of processes that the kernel killed at the memory limit of one v1 group.
fn oom_kills_of(directory: &Path) -> u64 {
    parse_field(&read(&directory.join("memory.oom_control")), "oom_kill")
}

/// Returns the processes of one group, without the processes of subgroups.
fn processes_in(directory: &Path) -> Vec<u32> {
    let text = read(&directory.join("cgroup.procs"));
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns the text of a file; an empty text if the group was removed.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn parse_number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// Returns the value of the line `name value`.
fn parse_field(text: &str, name: &str) -> u64 {
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
