//! The agent: the privileged process that deploys, supervises and measures chains.
//!
//! The agent connects the crates below it: `emulator` makes end hosts, `kernel` loads programs,
//! `dataplane` runs workers. The agent draws nothing; the client does.
//!
//! Start reading at `deploy` (the steps of `up`). Then read `node` (the parts of a chain),
//! `control` (supervision) and `engine` (the requests). [`myelin_api`] holds the types of the
//! socket.

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

use myelin_linux::{mount_namespace, resource_limit};
use nix::fcntl::{Flock, FlockArg};

pub use control::preemptor::run as run_preemptor;
pub use deploy::{UpOptions, admit, find_port_fault, link_bps, link_mtu, load_costs, port_kind};
pub use engine::Engine;
pub use myelin_measure::Monitor;
pub use node::NodeOptions;
pub use node::container::version as runc_version;
pub use node::openflow::version as open_vswitch_version;
pub use server::ServeOptions;

pub use myelin_api as api;
use myelin_api::{ApiError, RunDir};

/// The agent's main function. Serves the run directory until a request or a signal stops the agent,
/// then removes everything that the agent made. A worker runs `program` with the argument `worker`.
/// The process holds the lock on the directory until it ends.
///
/// # Errors
/// Not root; another agent serves the directory; the kernel lacks a needed feature.
pub fn serve(run_dir: &RunDir, program: &Path, options: ServeOptions) -> Result<(), ApiError> {
    refuse_shifted_clock(myelin_linux::time_namespace::monotonic_offset_ns())?;
    for limit in [
        resource_limit::raise_open_files().map(drop),
        resource_limit::ignore_file_size_signal(),
    ] {
        limit.map_err(ApiError::failed)?;
    }
    // Keep the lock until exit: the kernel releases it after everything else.
    std::mem::forget(lock(run_dir)?);
    // Only a process with one thread can change its mount namespace.
    join_first_mount_namespace(run_dir, program);
    let engine = Engine::open_with(run_dir, program.to_path_buf(), options.node.clone())?;
    server::serve(run_dir, engine, options)
}

/// Moves the agent into the mount namespace of process 1, else of the farthest ancestor that allows
/// it, for example the user's login shell. `ip netns exec` makes a mount namespace that ends with
/// its last process. There, the pins of kernel chains would end with the agent.
fn join_first_mount_namespace(run_dir: &RunDir, program: &Path) {
    let shared = [Path::new("/"), run_dir.path(), program];
    match mount_namespace::join_first(&shared) {
        Ok(Some(pid)) => tracing::info!("the agent is in the mount namespace of process {pid}"),
        Ok(None) => {}
        Err(error) => tracing::warn!(
            %error,
            "the agent stays in its own mount namespace: if the namespace ends, kernel chains end with it"
        ),
    }
}

/// The kernel stamps packets and workers read the stamps, so both must use the same clock.
fn refuse_shifted_clock(offset_ns: myelin_linux::Result<i128>) -> Result<(), ApiError> {
    match offset_ns.map_err(ApiError::failed)? {
        0 => Ok(()),
        offset_ns => Err(ApiError::failed(format!(
            "CLOCK_MONOTONIC is {} s {} the kernel's in this time namespace. The kernel stamps packets, so sojourns and shapers would be \
             wrong by that much. Start the agent outside of the namespace, for example with `nsenter --time --target 1`, or give \
              the container no offset",
            offset_ns.unsigned_abs() as f64 / 1e9,
            if offset_ns > 0 { "ahead of" } else { "behind" }
        ))),
    }
}

/// Longest time that an agent waits for its predecessor in the same directory to clean up.
const PREDECESSOR_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes the run directory and takes its lock. The lock file holds the agent's process number.
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
    let mut unlocked = file;
    let mut lock = loop {
        match Flock::lock(unlocked, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            // No answer at the socket: the other agent is ending, is being killed, or has just
            // started.
            Err((file, _))
                if !answers_at_socket(run_dir) && start.elapsed() < PREDECESSOR_EXIT_TIMEOUT =>
            {
                unlocked = file;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => {
                return Err(ApiError::failed(format!(
                    "another agent serves {} already: stop that agent with `myelin down --all`, or use another `--run-dir`",
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

fn answers_at_socket(run_dir: &RunDir) -> bool {
    std::os::unix::net::UnixStream::connect(run_dir.socket()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_can_open_the_lock_file() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path()));
        // An earlier version made the file with these rights.
        std::fs::write(run_dir.lock(), "").unwrap();
        std::fs::set_permissions(run_dir.lock(), Permissions::from_mode(0o644)).unwrap();
        let held = lock(&run_dir).unwrap();
        let mode = held.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(run_dir.is_served());
        // A killed agent leaves its socket behind.
        std::fs::write(run_dir.socket(), "").unwrap();
        drop(held);
        assert!(!run_dir.is_served());
    }

    #[test]
    fn the_agent_refuses_a_shifted_clock() {
        assert!(refuse_shifted_clock(Ok(0)).is_ok());
        for (offset_ns, expected) in [
            (1_500_000_000, "1.5 s ahead of"),
            (-1_000_000_000, "1 s behind"),
        ] {
            let error = refuse_shifted_clock(Ok(offset_ns)).unwrap_err();
            assert!(error.message.contains(expected), "{error:?}");
        }
    }

    #[test]
    fn a_run_directory_is_abandoned_only_after_its_agent_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = RunDir::resolve(Some(directory.path()));
        assert!(!run_dir.is_abandoned(), "no agent has run here");
        std::fs::write(run_dir.journal(), "").unwrap();
        let held = lock(&run_dir).unwrap();
        assert!(!run_dir.is_abandoned(), "an agent holds the lock");
        drop(held);
        assert!(run_dir.is_abandoned());
    }
}
