//! A daemon of somebody else's, which works as long as an experiment does and not a moment longer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::Error;
use crate::reference::memory_file;

/// Of its messages, the last ones tell why it ended, bytes.
const LAST_WORDS: u64 = 600;

/// A running daemon, killed when dropped. The kernel kills it too when the thread that started it ends, in whatever way.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    words: File,
}

impl Daemon {
    /// Starts a command that stays in the foreground, out of reach of the terminal's signals.
    pub(crate) fn start(mut command: Command) -> Result<Self, Error> {
        let name = command.get_program().display().to_string();
        let failed = |cause| Error::system(format!("start `{name}`"), cause);
        let words = File::from(memory_file("messages").map_err(failed)?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words.try_clone().map_err(failed)?)
            .process_group(0);
        let parent = Pid::this();
        let die_with_parent = move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // It may have ended before the call.
            if getppid() == parent {
                Ok(())
            } else {
                Err(io::ErrorKind::NotConnected.into())
            }
        };
        // SAFETY: the closure makes two system calls and neither allocates nor takes a lock, so it may run between fork and exec.
        unsafe { command.pre_exec(die_with_parent) };
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, words })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Why it ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        let status = match self.child.try_wait() {
            Ok(status) => status?.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!("it ended ({status}): {}", self.last_words()))
    }

    /// The last of what it said on standard error.
    pub(crate) fn last_words(&self) -> String {
        // The daemon writes through the same description, so its position must stay where it is.
        let read = || -> io::Result<Vec<u8>> {
            let length = self.words.metadata()?.len();
            let from = length.saturating_sub(LAST_WORDS);
            let mut words = vec![0; (length - from) as usize];
            self.words.read_exact_at(&mut words, from)?;
            Ok(words)
        };
        match read() {
            Ok(words) => {
                let text = String::from_utf8_lossy(&words);
                let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
                lines.join("; ")
            }
            Err(error) => format!("(its messages could not be read: {error})"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended already is no error, and nobody is left to be told of others.
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

    fn lives(pid: u32) -> bool {
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
    fn it_ends_when_dropped_even_stopped() {
        let mut daemon = shell("exec sleep 60");
        let pid = daemon.pid();
        assert!(daemon.has_ended().is_none() && lives(pid));
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
        drop(daemon);
        assert!(!lives(pid));
    }

    #[test]
    fn it_ends_with_the_thread_that_started_it() {
        let daemon = std::thread::spawn(|| shell("exec sleep 61"))
            .join()
            .unwrap();
        wait_until("it lives on", || !lives(daemon.pid()));
    }

    #[test]
    fn its_last_words_are_kept() {
        let mut daemon = shell("echo one >&2; echo two >&2; exit 3");
        let mut why = None;
        wait_until("it does not end", || {
            why = daemon.has_ended();
            why.is_some()
        });
        assert_eq!(why.unwrap(), "it ended (exit status: 3): one; two");
    }
}
