//! Processes: started inside a namespace, watched and ended without mistaking one for another.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::error::{Error, ErrorKind, Result};
use crate::netns::Netns;
use crate::procfs::{self, Stat};

pub use rustix::process::Signal;

/// How long [`Process::kill_tree`] waits for the kernel to take the processes down.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A command that will run in `namespace` with everything else inherited; standard input, output and error are the
/// caller's unless changed. As under `ip netns exec`, `/sys` shows the links of the namespace, which many tools read.
pub fn command_in(namespace: &Netns, program: impl AsRef<OsStr>) -> Result<Command> {
    let action = || format!("run a program in {}", namespace.describe());
    let file = namespace
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Error::os(action(), error))?;
    // Made here: between fork and exec nothing may allocate.
    let [root, sys, sysfs] =
        ["/", "/sys", "sysfs"].map(|text| CString::new(text).unwrap_or_default());
    let mut command = Command::new(program);
    let enter = move || -> io::Result<()> {
        setns(&file, CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&std::ffi::CStr>;
        // The mounts below are for this process alone; those of the host still arrive.
        mount(
            none,
            root.as_c_str(),
            none,
            MsFlags::MS_SLAVE | MsFlags::MS_REC,
            none,
        )?;
        // Not mounted is as good as unmounted.
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
    // SAFETY: the closure only makes system calls on what it owns: it neither allocates nor takes a lock, so it may
    // run between fork and exec of a process with several threads.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

/// Becomes `command` (program and arguments) inside the namespace `name`; returns only when that fails.
pub fn exec_in_netns(name: &str, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::new(
            format!("run a program in network namespace `{name}`"),
            ErrorKind::Invalid,
            "none is named",
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
            .because("no such program")
            .remedy("is it installed, and in PATH?"),
        _ => error,
    }
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process identifier.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_time: u64,
}

impl Process {
    /// The process that has the number now.
    pub fn of(pid: u32) -> Result<Self> {
        Ok(Self {
            pid,
            start_time: procfs::start_time(pid)?,
        })
    }

    /// True as long as it has not ended (a zombie has).
    pub fn is_alive(&self) -> bool {
        self.open().is_ok_and(|handle| {
            handle.is_some_and(|handle| !handle.wait(Duration::ZERO).unwrap_or(true))
        })
    }

    /// A handle to signal and await it; `None` when it is gone.
    pub fn open(&self) -> Result<Option<PidFd>> {
        let handle = match PidFd::open(self.pid) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        // Read behind the opening: the handle and the start time are of the same process, or the number was free
        // in between and the start times differ.
        let same = procfs::start_time(self.pid).is_ok_and(|start| start == self.start_time);
        Ok(same.then_some(handle))
    }

    /// Ends it and all its descendants at once (SIGKILL) and waits until they are gone. One that has ended already
    /// is no error; its descendants are strangers then.
    pub fn kill_tree(&self) -> Result<()> {
        let action = || format!("end process {} and its children", self.pid);
        if self.pid <= 1 || self.pid == std::process::id() {
            return Err(Error::new(
                action(),
                ErrorKind::Invalid,
                "it is this process or init",
            ));
        }
        let Some(handle) = self.open()? else {
            return Ok(());
        };
        // Stopped first: who is stopped forks no more, so a look that finds nobody new has found all.
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
                    format!("process {pid} is still there after 5 s"),
                ));
            }
        }
        Ok(())
    }
}

/// `struct pidfd_info` of linux/pidfd.h in its first size, 64 bytes.
#[repr(C)]
#[derive(Default)]
struct PidFdInfo {
    mask: u64,
    cgroup: u64,
    /// Process numbers and identities of users and groups.
    numbers: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::Ioctl = libc::_IOWR::<PidFdInfo>(0xff, 11);
const _: () = assert!(size_of::<PidFdInfo>() == 64);

/// A process held by a descriptor (pidfd_open(2)): it names this process even when its number is used again.
#[derive(Debug)]
pub struct PidFd {
    pid: u32,
    fd: OwnedFd,
}

impl PidFd {
    /// Opens the process that has the number now.
    pub fn open(pid: u32) -> Result<Self> {
        let fd = Pid::from_raw(pid.cast_signed())
            .ok_or(rustix::io::Errno::INVAL)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|errno| Error::os(format!("open process {pid}"), errno))?;
        Ok(Self { pid, fd })
    }

    /// Its number when it was opened.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How an ended process ended, in the form of wait(2), whosever child it was; `None` when it has not, when its parent has not
    /// waited for it yet, and before Linux 6.15.
    pub fn exit_status(&self) -> Option<i32> {
        let mut info = PidFdInfo {
            mask: PIDFD_INFO_EXIT,
            ..PidFdInfo::default()
        };
        // SAFETY: the request's number says the size of what the pointer leads to, and that is valid and writable.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }

    /// Sends a signal. A process that has ended is no error.
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

    /// Waits until the process has ended, at most `timeout`; says whether it has.
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
        // In a mount namespace of its own: the host's /sys is as it was.
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
    fn exec_says_what_is_missing() {
        if !root_or_skip("exec_says_what_is_missing") {
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
        // What follows would replace the test itself if it succeeded, so it happens in a child.
        let namespace = Namespace::new("exec");
        let error = command_in(&namespace, "no-such-program").unwrap().exec();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_tree_is_killed_to_the_last_leaf() {
        // Each shell waits for its child, which is a shell with a child.
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
        let deadline = Instant::now() + Duration::from_secs(5);
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
    fn another_process_with_the_same_number_is_not_touched() {
        let child = Child::sleeping("4712");
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
    fn waiting_ends_with_the_process_or_the_time() {
        let mut child = Child::sleeping("4713");
        let handle = PidFd::open(child.id()).unwrap();
        assert!(!handle.wait(Duration::from_millis(10)).unwrap());
        handle.signal(Signal::TERM).unwrap();
        assert!(handle.wait(Duration::from_secs(5)).unwrap());
        child.wait().unwrap();
        handle.signal(Signal::TERM).unwrap();
    }
}
