//! Where an agent keeps its things: one *run directory* holds the socket, the journals and the pinned eBPF
//! objects, so two agents with different run directories never meet.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// Environment variable that moves the run directory.
const RUN_DIR_VARIABLE: &str = "MYELIN_RUN_DIR";
/// The run directory when nothing else is said.
const DEFAULT_RUN_DIR: &str = "/run/myelin";
/// Environment variable that moves the calibration file.
const CALIBRATION_VARIABLE: &str = "MYELIN_CALIBRATION";
/// Where `myelin calibrate` keeps what it measured when nothing else is said.
const DEFAULT_CALIBRATION: &str = "/var/lib/myelin/calibration.json";

/// The run directory of one agent, and the names of what lies in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The directory named by the argument, else by `MYELIN_RUN_DIR`, else `/run/myelin`.
    pub fn resolve(argument: Option<&Path>) -> Self {
        let path = argument.map(Path::to_path_buf).or_else(|| {
            std::env::var_os(RUN_DIR_VARIABLE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        });
        let path = path.unwrap_or_else(|| PathBuf::from(DEFAULT_RUN_DIR));
        // An agent runs in another directory than its clients, so a relative path must mean one place.
        Self(std::path::absolute(&path).unwrap_or(path))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The agent's Unix socket; its permissions are the access control.
    pub fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// Held locked (`flock`) by the agent that serves this directory.
    pub fn lock(&self) -> PathBuf {
        self.0.join("agent.lock")
    }

    /// What an agent started by a client writes to standard error.
    pub fn log(&self) -> PathBuf {
        self.0.join("agent.log")
    }

    /// Mount point of the directory's own bpffs.
    pub fn bpf(&self) -> PathBuf {
        self.0.join("bpf")
    }

    /// Bundles of OCI containers, one directory each.
    pub fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    /// What runc knows of the containers: its `--root`.
    pub fn runc(&self) -> PathBuf {
        self.0.join("runc")
    }

    /// What was made, written down before it is made.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// Whether an agent is at work here: the socket goes first, then what was made, the lock with the process. One that is killed leaves
    /// its socket behind, so that is looked at only by who may not open the lock.
    pub fn is_served(&self) -> bool {
        self.is_locked().unwrap_or_else(|_| self.socket().exists())
    }

    /// Whether an agent was killed here and has left things behind. One that starts or ends just now has some too, but holds the lock.
    /// False for who may not open that.
    pub fn is_abandoned(&self) -> bool {
        self.journal().exists() && self.is_locked().is_ok_and(|is_locked| !is_locked)
    }

    fn is_locked(&self) -> io::Result<bool> {
        match File::open(self.lock()) {
            Ok(file) => Ok(Flock::lock(file, FlockArg::LockSharedNonblock).is_err()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A short name of this directory (8 hex digits): goes into the names of links and worker processes, so
    /// that things of different agents can be told apart.
    pub fn id(&self) -> String {
        short_hash(self.0.as_os_str().as_encoded_bytes())
    }
}

/// 8 hex digits that stand for a longer name where a name must be short, as a link's must.
pub fn short_hash(bytes: &[u8]) -> String {
    // FNV-1a: stable across runs and builds, which std's hasher is not.
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    format!("{hash:08x}")
}

/// The calibration file: `MYELIN_CALIBRATION`, else `/var/lib/myelin/calibration.json`.
pub fn calibration_file() -> PathBuf {
    std::env::var_os(CALIBRATION_VARIABLE)
        .map_or_else(|| PathBuf::from(DEFAULT_CALIBRATION), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_different_identities() {
        let one = RunDir::resolve(Some(Path::new("/run/myelin")));
        let other = RunDir::resolve(Some(Path::new("/run/myelin2")));
        assert_ne!(one.id(), other.id());
        assert_eq!(
            one.id(),
            RunDir::resolve(Some(Path::new("/run/myelin"))).id()
        );
        assert_eq!(one.id().len(), 8);
    }
}
