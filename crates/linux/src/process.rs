//! Starts processes in a namespace. Observes and ends processes without confusing a process with a
//! later process of the same number.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::fstat;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::error::{Error, ErrorKind, Result};
use crate::netns::Netns;
use crate::procfs::{self, Stat};

pub use rustix::process::Signal;

/// Longest wait of [`Process::kill_tree`] for the kernel to end the processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a command that runs in `namespace`. The command inherits the caller's other properties,
/// and by default the caller's standard input, output and error. As under `ip netns exec`, `/sys`
/// shows the links of the namespace, which many tools read.
pub fn command_in(namespace: &Netns, program: impl AsRef<OsStr>) -> Result<Command> {
    let action = || format!("run a program in {}", namespace.describe());
    let file = namespace
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Error::os(action(), error))?;
    // Allocate these strings here, because the closure must not allocate between fork and exec.
    let [root, sys, sysfs] =
        ["/", "/sys", "sysfs"].map(|text| CString::new(text).unwrap_or_default());
    let mut command = Command::new(program);
    let enter = move || -> io::Result<()> {
        setns(&file, CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&std::ffi::CStr>;
        // The mounts below apply only to this process. New mounts of the host still propagate to
        // this process.
        mount(
            none,
            root.as_c_str(),
            none,
            MsFlags::MS_SLAVE | MsFlags::MS_REC,
            none,
        )?;
        // It is no error if `/sys` is not mounted.
        let _ = umount2(sys.as_c_str(), MntFlags::MNT_DETACH);
        mount(
            Some(sysfs.as_c_str()),
            sys.as_c_str(),
            Some(sysfs.as_c_str()),
            MsFlags::empty(),
            none,
        )?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls on values that it owns. The closure neither
    // allocates nor takes a lock, so it may run between fork and exec of a process with several
    // threads.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

/// Makes a command that runs in `namespace`, and that has the mounts of the caller. In `/sys` the
/// program sees the links of the caller's namespace.
pub fn command_in_network(namespace: &Netns, program: impl AsRef<OsStr>) -> Result<Command> {
    let file = namespace
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Error::os(format!("run a program in {}", namespace.describe()), error))?;
    let mut command = Command::new(program);
    let enter = move || Ok(setns(&file, CloneFlags::CLONE_NEWNET)?);
    // SAFETY: the closure makes one system call on a value that it owns, so it may run between fork
    // and exec of a process with several threads.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

/// Replaces this process by `command` (program and arguments) in the namespace `name`. Returns only
/// on failure.
pub fn exec_in_netns(name: &str, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::new(
            format!("run a program in network namespace `{name}`"),
            ErrorKind::Invalid,
            "no program is given",
        );
    };
    let ready = Netns::open(name).and_then(|namespace| command_in(&namespace, program));
    let mut command = match ready {
        Ok(command) => command,
        Err(error) => return error,
    };
    let program = program.display();
    let error = Error::os(
        format!("run `{program}` in network namespace `{name}`"),
        command.args(arguments).exec(),
    );
    match error.kind() {
        ErrorKind::NotFound => error
            .because("the program does not exist")
            .remedy("check that the program is installed and in PATH"),
        _ => error,
    }
}

/// Kills all processes in these namespaces, and waits for no end. Returns their numbers.
pub fn kill_in_namespaces(namespaces: &[Netns]) -> Result<Vec<u32>> {
    let identify = |namespace: &Netns| {
        fstat(namespace)
            .map(|stat| (stat.st_dev, stat.st_ino))
            .map_err(|errno| Error::os(format!("identify {}", namespace.describe()), errno))
    };
    if namespaces.is_empty() {
        return Ok(Vec::new());
    }
    let wanted: Vec<_> = namespaces.iter().map(identify).collect::<Result<_>>()?;
    let mut killed = Vec::new();
    for pid in procfs::processes()? {
        // The handle is opened before the check, so the check and the signal concern the same
        // process. A process may end at any time.
        let Ok(handle) = PidFd::open(pid) else {
            continue;
        };
        let metadata = fs::metadata(format!("/proc/{pid}/ns/net"));
        if metadata.is_ok_and(|found| wanted.contains(&(found.dev(), found.ino()))) {
            handle.signal(Signal::KILL)?;
            killed.push(pid);
        }
    }
    Ok(killed)
}

/// A process, distinguished from a later process with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process identifier.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start_time: u64,
}

