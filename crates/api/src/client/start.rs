//! Starts an agent for a client that finds none.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{ApiError, RunDir};

/// Longest wait for the socket of a new agent.
const START_LIMIT: Duration = Duration::from_secs(30);
/// An agent that a client started stops after this time without a chain.
const IDLE_EXIT: &str = "60s";

/// Starts `PROGRAM agent` in its own process group, so the agent outlives the client and the
/// client's terminal.
pub(super) fn start_agent(run_dir: &RunDir, program: &Path) -> Result<(), ApiError> {
    if let Some((_, topology, node)) = run_dir.machine_of_node() {
        // Started here, it would have another network namespace.
        return Err(ApiError::failed(format!(
            "the agent of the node `{topology}/{node}` has ended: the machine's agent starts it anew, so try again; \
             `myelin ps {topology}` shows why an agent is not started anew"
        )));
    }
    let failed = |path: &str, error: std::io::Error| {
        ApiError::failed(format!("cannot start the agent: {path}: {error}"))
    };
    std::fs::create_dir_all(run_dir.path())
        .map_err(|error| failed(&run_dir.path().display().to_string(), error))?;
    let log = std::fs::File::create(run_dir.log())
        .map_err(|error| failed(&run_dir.log().display().to_string(), error))?;
    let mut child = Command::new(program)
        .args(["agent", "--idle-exit", IDLE_EXIT, "--run-dir"])
        .arg(run_dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // An interrupt in the client's terminal must not reach the agent.
        .process_group(0)
        .spawn()
        .map_err(|error| failed(&program.display().to_string(), error))?;
    let start = Instant::now();
    loop {
        if std::os::unix::net::UnixStream::connect(run_dir.socket()).is_ok() {
            return Ok(());
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || start.elapsed() > START_LIMIT {
            let log = std::fs::read_to_string(run_dir.log()).unwrap_or_default();
            return Err(ApiError::failed(format!(
                "the agent did not start: {}",
                log.lines().last().unwrap_or("the log is empty").trim()
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
