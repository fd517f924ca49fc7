//! Errors of the kernel crate.

use std::io;
use std::path::PathBuf;

use libbpf_rs::ErrorKind;
use myelin_packet::classifier::ClassifierError;

use crate::Hook;

/// An error of this crate. The message names the object, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an eBPF program, or libbpf could not read the program.
    #[error(
        "eBPF program {program} ({hook}) was not loaded: {cause:#}{log}{}",
        load_remedy(cause)
    )]
    Load {
        /// The program's name, as `bpftool prog` shows it without the prefix.
        program: &'static str,
        /// The hook of the program.
        hook: Hook,
        /// libbpf's error.
        cause: libbpf_rs::Error,
        /// Messages of libbpf and the verifier; may be empty.
        log: String,
    },
    /// An operation on a map failed.
    #[error("cannot {action} the eBPF map {map}: {cause}{}", errno_remedy(cause))]
    Map {
        /// Name of the map.
        map: &'static str,
        /// Verb of the failed operation, for example `create`.
        action: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The kernel did not attach a program.
    #[error("cannot attach to {interface} at {point}: {cause}: {remedy}")]
    Attach {
        /// Name of the interface.
        interface: String,
        /// `XDP`, `tcx` or `clsact`.
        point: &'static str,
        /// The kernel's error.
        cause: io::Error,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The kernel did not pin or unpin an object.
    #[error("cannot {action} {}: {cause}{remedy}", path.display())]
    Pin {
        /// Verb of the failed operation, for example `unpin`.
        action: &'static str,
        /// Path of the pin.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
        /// What the user can do, with a leading colon; may be empty.
        remedy: &'static str,
    },
    /// A table is full.
    #[error(
        "no room for {wanted} more {items}: the agent has a capacity of {capacity}; remove chains that you do not need"
    )]
    Full {
        /// Name of the table's entries, in the plural.
        items: &'static str,
        /// Number of requested entries.
        wanted: u32,
        /// Number of entries that the table can hold.
        capacity: u32,
    },
    /// The classifier refused a match.
    #[error("interface {interface}: {cause}")]
    Classifier {
        /// Name of the port's interface.
        interface: String,
        /// The reason for the refusal.
        cause: ClassifierError,
    },
    /// The chain is invalid.
    #[error("chain with path identifier {spi}: {problem}")]
    Chain {
        /// Service path identifier of the chain.
        spi: u32,
        /// What is invalid, and the remedy.
        problem: String,
    },
    /// The kernel cannot wait for the end of running programs.
    #[error("cannot wait for packets in running programs (membarrier): {0}")]
    GracePeriod(io::Error),
    /// The kernel cannot load a function.
    #[error("{kind} at position {position}: {problem}")]
    Function {
        /// Kind of the function, or the word `function`.
        kind: &'static str,
        /// Position of the function in its chain.
        position: u8,
        /// The cause and the remedy.
        problem: String,
    },
    /// A delay line has no direction with this number.
    #[error("delay line: direction {number} does not exist: use 1 to 4094")]
    Direction {
        /// The number.
        number: u16,
    },
    /// A test run of a program failed.
    #[error("the kernel did not run the program on test data: {0}")]
    TestRun(io::Error),
}

impl Error {
    pub(crate) fn map(map: &'static str, action: &'static str, cause: &libbpf_rs::Error) -> Self {
        Self::Map {
            map,
            action,
            cause: io_error(cause),
        }
    }

    /// Returns whether the kernel refuses the map because of its size.
    pub(crate) fn is_too_big(&self) -> bool {
        matches!(self, Self::Map { cause, .. } if cause.raw_os_error() == Some(libc::E2BIG))
    }

    pub(crate) fn function(kind: &'static str, position: u8, problem: impl Into<String>) -> Self {
        Self::Function {
            kind,
            position,
            problem: problem.into(),
        }
    }

    pub(crate) fn chain(spi: u32, problem: impl Into<String>) -> Self {
        Self::Chain {
            spi,
            problem: problem.into(),
        }
    }
}

/// Converts a libbpf error to the operating system's error, if libbpf-rs shows its kind.
pub(crate) fn io_error(error: &libbpf_rs::Error) -> io::Error {
    let errno = match error.kind() {
        ErrorKind::PermissionDenied => libc::EPERM,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::TooBig => libc::E2BIG,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => return io::Error::other(format!("{error:#}")),
    };
    io::Error::from_raw_os_error(errno)
}

fn load_remedy(cause: &libbpf_rs::Error) -> &'static str {
    errno_remedy(&io_error(cause))
}

fn errno_remedy(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EPERM) => {
            ": run as root (CAP_BPF and CAP_NET_ADMIN), and check that no lockdown or security module forbids eBPF"
        }
        Some(libc::ENOMEM) => ": free memory, or raise the memory limit of the agent's cgroup",
        Some(libc::EINVAL | libc::ENOSYS) => {
            ": the kernel may be too old: Myelin needs Linux 6.1 or newer; `myelin doctor` lists missing features"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_object_cause_and_remedy() {
        let cause = libbpf_rs::Error::from(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(
            Error::map("counters", "create", &cause).to_string(),
            "cannot create the eBPF map counters: Operation not permitted (os error 1): run as root (CAP_BPF and \
             CAP_NET_ADMIN), and check that no lockdown or security module forbids eBPF"
        );
        let load = Error::Load {
            program: "xor",
            hook: Hook::Xdp,
            cause,
            log: "\nthe verifier's last line".into(),
        };
        let load = load.to_string();
        assert!(
            load.starts_with("eBPF program xor (xdp) was not loaded: Operation not permitted"),
            "{load}"
        );
        assert!(
            load.contains("\nthe verifier's last line: run as root"),
            "{load}"
        );
    }
}