impl Process {
    /// Returns the process that has this number now.
    pub fn of(pid: u32) -> Result<Self> {
        Ok(Self {
            pid,
            start_time: procfs::start_time(pid)?,
        })
    }

    /// Returns whether the process has not ended. A zombie has ended.
    pub fn is_alive(&self) -> bool {
        self.open().is_ok_and(|handle| {
            handle.is_some_and(|handle| !handle.wait(Duration::ZERO).unwrap_or(true))
        })
    }

    /// Returns a handle to signal the process and to wait for its end. Returns `None` if the
    /// process no longer exists.
    pub fn open(&self) -> Result<Option<PidFd>> {
        let handle = match PidFd::open(self.pid) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        // Read the start time after opening. If the number was reused, the start times differ.
        let same = procfs::start_time(self.pid).is_ok_and(|start| start == self.start_time);
        Ok(same.then_some(handle))
    }

    /// Kills the process and all its descendants (SIGKILL), and waits for their end. If the process
    /// has already ended, succeeds without killing the descendants.
    pub fn kill_tree(&self) -> Result<()> {
        let action = || format!("end process {} and its children", self.pid);
        if self.pid <= 1 || self.pid == std::process::id() {
            return Err(Error::new(
                action(),
                ErrorKind::Invalid,
                "a process cannot end itself or init with this function",
            ));
        }
        let Some(handle) = self.open()? else {
            return Ok(());
        };
        // Stop the processes first, because a stopped process cannot fork. So after a pass without
        // a new process, the list is complete.
        handle.signal(Signal::STOP)?;
        let mut tree = vec![(self.pid, handle)];
        loop {
            let known = tree.len();
            for pid in procfs::processes()? {
                let is_new =
                    pid != std::process::id() && tree.iter().all(|(member, _)| *member != pid);
                let has_parent = |stat: Stat| tree.iter().any(|(parent, _)| *parent == stat.parent);
                if !is_new || !Stat::read(pid).is_ok_and(has_parent) {
                    continue;
                }
                if let Ok(handle) = PidFd::open(pid) {
                    handle.signal(Signal::STOP)?;
                    tree.push((pid, handle));
                }
            }
            if tree.len() == known {
                break;
            }
        }
        for (_, handle) in &tree {
            handle.signal(Signal::KILL)?;
        }
        for (pid, handle) in &tree {
            if !handle.wait(KILL_TIMEOUT)? {
                return Err(Error::new(
                    action(),
                    ErrorKind::Busy,
                    format!("process {pid} did not end within 5 s"),
                ));
            }
        }
        Ok(())
    }
}

/// `struct pidfd_info` of linux/pidfd.h in its first version, 64 bytes.
#[repr(C)]
#[derive(Default)]
struct PidFdInfo {
    mask: u64,
    cgroup: u64,
    /// Process numbers, and identifiers of users and groups.
    numbers: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::Ioctl = libc::_IOWR::<PidFdInfo>(0xff, 11);
const _: () = assert!(size_of::<PidFdInfo>() == 64);

/// A descriptor of a process (pidfd_open(2)). The descriptor refers to the same process even after
/// the kernel reuses the process number.
#[derive(Debug)]
pub struct PidFd {
    pid: u32,
    fd: OwnedFd,
}

impl PidFd {
    /// Opens the process that has this number now.
    pub fn open(pid: u32) -> Result<Self> {
        let fd = Pid::from_raw(pid.cast_signed())
            .ok_or(rustix::io::Errno::INVAL)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|errno| Error::os(format!("open process {pid}"), errno))?;
        Ok(Self { pid, fd })
    }

    /// Returns the process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the exit status of an ended process, in the format of wait(2). The caller need not
    /// be the parent. Returns `None` if the process has not ended, or if its parent has waited for
    /// it and Linux is older than 6.15.
    pub fn exit_status(&self) -> Option<i32> {
        self.status_after_wait().or_else(|| {
            let before_wait = Stat::read(self.pid).ok().and_then(|stat| stat.exit_status);
            // A zombie ignores this signal. The kernel takes it as long as the parent has not
            // waited, so no other process has had the number in between.
            before_wait
                .filter(|_| pidfd_send_signal(&self.fd, Signal::CONT).is_ok())
                .or_else(|| self.status_after_wait())
        })
    }

