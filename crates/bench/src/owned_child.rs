//! Child processes that end with an experiment.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::Error;

/// Most lines of messages in an error.
const LAST_MESSAGES: usize = 12;
/// Beginnings of messages that libraries always print.
const IRRELEVANT: [&str; 2] = ["EAL: ", "libbpf: elf: skipping"];

/// A child process, killed on drop.
#[derive(Debug)]
pub(crate) struct OwnedChild {
    pub(crate) process: Child,
    messages: File,
}

impl OwnedChild {
    /// Starts a command.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let messages = create_memory_file("messages")?;
        let process = command.stderr(messages.try_clone()?).spawn()?;
        Ok(Self { process, messages })
    }

    /// Starts a command that stays in the foreground, in a process group without the terminal's
    /// signals. The kernel also kills it at the end of the calling thread.
    pub(crate) fn start_daemon(mut command: Command) -> Result<Self, Error> {
        command.stdout(Stdio::null());
        Self::start_bound(command)
    }

    /// As [`OwnedChild::start_daemon`], for a program that ends. Also returns the file that it
    /// prints to.
    pub(crate) fn start_printing(mut command: Command) -> Result<(Self, File), Error> {
        let open = || {
            let output = create_memory_file("output")?;
            Ok((output.try_clone()?, output))
        };
        let (stdout, output) =
            open().map_err(|cause| Error::system("make a file in memory", cause))?;
        command.stdout(stdout);
        Ok((Self::start_bound(command)?, output))
    }

    fn start_bound(mut command: Command) -> Result<Self, Error> {
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
        command.stdin(Stdio::null()).process_group(0);
        // SAFETY: the closure makes two system calls and neither allocates nor takes a lock, so it
        // may run between fork and exec.
        unsafe { command.pre_exec(die_with_parent) };
        Self::start(&mut command).map_err(|cause| {
            let program = command.get_program().display();
            Error::system(format!("start `{program}`"), cause)
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Reason for its end. `None` while it runs.
    pub(crate) fn end_reason(&mut self) -> Option<String> {
        let status = match self.process.try_wait() {
            Ok(status) => status?.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!("it ended ({status}): {}", self.last_messages()))
    }

    /// Its last messages on standard error, without those that its libraries always print.
    pub(crate) fn last_messages(&self) -> String {
        let messages = match read_all(&self.messages) {
            Ok(messages) => messages,
            Err(error) => return format!("(its messages could not be read: {error})"),
        };
        let is_relevant = |line: &&str| {
            !line.is_empty() && !IRRELEVANT.iter().any(|start| line.starts_with(start))
        };
        let lines: Vec<&str> = messages.lines().filter(is_relevant).collect();
        lines[lines.len().saturating_sub(LAST_MESSAGES)..].join("; ")
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // An ended process is no error, and a drop cannot report others.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The text that a process has written to a file. The process writes through the same file
/// description, so the file position does not change.
pub(crate) fn read_all(file: &File) -> io::Result<String> {
    let mut text = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn create_memory_file(name: &str) -> io::Result<File> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use myelin_linux::process::Process;
    use nix::sys::signal::kill;

    use super::*;

    fn shell(script: &str) -> OwnedChild {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        OwnedChild::start_daemon(command).unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        Process::of(pid).is_ok_and(|process| process.is_alive())
    }

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
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
        let daemon = std::thread::spawn(|| shell("exec sleep 601"))
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
