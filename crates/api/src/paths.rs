//! The files of an agent. One *run directory* holds the socket, the journals and the pinned eBPF
//! objects, so agents with different run directories never conflict.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::ApiError;

/// Environment variable with the run directory.
const RUN_DIR_VARIABLE: &str = "MYELIN_RUN_DIR";
/// Default run directory.
const DEFAULT_RUN_DIR: &str = "/run/myelin";
/// Environment variable with the calibration file.
const CALIBRATION_VARIABLE: &str = "MYELIN_CALIBRATION";
/// Default calibration file.
const DEFAULT_CALIBRATION: &str = "/var/lib/myelin/calibration.json";

/// The run directory of one agent, and the names of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Returns the directory of the argument, else of `MYELIN_RUN_DIR`, else `/run/myelin`.
    pub fn resolve(argument: Option<&Path>) -> Self {
        let path = argument.map(Path::to_path_buf).or_else(|| {
            std::env::var_os(RUN_DIR_VARIABLE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        });
        let path = path.unwrap_or_else(|| PathBuf::from(DEFAULT_RUN_DIR));
        // Make a relative path absolute, because the agent has another working directory than its
        // clients.
        Self(std::path::absolute(&path).unwrap_or(path))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The agent's Unix socket. The socket's permissions control the access.
    pub fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// The file on which the agent of this directory holds a lock (`flock`).
    pub fn lock(&self) -> PathBuf {
        self.0.join("agent.lock")
    }

    /// Standard error of an agent that a client started.
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

    /// State directory of runc: its `--root`.
    pub fn runc(&self) -> PathBuf {
        self.0.join("runc")
    }

    /// The run directory of the agent of a topology's node.
    #[must_use]
    pub fn of_node(&self, topology: &str, node: &str) -> Self {
        Self(self.nodes().join(format!("{topology}.{node}")))
    }

    /// The directory of the machine's agent, and the topology and name of the node, if this is the
    /// directory of a node's agent.
    pub fn machine_of_node(&self) -> Option<(Self, &str, &str)> {
        let nodes = self.0.parent()?;
        let machine = Self(nodes.parent()?.to_owned());
        let (topology, node) = self.0.file_name()?.to_str()?.split_once('.')?;
        (machine.nodes() == nodes).then_some((machine, topology, node))
    }

    /// The bookings of the agent's chains, for the other agents of the machine.
    pub fn bookings(&self) -> PathBuf {
        self.0.join("bookings.json")
    }

    /// The run directories of the agents of nodes: `TOPOLOGY.NODE`.
    pub fn nodes(&self) -> PathBuf {
        self.0.join("nodes")
    }

    /// Finds the run directory of a node's agent by `NODE`, or `TOPOLOGY/NODE`.
    ///
    /// # Errors
    /// No topology has such a node, or several have.
    pub fn find_node(&self, name: &str) -> Result<Self, ApiError> {
        let (topology, node) = match name.split_once('/') {
            Some((topology, node)) => (Some(topology), node),
            None => (None, name),
        };
        let entries = std::fs::read_dir(self.nodes()).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        let mut found: Vec<(String, String)> = names
            .filter_map(|name| {
                let (topology, node) = name.split_once('.')?;
                Some((topology.to_owned(), node.to_owned()))
            })
            .filter(|(of, found)| found == node && topology.is_none_or(|name| name == of))
            .collect();
        found.sort();
        match &found[..] {
            [(topology, node)] => Ok(self.of_node(topology, node)),
            [] => Err(ApiError::usage(format!(
                "no running topology has a node `{name}`: `myelin ps TOPOLOGY` lists the nodes"
            ))),
            _ => {
                let names = found
                    .iter()
                    .map(|(topology, _)| format!("{topology}/{node}"));
                Err(ApiError::usage(format!(
                    "several topologies have a node `{node}`: write one of these names: {}",
                    names.collect::<Vec<_>>().join(", ")
                )))
            }
        }
    }

    /// The journal. The agent lists each object here before it makes the object.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// Whether an agent serves this directory. A stopping agent removes the socket first and holds
    /// the lock until its process ends. A killed agent leaves its socket, so the socket decides
    /// only if this user may not open the lock.
    pub fn is_served(&self) -> bool {
        self.is_locked().unwrap_or_else(|_| self.socket().exists())
    }

    /// Whether a killed agent has left objects here. A starting or stopping agent holds the lock.
    /// `false` if this user may not open the lock.
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

    /// A short name of this directory (8 hex digits). The names of links and worker processes
    /// contain it, to distinguish the objects of different agents.
    pub fn id(&self) -> String {
        short_hash(self.0.as_os_str().as_encoded_bytes())
    }
}

/// Hashes a long name to 8 hex digits, for names with a length limit such as links.
pub fn short_hash(bytes: &[u8]) -> String {
    // FNV-1a is stable across runs and builds; the hasher of std is not.
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
    fn different_directories_have_different_ids() {
        let one = RunDir::resolve(Some(Path::new("/run/myelin")));
        let other = RunDir::resolve(Some(Path::new("/run/myelin2")));
        assert_ne!(one.id(), other.id());
        assert_eq!(
            one.id(),
            RunDir::resolve(Some(Path::new("/run/myelin"))).id()
        );
        assert_eq!(one.id().len(), 8);
        assert_eq!(one.machine_of_node(), None);
        let node = one.of_node("line", "n1");
        let machine = node.machine_of_node();
        assert_eq!(machine, Some((one, "line", "n1")));
    }
}
