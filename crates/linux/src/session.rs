//! Starts a program as the leader of a session of its own, and ends all processes of a session.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{SigHandler, killpg, signal};
use nix::unistd::{Gid, Pid, Uid, chdir, setgroups, setresgid, setresuid, setsid};

use crate::error::{Error, ErrorKind, Result};
use crate::process::{PidFd, Process, Signal};
use crate::procfs::{self, Stat};

/// A user with groups, as a login gives them to a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The number of the user's first group.
    pub gid: u32,
    /// The numbers of all groups.
    pub groups: Vec<u32>,
}

/// Makes `command` lead a session of its own, in `directory`. With a user, the program has only the
/// user's rights, and must be able to enter the directory. With a terminal, the standard input is
/// the session's controlling terminal. Call this last: earlier steps may need the caller's rights.
///
/// # Errors
/// The directory's path has a zero byte.
pub fn lead(
    command: &mut Command,
    directory: &Path,
    user: Option<&User>,
    has_terminal: bool,
) -> Result<()> {
    // Allocate everything here, because the closure must not allocate between fork and exec.
    let directory = CString::new(directory.as_os_str().as_bytes()).map_err(|_| {
        let cause = "the path has a zero byte";
        Error::new("enter a program's directory", ErrorKind::Invalid, cause)
    })?;
    let user = user.cloned().map(|user| {
        let groups: Vec<Gid> = user.groups.into_iter().map(Gid::from_raw).collect();
        (Uid::from_raw(user.uid), Gid::from_raw(user.gid), groups)
    });
    let enter = move || -> io::Result<()> {
        setsid()?;
        if has_terminal {
            // SAFETY: the request takes a number and no pointer.
            let result = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some((uid, gid, groups)) = &user {
            setgroups(groups)?;
            setresgid(*gid, *gid, *gid)?;
            setresuid(*uid, *uid, *uid)?;
        }
        // An agent ignores this signal, and its programs would inherit that.
        // SAFETY: the default action runs no handler.
        unsafe { signal(nix::sys::signal::SIGXFSZ, SigHandler::SigDfl) }?;
        chdir(directory.as_c_str())?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls on values that it owns. The closure neither
    // allocates nor takes a lock, so it may run between fork and exec of a process with several
    // threads.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Kills the leader of a session with its descendants, and the session's other processes, which may
/// have lost their parent. Processes that made a session of their own after that go on.
///
/// # Errors
/// A process does not end.
pub fn end(leader: &Process) -> Result<()> {
    leader.kill_tree()?;
    for pid in procfs::processes()? {
        // The handle is opened before the check, so both concern the same process.
        let Ok(handle) = PidFd::open(pid) else {
            continue;
        };
        if Stat::read(pid).is_ok_and(|stat| stat.session == leader.pid) {
            // The kernel gives the number to another process only when the session is empty.
            if Process::of(leader.pid).is_ok_and(|now| now != *leader) {
                return Ok(());
            }
            handle.signal(Signal::KILL)?;
        }
    }
    Ok(())
}

/// Sends a signal to the process group of a session's leader. A leader that has ended is no error.
///
/// # Errors
/// No signal has this number.
pub fn signal_group(leader: &Process, signal: i32) -> Result<()> {
    let action = || format!("send signal {signal} to the process group {}", leader.pid);
    let signal =
        nix::sys::signal::Signal::try_from(signal).map_err(|errno| Error::os(action(), errno))?;
    // The open handle of a leader that nobody has waited for keeps its number.
    if leader.is_alive() {
        let group = Pid::from_raw(leader.pid.cast_signed());
        killpg(group, signal).map_err(|errno| Error::os(action(), errno))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_program_leads_a_session_with_the_rights_of_a_user() {
        if !crate::tests::root_or_skip("a_program_leads_a_session_with_the_rights_of_a_user") {
            return;
        }
        let user = User {
            uid: 65534,
            gid: 65534,
            groups: vec![65534],
        };
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "id -u; id -G; pwd; cut -d' ' -f6 /proc/$$/stat; echo $$",
        ]);
        lead(&mut command, Path::new("/tmp"), Some(&user), false).unwrap();
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["65534", "65534", "/tmp"], "{text}");
        assert_eq!(lines[3], lines[4], "{text}");
        let mut command = Command::new("true");
        lead(&mut command, Path::new("/root"), Some(&user), false).unwrap();
        assert!(command.status().is_err());
    }

    #[test]
    fn a_session_ends_with_processes_that_lost_their_parent() {
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 71 & echo $!' & wait $!; exec sleep 72"]);
        command.stdout(Stdio::piped());
        lead(&mut command, Path::new("/"), None, false).unwrap();
        let mut child = command.spawn().unwrap();
        let mut output = io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        let orphan = Process::of(line.trim().parse().unwrap()).unwrap();
        end(&Process::of(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        let handle = orphan.open().unwrap();
        assert!(
            handle
                .is_none_or(|handle| { handle.wait(std::time::Duration::from_secs(60)).unwrap() })
        );
    }
}
