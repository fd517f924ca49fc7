//! The agent: the privileged process that deploys plans, supervises them and measures them.
//!
//! It knows how the rooms below fit together, and nothing of how each does its work: the end hosts are the emulator's, the programs the
//! kernel room's, the workers the dataplane's. It never shows anything to a person; that is the client's part.
//!
//! Start reading at `deploy`, the road of a chain, step by step; then `node`, what chains are made of, `control`, what goes on while
//! they run, and `engine`, what requests can ask for. [`myelin_api`] is what goes over the socket.

mod calibrate;
mod control;
mod deploy;
mod engine;
mod measure;
mod node;
mod pool;
mod server;
mod status;

use std::fs::{File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

pub use deploy::{UpOptions, admit, link_bps, link_mtu, load_costs, port_kind};
pub use engine::Engine;
pub use myelin_measure::Monitor;
pub use node::container::version as runc_version;
pub use server::ServeOptions;

pub use myelin_api as api;
use myelin_api::{ApiError, RunDir};

/// The agent's main: serves the run directory until it is told to stop, then removes all that it made. `program`
/// is the executable that becomes a worker when it is called with `worker`. The lock on the directory is held until the process ends.
///
/// # Errors
/// Not root; another agent serves the directory; the kernel lacks what is needed.
pub fn serve(run_dir: &RunDir, program: &Path, options: ServeOptions) -> Result<(), ApiError> {
    refuse_shifted_clock(myelin_linux::time_namespace::monotonic_offset_ns())?;
    // Not given back here: when the kernel takes it at the end of the process, nothing of the process is left.
    std::mem::forget(lock(run_dir)?);
    let engine = Engine::open(run_dir, program.to_path_buf())?;
    server::serve(run_dir, engine, options)
}

/// Packets are stamped by the kernel's clock and judged by the workers', which must be the same one.
fn refuse_shifted_clock(offset_ns: myelin_linux::Result<i128>) -> Result<(), ApiError> {
    match offset_ns.map_err(ApiError::failed)? {
        0 => Ok(()),
        offset_ns => Err(ApiError::failed(format!(
            "CLOCK_MONOTONIC is {} s {} the kernel's in this time namespace, and packets are stamped by the kernel's: sojourns and \
             shapers would be wrong by that much; start the agent outside of it, for example with `nsenter --time --target 1`, or give \
             the container no offset",
            offset_ns.unsigned_abs() as f64 / 1e9,
            if offset_ns > 0 { "ahead of" } else { "behind" }
        ))),
    }
}

/// How long an agent waits for the one before it in the same directory to remove what it had.
const ENDING: Duration = Duration::from_secs(3);

/// Makes the run directory and takes its lock, which holds the agent's process number.
fn lock(run_dir: &RunDir) -> Result<Flock<File>, ApiError> {
    let failed = |error: std::io::Error| {
        ApiError::failed(format!(
            "cannot use the run directory {}: {error}",
            run_dir.path().display()
        ))
    };
    std::fs::create_dir_all(run_dir.path()).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(run_dir.lock())
        .map_err(failed)?;
    // Any process that can open the file can lock it. An older file may be open to others.
    file.set_permissions(Permissions::from_mode(0o600))
        .map_err(failed)?;
    let start = Instant::now();
    let mut waiting = file;
    let mut lock = loop {
        match Flock::lock(waiting, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            // Where the socket does not answer it is about to end, is being killed, or has just begun.
            Err((file, _)) if !answers(run_dir) && start.elapsed() < ENDING => {
                waiting = file;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => {
                return Err(ApiError::failed(format!(
                    "another agent serves {} already",
                    run_dir.path().display()
                )));
            }
        }
    };
    lock.set_len(0).map_err(failed)?;
    lock.rewind().map_err(failed)?;
    writeln!(lock, "{}", std::process::id()).map_err(failed)?;
    Ok(lock)
}

fn answers(run_dir: &RunDir) -> bool {
    std::os::unix::net::UnixStream::connect(run_dir.socket()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_can_hold_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path()));
        // As an earlier version made it.
        std::fs::write(run_dir.lock(), "").unwrap();
        std::fs::set_permissions(run_dir.lock(), Permissions::from_mode(0o644)).unwrap();
        let held = lock(&run_dir).unwrap();
        let mode = held.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(run_dir.is_served());
        // What a killed agent leaves behind.
        std::fs::write(run_dir.socket(), "").unwrap();
        drop(held);
        assert!(!run_dir.is_served());
    }

    #[test]
    fn an_agent_of_another_clock_is_refused() {
        assert!(refuse_shifted_clock(Ok(0)).is_ok());
        for (offset_ns, said) in [
            (1_500_000_000, "1.5 s ahead of"),
            (-1_000_000_000, "1 s behind"),
        ] {
            let error = refuse_shifted_clock(Ok(offset_ns)).unwrap_err();
            assert!(error.message.contains(said), "{error:?}");
        }
    }

    #[test]
    fn an_agent_that_was_killed_is_told_from_one_that_starts_or_ends() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path()));
        assert!(!run_dir.is_abandoned(), "nobody was here");
        std::fs::write(run_dir.journal(), "").unwrap();
        let held = lock(&run_dir).unwrap();
        assert!(!run_dir.is_abandoned(), "it is being made or removed");
        drop(held);
        assert!(run_dir.is_abandoned());
    }
}
