//! The mount namespace of a process (mount_namespaces(7)). A mount ends with the last process of
//! its mount namespace.

use std::env;
use std::fs::{self, File};
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

use crate::error::{Error, ErrorKind, Result};
use crate::procfs::Stat;

/// The mount namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/mnt";

/// Moves this process into the first mount namespace that it may enter: that of process 1, else of
/// the ancestor farthest from this process. Returns the process whose mount namespace this process
/// has now; `None` if this process stays in its own.
///
/// # Errors
/// As [`join`]. Every process refuses; the error is that of process 1.
pub fn join_first(shared: &[&Path]) -> Result<Option<u32>> {
    let mut refusal = None;
    for pid in find_ancestors(std::process::id()).into_iter().rev() {
        match join(pid, shared) {
            Ok(moved) => return Ok(moved.then_some(pid)),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Returns the ancestors of a process: the parent first, process 1 last.
fn find_ancestors(pid: u32) -> Vec<u32> {
    let parent = |pid: &u32| Stat::read(*pid).ok().map(|stat| stat.parent);
    let ancestors = iter::successors(parent(&pid), parent);
    // The parent of a process that another PID namespace started is 0.
    let mut ancestors: Vec<_> = ancestors.take_while(|pid| *pid > 1).collect();
    ancestors.push(1);
    ancestors
}

/// Moves this process into the mount namespace of process `pid`. Returns whether the process moved;
/// `false` if both already share a mount namespace. The working directory keeps its path.
///
/// `shared` lists paths that this process still uses afterwards. If one of these is another file in
/// the other namespace, as in a container, the process stays.
///
/// # Errors
/// The process does not exist or may not be inspected, a shared path differs, or this process has
/// several threads.
pub fn join(pid: u32, shared: &[&Path]) -> Result<bool> {
    let action = || format!("enter the mount namespace of process {pid}");
    let failed = |error: std::io::Error| match Error::os(action(), error) {
        error if error.kind() == ErrorKind::Denied => {
            error.remedy("run as root, with CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE")
        }
        error => error,
    };
    let namespace = File::open(format!("/proc/{pid}/ns/mnt")).map_err(failed)?;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let theirs = namespace.metadata().map(identity).map_err(failed)?;
    if fs::metadata(OWN).map(identity).map_err(failed)? == theirs {
        return Ok(false);
    }
    for path in shared {
        // An absolute symbolic link below `/proc/PID/root` would lead back to this namespace.
        let path = fs::canonicalize(path).map_err(failed)?;
        let there = path_in_root_of(pid, &path);
        let here = fs::metadata(&path).map(identity).map_err(failed)?;
        if fs::metadata(there).map(identity).ok() != Some(here) {
            let cause = format!("{} is another file there", path.display());
            return Err(Error::new(action(), ErrorKind::Invalid, cause));
        }
    }
    let directory = env::current_dir();
    setns(&namespace, CloneFlags::CLONE_NEWNS).map_err(|errno| failed(errno.into()))?;
    // `setns` changes the working directory to `/`. A directory that is not there stays `/`.
    let _ = directory.and_then(env::set_current_dir);
    Ok(true)
}

fn path_in_root_of(pid: u32, path: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use nix::sched::unshare;

    use super::*;
    use crate::tests::{Child, root_or_skip};

    /// Runs `join` on a thread with a working directory of its own, because a process with several
    /// threads cannot join. Returns the outcome, whether the namespace is then the child's, and the
    /// working directory.
    fn join_on_thread(pid: u32, shared: &[&Path]) -> (Result<bool>, bool, PathBuf) {
        let run = || {
            unshare(CloneFlags::CLONE_FS).unwrap();
            env::set_current_dir(shared[0]).unwrap();
            let outcome = join(pid, shared);
            let theirs = fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
            let is_joined = fs::read_link(OWN).unwrap() == theirs;
            (outcome, is_joined, env::current_dir().unwrap())
        };
        thread::scope(|scope| scope.spawn(run).join()).unwrap()
    }

    /// Starts a process in a mount namespace that differs by the mounts of `script`.
    fn spawn_with_mounts(script: &str) -> Child {
        let ready = tempfile::tempdir().unwrap();
        let file = ready.path().join("ready");
        let command = format!("{script}\ntouch {}\nexec sleep 4719", file.display());
        let child = Child::spawn(Command::new("unshare").args(["-m", "sh", "-ec", &command]));
        while !file.exists() {
            thread::sleep(std::time::Duration::from_millis(2));
        }
        child
    }

    #[test]
    fn a_process_joins_another_mount_namespace_with_the_same_files() {
        if !root_or_skip("a_process_joins_another_mount_namespace_with_the_same_files") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let shared = [directory.path(), Path::new("/")];
        let (outcome, _, _) = join_on_thread(std::process::id(), &shared);
        assert!(!outcome.unwrap(), "the namespace is the same already");

        let child = spawn_with_mounts("mount -t tmpfs none /sys");
        let (outcome, is_joined, working_directory) = join_on_thread(child.id(), &shared);
        assert!(outcome.unwrap() && is_joined);
        assert_eq!(working_directory, directory.path());
    }

    #[test]
    fn the_ancestors_of_a_process_end_with_process_1() {
        let child = Child::spawn(Command::new("sleep").arg("4719"));
        let ancestors = find_ancestors(child.id());
        assert_eq!(ancestors[0], std::process::id());
        assert_eq!(ancestors.last(), Some(&1));
    }

    #[test]
    fn a_process_stays_if_a_path_is_another_file_there() {
        if !root_or_skip("a_process_stays_if_a_path_is_another_file_there") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let child = spawn_with_mounts(&format!("mount -t tmpfs none {path}"));
        let (outcome, is_joined, _) = join_on_thread(child.id(), &[directory.path()]);
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains(&format!("{path} is another file there")),
            "{error}"
        );
        assert!(!is_joined);
    }
}