    /// Returns the exit status of a process for which its parent has waited (Linux 6.15).
    fn status_after_wait(&self) -> Option<i32> {
        let mut info = PidFdInfo {
            mask: PIDFD_INFO_EXIT,
            ..PidFdInfo::default()
        };
        // SAFETY: the request's number contains the size of the structure, and `info` is writable
        // and outlives the call.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }

    /// Sends a signal. An ended process is no error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => {
                let (signal, pid) = (signal.as_raw(), self.pid);
                let action = format!("send signal {signal} to process {pid}");
                Err(Error::os(action, errno))
            }
        }
    }

    /// Waits at most `timeout` for the end of the process. Returns whether the process has ended.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let ready = poll(
            &mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)],
            timeout,
        )
        .map_err(|errno| Error::os(format!("wait for process {}", self.pid), errno))?;
        Ok(ready > 0)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Child, Namespace, root_or_skip};
    use std::process::Stdio;
    use std::time::Instant;

    #[test]
    fn a_program_sees_the_links_of_its_namespace() {
        if !root_or_skip("a_program_sees_the_links_of_its_namespace") {
            return;
        }
        let namespace = Namespace::new("process");
        let output = command_in(&namespace, "sh")
            .unwrap()
            .args(["-c", "ls /sys/class/net; ip -br link | wc -l"])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "lo\n1\n");
        assert!(
            command_in(&namespace, "no-such-program")
                .unwrap()
                .status()
                .is_err()
        );
        // The command has a separate mount namespace, so the host's /sys does not change.
        let output = command_in(&namespace, "readlink")
            .unwrap()
            .arg("/proc/self/ns/mnt")
            .output()
            .unwrap();
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        assert_ne!(
            String::from_utf8(output.stdout).unwrap().trim(),
            own.to_str().unwrap()
        );
    }

    #[test]
    fn exec_names_the_missing_object() {
        if !root_or_skip("exec_names_the_missing_object") {
            return;
        }
        let error = exec_in_netns("myelin-t-missing", &["true".into()]);
        assert!(
            error.is_not_found() && error.to_string().contains("`myelin-t-missing`"),
            "{error}"
        );
        assert_eq!(
            exec_in_netns("myelin-t-missing", &[]).kind(),
            ErrorKind::Invalid
        );
        // Runs in a child, because success would replace the test itself.
        let namespace = Namespace::new("exec");
        let error = command_in(&namespace, "no-such-program").unwrap().exec();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn kill_tree_kills_all_descendants() {
        // Each shell waits for its children, and the inner shells have children too.
        let script = "sh -c 'sh -c \"sleep 61 & sleep 61\" & sleep 61' & wait";
        let mut child = Child::spawn(
            Command::new("sh")
                .args(["-c", script])
                .stdout(Stdio::null()),
        );
        let process = Process::of(child.id()).unwrap();
        let descendants = || {
            let mut members = vec![process.pid];
            for pid in procfs::processes().unwrap() {
                if Stat::read(pid).is_ok_and(|stat| members.contains(&stat.parent)) {
                    members.push(pid);
                }
            }
            members.split_off(1)
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while descendants().len() < 5 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let all: Vec<Process> = descendants()
            .into_iter()
            .map(|pid| Process::of(pid).unwrap())
            .collect();
        assert_eq!(all.len(), 5);
        assert!(process.is_alive() && all.iter().all(Process::is_alive));
        process.kill_tree().unwrap();
        assert!(!process.is_alive() && !all.iter().any(Process::is_alive));
        child.wait().unwrap();
        process.kill_tree().unwrap();
    }

    #[test]
    fn another_process_with_the_same_number_is_not_killed() {
        let child = Child::spawn_sleep("4712");
        let mut process = Process::of(child.id()).unwrap();
        process.start_time -= 1;
        assert!(!process.is_alive());
        process.kill_tree().unwrap();
        process.start_time += 1;
        assert!(process.is_alive());
        for pid in [0, 1, std::process::id()] {
            assert_eq!(
                Process { pid, start_time: 0 }
                    .kill_tree()
                    .unwrap_err()
                    .kind(),
                ErrorKind::Invalid
            );
        }
    }

    #[test]
    fn wait_returns_when_the_process_ends_or_at_the_timeout() {
        let mut child = Child::spawn_sleep("4713");
        let handle = PidFd::open(child.id()).unwrap();
        assert!(!handle.wait(Duration::from_millis(10)).unwrap());
        handle.signal(Signal::TERM).unwrap();
        assert!(handle.wait(Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        handle.signal(Signal::TERM).unwrap();
    }
}
