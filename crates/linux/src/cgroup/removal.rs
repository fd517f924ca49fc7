//! Removes a group in every hierarchy: ends all processes of the group, removes the subgroups, then
//! removes the group itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::hierarchy::Hierarchies;
use super::members::threads_in;
use super::{check_path, parents, processes_in};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{PidFd, Signal};
use crate::sched::{self, Policy};

/// Longest time for the kernel to end the processes.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Ends all processes in the group at `path` and its subgroups, and removes the group from every
/// hierarchy. Then removes the parent groups if they are empty. A missing group is no error.
pub fn remove(path: &str) -> Result<()> {
    remove_members(path)?;
    for root in directories_of(path)? {
        remove_directory(&root).map_err(|error| Error::os(action(path), error))?;
    }
    // The groups of a run share a parent directory. The last removal removes the parent too. Try
    // this even if the group is missing, because an earlier removal may have ended before this
    // step.
    for hierarchy in Hierarchies::detect()?.iter() {
        for parent in parents(&hierarchy.mount, path).iter().rev() {
            let _ = fs::remove_dir(parent);
        }
    }
    Ok(())
}

/// Moves the calling process into the group at `path`, in every hierarchy that has the group.
pub fn enter(path: &str) -> Result<()> {
    for directory in directories_of(path)? {
        // The kernel takes "0" as the writing process.
        fs::write(directory.join("cgroup.procs"), "0")
            .map_err(|error| Error::os(format!("enter the control group {path}"), error))?;
    }
    Ok(())
}

/// Ends all processes in the group at `path` and its subgroups, and removes the subgroups.
pub(super) fn remove_members(path: &str) -> Result<()> {
    let roots = directories_of(path)?;
    kill_all(&roots, &action(path))?;
    for root in &roots {
        let mut subgroups = list_groups(root);
        subgroups.pop();
        for directory in subgroups {
            remove_directory(&directory).map_err(|error| Error::os(action(path), error))?;
        }
    }
    Ok(())
}

/// Returns the directories of the group in all hierarchies.
fn directories_of(path: &str) -> Result<Vec<PathBuf>> {
    check_path(path)?;
    let hierarchies = Hierarchies::detect()?;
    let all = hierarchies
        .iter()
        .map(|hierarchy| hierarchy.mount.join(path));
    Ok(all.filter(|directory| directory.is_dir()).collect())
}

fn action(path: &str) -> String {
    format!("remove the control group {path}")
}

/// Kills all processes of these groups. Repeats until none remains, because a process may have
/// forked during a pass.
fn kill_all(roots: &[PathBuf], action: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut remaining = None;
        for root in roots {
            for directory in list_groups(root) {
                leave_real_time(&directory);
                // A frozen process (`runc pause`) does not receive the signal.
                let _ = fs::write(directory.join("freezer.state"), "THAWED");
                for pid in processes_in(&directory) {
                    remaining = Some(pid);
                    kill_member(&directory, pid)?;
                }
            }
        }
        let Some(pid) = remaining else {
            return Ok(());
        };
        if Instant::now() > deadline {
            let cause = format!("process {pid} is still in the group after 5 s");
            return Err(Error::new(action, ErrorKind::Busy, cause));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Puts all threads of a group into the fair class. A real-time thread that waits for others of its
/// core could not end, because even a killed thread needs its core for that.
fn leave_real_time(directory: &Path) {
    for thread in threads_in(directory).unwrap_or_default() {
        // The thread may have ended.
        let _ = sched::set(thread, Policy::Other);
    }
}

/// Kills a member of the group, but not a later process with the same number.
fn kill_member(directory: &Path, pid: u32) -> Result<()> {
    let own = pid == std::process::id();
    match PidFd::open(pid) {
        Ok(handle) if !own && processes_in(directory).contains(&pid) => handle.signal(Signal::KILL),
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Removes a directory. Retries, because the kernel reports a group as busy for some time after the
/// end of the last process.
fn remove_directory(directory: &Path) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// Returns the directories of the group and its subgroups, subgroups first.
pub(super) fn list_groups(root: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = list_children(root)
        .iter()
        .flat_map(|child| list_groups(child))
        .collect();
    all.push(root.to_path_buf());
    all
}

fn list_children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
