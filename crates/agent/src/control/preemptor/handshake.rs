//! How the agent, a preemptor and its guardian talk: a line of JSON to a new process, a line when
//! it is ready, a line to end it.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use myelin_linux::process::{PidFd, Signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first word of the line that a preemptor or guardian writes when it is ready.
pub(crate) const READY: &str = "ready";
/// The line by which the agent ends a preemptor.
pub(crate) const STOP: &str = "stop";
/// Longest wait for the start of a preemptor or guardian.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Reads the set-up, one line, from standard input.
pub(super) fn read_setup<T: DeserializeOwned>() -> Result<T, String> {
    // The standard library's buffer would keep what follows the line; nothing follows before READY.
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| error.to_string())?;
    serde_json::from_str(&line).map_err(|error| {
        format!("standard input has no set-up: {error}; only the agent starts this command")
    })
}

/// Writes the set-up of a new preemptor or guardian.
pub(crate) fn tell(child: &mut Child, setup: &impl Serialize) -> Result<(), String> {
    let mut line = serde_json::to_vec(setup).map_err(|error| error.to_string())?;
    line.push(b'\n');
    let stdin = child.stdin.as_mut().ok_or("no pipe")?;
    stdin.write_all(&line).map_err(|error| error.to_string())
}

/// Waits until a new preemptor or guardian is ready. Returns the words after [`READY`].
///
/// # Errors
/// The process ends, or takes too long. The error is the process's own, if its standard error is a
/// pipe.
pub(crate) fn await_ready(child: &mut Child) -> Result<String, String> {
    let stdout = child.stdout.take().ok_or("no pipe")?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        // The receiver may have given up.
        let _ = send.send(read.map(|_| line));
    });
    let line = receive.recv_timeout(READY_TIMEOUT);
    let line = line.map_err(|_| "the process does not become ready".to_owned())?;
    let line = line.map_err(|error| error.to_string())?;
    if let Some(rest) = line.strip_prefix(READY) {
        return Ok(rest.trim().to_owned());
    }
    let mut error = String::new();
    if let Some(stderr) = &mut child.stderr {
        // The process has closed its standard output, so it ends.
        let _ = stderr.read_to_string(&mut error);
    }
    Err(match error.trim() {
        "" => "the process ended at once".to_owned(),
        error => error.to_owned(),
    })
}

/// Writes why the process ends to its standard error. The agent that would read it may be dead, and
/// the tasks must get back to the kernel then too, so a failure is ignored.
pub(super) fn report(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// Ends a preemptor, which gives its tasks back to the kernel before.
pub(crate) fn stop(child: &mut Child) {
    const STOP_TIMEOUT: Duration = Duration::from_secs(5);
    let asked = child.stdin.as_mut().map(|stdin| writeln!(stdin, "{STOP}"));
    let handle = PidFd::open(child.id());
    let ended = asked.is_some_and(|asked| asked.is_ok())
        && handle.is_ok_and(|handle| handle.wait(STOP_TIMEOUT).unwrap_or(false));
    if !ended && let Ok(handle) = PidFd::open(child.id()) {
        // Its guardian then gives the tasks back.
        let _ = handle.signal(Signal::KILL);
    }
    let _ = child.wait();
}
