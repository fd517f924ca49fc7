//! Run directories of experiments: each has an owner, and `myelin down --all` removes those of
//! killed owners.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use myelin_api::{ApiError, RunDir};
use myelin_linux::bpffs;
use nix::fcntl::{Flock, FlockArg};

use crate::Error;

/// The parent of all run directories.
const PARENT: &str = "/run";
const PREFIX: &str = "myelin-bench-";
/// A file in the run directory. Its owner holds it locked (`flock`), then writes its number to it.
const LOCK: &str = "bench.lock";
/// Longest time from the end of an agent's socket to the end of the agent.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A run directory that this process owns. Removed when dropped.
#[derive(Debug)]
pub(crate) struct OwnedRunDir {
    /// Part of the names of chains, and so of network namespaces, which all agents share.
    pub(crate) id: String,
    pub(crate) run_dir: RunDir,
    /// The kernel releases it when this process ends, also after SIGKILL.
    _lock: Flock<File>,
}

impl OwnedRunDir {
    pub(crate) fn create() -> Result<Self, Error> {
        Self::create_in(Path::new(PARENT))
    }

    fn create_in(parent: &Path) -> Result<Self, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", std::process::id());
        let path = parent.join(format!("{PREFIX}{id}"));
        let lock = create_locked(&path)
            .map_err(|cause| Error::system(format!("make {}", path.display()), cause))?;
        Ok(Self {
            run_dir: RunDir::resolve(Some(&path)),
            id,
            _lock: lock,
        })
    }

    /// The name of a chain of this run.
    pub(crate) fn chain_name(&self, name: &str) -> String {
        format!("bench-{}-{name}", self.id)
    }
}

impl Drop for OwnedRunDir {
    fn drop(&mut self) {
        // A mounted bpffs shows that the agent could not remove everything. Its journal stays, for
        // `myelin down --all`.
        if !bpffs::is_bpffs(&self.run_dir.bpf()) {
            let _ = fs::remove_dir_all(self.run_dir.path());
        }
    }
}

/// Makes the directory and takes its lock.
fn create_locked(path: &Path) -> io::Result<Flock<File>> {
    fs::create_dir_all(path)?;
    let file = File::create(path.join(LOCK))?;
    let mut lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    writeln!(lock, "{}", std::process::id())?;
    Ok(lock)
}

/// Waits until a stopped agent has unmounted its eBPF file system, which is its last step.
pub(crate) fn wait_for_agent_end(run_dir: &RunDir) {
    let start = Instant::now();
    while bpffs::is_bpffs(&run_dir.bpf()) && start.elapsed() < STOP_LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The run directories of experiments that were killed.
pub fn find_abandoned_run_dirs() -> Vec<RunDir> {
    find_abandoned_in(Path::new(PARENT))
}

fn find_abandoned_in(parent: &Path) -> Vec<RunDir> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .map(|entry| entry.path())
        .filter(|path| is_abandoned(path))
        .collect();
    let run_dirs = paths.iter().map(|path| RunDir::resolve(Some(path)));
    run_dirs.collect()
}

fn is_abandoned(path: &Path) -> bool {
    let mut text = String::new();
    let file = File::open(path.join(LOCK)).and_then(|mut file| {
        file.read_to_string(&mut text)?;
        Ok(file)
    });
    match file {
        Ok(file) if !text.is_empty() => Flock::lock(file, FlockArg::LockSharedNonblock).is_ok(),
        // The owner locks the file before it writes: it may not have written yet.
        _ => !is_owner_alive(path),
    }
}

/// Whether a process has the number in the directory's name.
fn is_owner_alive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = name
        .strip_prefix(PREFIX)
        .and_then(|id| id.split('-').next());
    pid.is_some_and(|pid| Path::new("/proc").join(pid).exists())
}

/// Removes an abandoned run directory, after its agent has removed all objects.
///
/// # Errors
/// The agent left its eBPF file system mounted, or the directory cannot be removed.
pub fn remove_run_dir(run_dir: &RunDir) -> Result<(), ApiError> {
    wait_for_agent_end(run_dir);
    let failed = |cause: &dyn std::fmt::Display| {
        ApiError::failed(format!(
            "cannot remove the run directory {}: {cause}; the log of its agent is {}",
            run_dir.path().display(),
            run_dir.log().display()
        ))
    };
    if bpffs::is_bpffs(&run_dir.bpf()) {
        return Err(failed(&"its eBPF file system is still mounted"));
    }
    fs::remove_dir_all(run_dir.path()).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_directory_without_running_owner_is_abandoned() {
        let parent = tempfile::tempdir().unwrap();
        let one = OwnedRunDir::create_in(parent.path()).unwrap();
        let other = OwnedRunDir::create_in(parent.path()).unwrap();
        assert_ne!(one.run_dir, other.run_dir);
        let found = || find_abandoned_in(parent.path());
        assert_eq!(found(), []);

        // No process has this number (the kernel's limit is 2^22). The directories have no lock
        // file, an empty one, and one that no process has locked.
        let [unlocked, empty, released] = [0, 1, 2].map(|number| {
            let path = parent.path().join(format!("{PREFIX}4194305-{number}"));
            fs::create_dir(&path).unwrap();
            RunDir::resolve(Some(&path))
        });
        fs::write(empty.path().join(LOCK), "").unwrap();
        fs::write(released.path().join(LOCK), "1\n").unwrap();
        let mut abandoned = found();
        abandoned.sort_by_key(RunDir::id);
        let mut expected = vec![unlocked.clone(), empty, released];
        expected.sort_by_key(RunDir::id);
        assert_eq!(abandoned, expected);

        // This process has not locked the directory yet: no lock file, then an empty one.
        let early = format!("{PREFIX}{}-9", std::process::id());
        fs::create_dir(parent.path().join(&early)).unwrap();
        assert_eq!(found().len(), 3);
        fs::write(parent.path().join(&early).join(LOCK), "").unwrap();
        assert_eq!(found().len(), 3);

        remove_run_dir(&unlocked).unwrap();
        assert_eq!(found().len(), 2);
        let path = one.run_dir.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
