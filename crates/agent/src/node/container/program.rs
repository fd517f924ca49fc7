//! A further program in a running container, which runc starts: with the namespaces, the group, the
//! user and the capabilities of the container's first program.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use myelin_linux::process::Process;
use myelin_linux::session;
use serde_json::{Value, json};

use super::Container;
use super::runc::{CHECK_INTERVAL, RUNC_TIMEOUT, last_logged_error, runc_command, runc_error};
use crate::api::{ApiError, ExecRequest};

/// Numbers the programs of this agent.
static PROGRAMS: AtomicU64 = AtomicU64::new(0);

/// A program in a container, and the runc that waits for it.
pub(crate) struct ContainerProgram {
    /// runc. It copies the program's pipes, and ends with the program's exit status.
    pub(crate) runc: Child,
    /// The program's process number on the machine.
    pub(crate) pid: u32,
}

/// The files of a start. Dropping the value removes them.
struct StartFiles {
    process: PathBuf,
    pid: PathBuf,
    log: PathBuf,
}

impl Drop for StartFiles {
    fn drop(&mut self) {
        for path in [&self.process, &self.pid, &self.log] {
            // A start that failed may have made no file. The bundle's removal removes the rest.
            let _ = fs::remove_file(path);
        }
    }
}

impl Container {
    /// Starts a program in the container, with the caller's descriptors. Returns when it runs, or
    /// when `is_ending` becomes true.
    ///
    /// # Errors
    /// The program does not exist in the container, the container has ended or is being removed, or
    /// a system error.
    pub(crate) fn start_program(
        &self,
        request: &ExecRequest,
        [input, output, errors]: [OwnedFd; 3],
        is_ending: &AtomicBool,
    ) -> Result<ContainerProgram, ApiError> {
        let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| self.bundle.join(format!("program-{number}.{kind}"));
        let files = StartFiles {
            process: file("json"),
            pid: file("pid"),
            log: file("log"),
        };
        self.describe(request, &files.process)
            .map_err(|error| self.program_error(request, &error))?;
        let mut command = runc_command();
        command
            .arg("--root")
            .arg(&self.state)
            .arg("--log")
            .arg(&files.log)
            .args(["--log-format", "json", "exec", "--process"])
            .arg(&files.process)
            .arg("--pid-file")
            .arg(&files.pid)
            .arg(&self.id)
            .stdin(input)
            .stdout(output)
            .stderr(errors);
        session::lead(&mut command, Path::new("/"), None, false).map_err(ApiError::failed)?;
        let mut runc = command.spawn().map_err(|error| runc_error(&error))?;
        // With the command, its copies of the descriptors close: only the program holds them.
        drop(command);
        match wait_for_start(&mut runc, &files.pid, is_ending) {
            Ok(Ok(pid)) => Ok(ContainerProgram { runc, pid }),
            Ok(Err(status)) => {
                let log = fs::read_to_string(&files.log).unwrap_or_default();
                let cause = last_logged_error(&log).unwrap_or_else(|| format!("runc: {status}"));
                Err(self.program_error(request, &cause))
            }
            Err(error) => {
                // Report the first error.
                let _ = Process::of(runc.id()).and_then(|process| process.kill_tree());
                let _ = runc.wait();
                Err(self.program_error(request, &error))
            }
        }
    }

    fn program_error(&self, request: &ExecRequest, cause: &dyn std::fmt::Display) -> ApiError {
        let program = request.command.first().map_or("", String::as_str);
        ApiError::failed(format!(
            "cannot run `{program}` in the container {}: {cause}",
            self.id
        ))
    }

    /// Writes the program's description: that of the first program, with another command.
    fn describe(&self, request: &ExecRequest, path: &Path) -> io::Result<()> {
        let config = fs::read(self.bundle.join("config.json"))?;
        let mut config: Value = serde_json::from_slice(&config)?;
        let mut process = config["process"].take();
        process["args"] = json!(request.command);
        if !request.directory.is_empty() {
            process["cwd"] = json!(request.directory);
        }
        if let Some(variables) = process["env"].as_array_mut() {
            let is_kept = |variable: &Value| {
                let name = variable.as_str().and_then(|text| text.split_once('='));
                name.is_some_and(|(name, _)| !request.env.contains_key(name))
            };
            variables.retain(is_kept);
            let own = request.env.iter();
            variables.extend(own.map(|(name, value)| json!(format!("{name}={value}"))));
        }
        // The description contains the program's environment: only root may read it.
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?
            .write_all(&serde_json::to_vec(&process)?)
    }
}

/// Waits until runc has written the program's process number, or has ended without. Fails when
/// `is_ending` becomes true.
fn wait_for_start(
    runc: &mut Child,
    pid: &Path,
    is_ending: &AtomicBool,
) -> io::Result<Result<u32, ExitStatus>> {
    let deadline = Instant::now() + RUNC_TIMEOUT;
    let process = Process::of(runc.id()).map_err(io::Error::other)?;
    loop {
        // First the end: runc writes the number before it ends. With a number, nobody waits for
        // runc here, so its own number stays valid.
        let has_ended = !process.is_alive();
        match fs::read_to_string(pid) {
            Ok(text) if !text.is_empty() => {
                return text.trim().parse().map(Ok).map_err(io::Error::other);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if has_ended {
            return runc.wait().map(Err);
        }
        if is_ending.load(Ordering::Relaxed) {
            return Err(io::Error::other("the container is being removed"));
        }
        if Instant::now() >= deadline {
            let cause = format!("runc did not start it within {RUNC_TIMEOUT:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, cause));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_start_ends_with_the_removal_of_its_container() {
        let mut runc = Command::new("sleep").arg("3600").spawn().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let found = wait_for_start(&mut runc, &pid, &AtomicBool::new(true));
        let written = fs::write(&pid, "17\n")
            .and_then(|()| wait_for_start(&mut runc, &pid, &AtomicBool::new(true)));
        runc.kill().unwrap();
        runc.wait().unwrap();
        let error = found.unwrap_err().to_string();
        assert!(error.contains("is being removed"), "{error}");
        // A program that runs ends with the container.
        assert_eq!(written.unwrap().unwrap(), 17);
    }
}
