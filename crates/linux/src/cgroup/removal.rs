//! Removes a group: all its processes and subgroups, then the group, in every hierarchy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::hierarchy::Hierarchies;
use super::{check_path, processes_in};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{PidFd, Signal};

/// Longest time for the kernel to end the processes.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Ends all processes in the group at `path` and its subgroups, and removes it from every
/// hierarchy. Then it removes the parent group if that is empty. A missing group is no error.
pub fn remove(path: &str) -> Result<()> {
    clear(path)?;
    for root in directories_of(path)? {
        remove_directory(&root).map_err(|error| Error::os(action(path), error))?;
    }
    // The groups of a run share the run's directory, and the last group removes it. Try it even if
    // the group is missing: a process may have been killed between the two steps.
    if let Some((run, _)) = path.split_once('/') {
        for hierarchy in Hierarchies::detect()?.iter() {
            let _ = fs::remove_dir(hierarchy.mount.join(run));
        }
    }
    Ok(())
}

/// Ends all processes in the group at `path` and its subgroups, and removes the subgroups.
pub(super) fn clear(path: &str) -> Result<()> {
    let roots = directories_of(path)?;
    kill_all(&roots, &action(path))?;
    for root in &roots {
        let mut below = tree(root);
        below.pop();
        for directory in below {
            remove_directory(&directory).map_err(|error| Error::os(action(path), error))?;
        }
    }
    Ok(())
}

/// The directories of the group in all hierarchies.
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

/// Kills until no process is left: the next pass finds processes forked meanwhile.
fn kill_all(roots: &[PathBuf], action: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut left = None;
        for root in roots {
            for directory in tree(root) {
                // A frozen process (`runc pause`) does not receive the signal.
                let _ = fs::write(directory.join("freezer.state"), "THAWED");
                for pid in processes_in(&directory) {
                    left = Some(pid);
                    kill_member(&directory, pid)?;
                }
            }
        }
        let Some(pid) = left else {
            return Ok(());
        };
        if Instant::now() > deadline {
            let cause = format!("process {pid} is still in it after 5 s");
            return Err(Error::new(action, ErrorKind::Busy, cause));
        }
        std::thread::sleep(PAUSE);
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

/// Removes a directory. The group is busy for a moment after its last process has ended.
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

/// The group and its subgroups, leaves first.
pub(super) fn tree(root: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = children(root)
        .iter()
        .flat_map(|child| tree(child))
        .collect();
    all.push(root.to_path_buf());
    all
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
