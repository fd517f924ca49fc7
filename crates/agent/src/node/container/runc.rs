//! The program runc: its commands, their end and their errors.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use myelin_linux::process::Process;
use serde_json::Value;

use crate::api::ApiError;
use crate::node::confinement::PATH;

/// Debian's name of the program and of its package.
pub(super) const RUNC: &str = "runc";

/// Longest time of a runc command. A command usually takes a fraction of a second.
pub(super) const RUNC_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two checks whether a command has ended.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The version of the installed runc.
///
/// # Errors
/// runc is not installed or does not run.
pub fn version() -> Result<String, ApiError> {
    let mut command = runc_command();
    command.arg("--version").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| runc_error(&error))?;
    wait_or_kill(&mut child, RUNC_TIMEOUT, || Ok(())).map_err(|error| runc_error(&error))?;
    let mut text = String::new();
    // A read error leaves the version unknown.
    let _ = child
        .stdout
        .map_or(Ok(0), |mut out| out.read_to_string(&mut text));
    let version = text
        .split_whitespace()
        .nth(2)
        .unwrap_or("of unknown version");
    Ok(version.to_owned())
}

pub(super) fn runc_error(error: &io::Error) -> ApiError {
    let cause = match error.kind() {
        io::ErrorKind::NotFound => "runc is not installed".to_owned(),
        _ => error.to_string(),
    };
    ApiError::failed(format!(
        "cannot run `{RUNC}`, which `isolation: container` needs: {cause}; install runc (Debian, Ubuntu: `apt install runc`), or \
         write `isolation: process`"
    ))
}

/// Makes a runc command with only `PATH` of the agent's environment. With `NOTIFY_SOCKET`, runc
/// would wait for a readiness message from the container.
pub(super) fn runc_command() -> Command {
    let mut command = Command::new(RUNC);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or(PATH.into()));
    command
}

/// Waits for the end of a command, and calls `watch` meanwhile. Kills the command after the limit,
/// or an error of `watch`, and returns an error.
pub(super) fn wait_or_kill(
    child: &mut Child,
    limit: Duration,
    mut watch: impl FnMut() -> io::Result<()>,
) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        let watched = watch();
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let is_late = Instant::now() >= deadline;
        if is_late || watched.is_err() {
            // Also kill its children, because a half-made container is useless.
            let ended = Process::of(child.id()).and_then(|process| process.kill_tree());
            ended.map_err(io::Error::other)?;
            child.wait()?;
            watched?;
            let cause = format!("`{RUNC}` did not end within {limit:?} and was killed");
            return Err(io::Error::new(io::ErrorKind::TimedOut, cause));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// The last error in runc's log, which has one JSON object a line.
pub(super) fn last_logged_error(log: &str) -> Option<String> {
    let error = |line: &str| {
        let entry: Value = serde_json::from_str(line).ok()?;
        (entry["level"] == "error" || entry["level"] == "fatal").then_some(())?;
        entry["msg"].as_str().map(str::to_owned)
    };
    log.lines().rev().find_map(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_in_the_log_of_runc_is_reported() {
        let log = "{\"level\":\"warning\",\"msg\":\"a\"}\nnonsense\n{\"level\":\"error\",\"msg\":\"no such file\"}\n{\"level\":\"info\",\"msg\":\"b\"}\n";
        assert_eq!(last_logged_error(log).as_deref(), Some("no such file"));
        assert_eq!(last_logged_error(""), None);
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let error = wait_or_kill(&mut child, Duration::from_millis(10), || Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(child.try_wait().unwrap().is_some());
        let mut child = Command::new("true").spawn().unwrap();
        assert!(
            wait_or_kill(&mut child, RUNC_TIMEOUT, || Ok(()))
                .unwrap()
                .success()
        );
    }
}
