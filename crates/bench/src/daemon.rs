//! A third-party daemon that runs as long as an experiment.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::Error;
use crate::reference::create_memory_file;

/// Length of the last messages in an error, bytes.
const LAST_MESSAGES: u64 = 600;

/// A running daemon, killed on drop. The kernel also kills the daemon at the end of
/// the thread that started it.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    messages: File,
}

impl Daemon {
    /// Starts a command that stays in the foreground, in a process group without the terminal's
    /// signals.
    pub(crate) fn start(mut command: Command) -> Result<Self, Error> {
        let name = command.get_program().display().to_string();
        let failed = |cause| Error::system(format!("start `{name}`"), cause);
        let messages = File::from(create_memory_file("messages").map_err(failed)?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages.try_clone().map_err(failed)?)
            .process_group(0);
        let parent = Pid::this();
        let die_with_parent = move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have ended before the call.
            if getppid() == parent {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        };
        // SAFETY: the closure makes two system calls and neither allocates nor takes a lock, so it
        // may run between fork and exec.
        unsafe { command.pre_exec(die_with_parent) };
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, messages })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reason for the end of the daemon. `None` while it runs.
    pub(crate) fn end_reason(&mut self) -> Option<String> {
        let status = match self.child.try_wait() {
            Ok(status) => status?.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!("it ended ({status}): {}", self.last_messages()))
    }

    /// Its last messages on standard error.
    pub(crate) fn last_messages(&self) -> String {
        // The daemon writes through the same file description, so the file position must not
        // change.
        let read = || -> io::Result<Vec<u8>> {
            let length = self.messages.metadata()?.len();
            let from = length.saturating_sub(LAST_MESSAGES);
            let mut messages = vec![0; (length - from) as usize];
            self.messages.read_exact_at(&mut messages, from)?;
            Ok(messages)
        };
        match read() {
            Ok(messages) => {
                let text = String::from_utf8_lossy(&messages);
                let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
                lines.join("; ")
            }
            Err(error) => format!("(its messages could not be read: {error})"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // An ended daemon is no error, and a drop cannot report others.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::signal::kill;

    use super::*;

    fn shell(script: &str) -> Daemon {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Daemon::start(command).unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state
            .rsplit_once(')')
            .is_some_and(|(_, rest)| !rest.starts_with(" Z"))
    }

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_drop_kills_even_a_stopped_daemon() {
        let mut daemon = shell("exec sleep 60");
        let pid = daemon.pid();
        assert!(daemon.end_reason().is_none() && is_alive(pid));
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
        drop(daemon);
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_daemon_ends_with_the_thread_that_started_it() {
        let daemon = std::thread::spawn(|| shell("exec sleep 61"))
            .join()
            .unwrap();
        wait_until("the daemon still runs", || !is_alive(daemon.pid()));
    }

    #[test]
    fn the_end_reason_contains_the_last_messages() {
        let mut daemon = shell("echo one >&2; echo two >&2; exit 3");
        let mut why = None;
        wait_until("the daemon does not end", || {
            why = daemon.end_reason();
            why.is_some()
        });
        assert_eq!(why.unwrap(), "it ended (exit status: 3): one; two");
    }
}
