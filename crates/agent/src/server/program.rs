//! A program of a client: its start on a host, its end, and its exit status.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;

use myelin_linux::process::{PidFd, Process, Signal};
use myelin_linux::procfs::Stat;
use myelin_linux::session;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::container;
use super::peer::Peer;
use crate::api::{ApiError, ExecRequest};
use crate::engine::Engine;

/// A program that runs.
pub(super) struct RunningProgram {
    /// The program, or the runc that waits for a program in a container.
    pub(super) child: Child,
    /// The program.
    pub(super) process: Process,
    /// Becomes readable when the program ends.
    end: AsyncFd<OwnedFd>,
}

impl RunningProgram {
    /// Waits for the end of the program.
    pub(super) async fn wait(&self) {
        // A failure of the event loop ends the program.
        let _ = self.end.readable().await;
    }

    /// Ends the program and its children.
    pub(super) async fn end(&self) {
        let (process, child) = (self.process, self.child.id());
        let end = move || {
            session::end(&process)?;
            // runc goes on as long as nobody reads what the program has written. The agent has not
            // waited for this child, so no other process has its number.
            if child != process.pid {
                PidFd::open(child)?.signal(Signal::KILL)?;
            }
            Ok::<(), myelin_linux::Error>(())
        };
        let ended = tokio::task::spawn_blocking(end);
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "a program of a client that has ended goes on");
        }
    }
}

/// Starts the program. Runs on a thread for blocking work.
pub(super) fn start(
    engine: &Engine,
    peer: Peer,
    request: &ExecRequest,
    descriptors: [OwnedFd; 3],
) -> Result<RunningProgram, ApiError> {
    // The host may have changed since the request was checked.
    let (mut child, pid) = match &request.container {
        None => {
            let child = start_on_host(engine, peer, request, descriptors)?;
            let pid = child.id();
            (child, pid)
        }
        Some(name) => {
            let (host, topology) = container::find(engine, peer, &request.host, name)?;
            let owner = (name.as_str(), peer.user().map(|user| user.uid));
            let containers = &topology.containers;
            let started = containers.start_program(&host, owner, request, descriptors)?;
            (started.runc, started.pid)
        }
    };
    let watched = watch(&child, pid);
    if watched.is_err() {
        // Report the first error.
        let _ = Process::of(child.id()).and_then(|process| process.kill_tree());
        let _ = child.wait();
    }
    let (process, end) = watched?;
    Ok(RunningProgram {
        child,
        process,
        end,
    })
}

fn start_on_host(
    engine: &Engine,
    peer: Peer,
    request: &ExecRequest,
    [input, output, errors]: [OwnedFd; 3],
) -> Result<Child, ApiError> {
    let host = engine.find_host(&request.host)?;
    peer.check_exec(&host)?;
    let mut command = host.prepare(request, peer.user().as_ref())?;
    command.stdin(input).stdout(output).stderr(errors);
    // With the command, its copies of the descriptors close: only the program holds them.
    let child = command.spawn();
    child.map_err(|error| start_error(&host.path(), request, &error))
}

/// Returns the program with this number, and what becomes readable when the child has ended.
fn watch(child: &Child, pid: u32) -> Result<(Process, AsyncFd<OwnedFd>), ApiError> {
    let process = find_program(child.id(), pid)
        .map_or_else(|| Process::of(child.id()), Ok)
        .map_err(ApiError::failed)?;
    let handle = PidFd::open(child.id()).map_err(ApiError::failed)?;
    let end = handle
        .as_fd()
        .try_clone_to_owned()
        .map_err(ApiError::failed)?;
    // SAFETY: the value owns the descriptor, which stays open until the value is dropped.
    let end = unsafe { AsyncFd::register_with_interest(end, Interest::READABLE) };
    let end = end.map_err(ApiError::failed)?;
    Ok((process, end))
}

/// Returns the program that this runc has started. A program may have ended already, and its number
/// may belong to a stranger, whose parent is not runc.
fn find_program(runc: u32, pid: u32) -> Option<Process> {
    let process = Process::of(pid).ok()?;
    let stat = Stat::read(pid).ok()?;
    // The second reading after the parent's shows that the number has not changed hands.
    let is_own = stat.parent == runc && Process::of(pid).is_ok_and(|again| again == process);
    is_own.then_some(process)
}

fn start_error(host: &str, request: &ExecRequest, error: &io::Error) -> ApiError {
    let program = request.command.first().map_or("", String::as_str);
    let directory = &request.directory;
    let cause = if !Path::new(directory).is_dir() {
        format!("the directory {directory} does not exist")
    } else if error.kind() == io::ErrorKind::NotFound {
        "the program does not exist; check that the program is installed and in PATH".to_owned()
    } else {
        error.to_string()
    };
    ApiError::failed(format!("{host}: cannot run `{program}`: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_strangers_process_number_is_no_program() {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let (own, pid) = (std::process::id(), child.id());
        let found = find_program(own, pid);
        let of_stranger = find_program(pid, own);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.map(|process| process.pid), Some(pid));
        assert_eq!(of_stranger, None, "this process is no child of its child");
        assert_eq!(find_program(own, pid), None, "the program has ended");
    }
}
