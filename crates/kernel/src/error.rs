//! What can go wrong between user space and the kernel.

use std::io;
use std::path::PathBuf;

use libbpf_rs::ErrorKind;
use myelin_packet::classifier::ClassifierError;

use crate::Hook;

/// Why something was not done; names the object, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an eBPF program, or libbpf could not read it.
    #[error(
        "eBPF program {program} ({hook}) was not loaded: {cause:#}{log}{}",
        load_remedy(cause)
    )]
    Load {
        /// Its name, as `bpftool prog` shows it without the prefix.
        program: &'static str,
        /// The hook it was built for.
        hook: Hook,
        /// libbpf's error.
        cause: libbpf_rs::Error,
        /// What libbpf and the verifier had to say, if anything.
        log: String,
    },
    /// An operation on a map failed.
    #[error("cannot {action} the eBPF map {map}: {cause}{}", errno_remedy(cause))]
    Map {
        /// The map.
        map: &'static str,
        /// What was tried.
        action: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A front door could not be attached.
    #[error("cannot attach to {interface} at {point}: {cause}: {remedy}")]
    Attach {
        /// The interface.
        interface: String,
        /// `XDP`, `tcx` or `clsact`.
        point: &'static str,
        /// The kernel's error.
        cause: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Something could not be pinned or unpinned.
    #[error("cannot {action} {}: {cause}{remedy}", path.display())]
    Pin {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
        /// What to do about it, with a leading colon; may be empty.
        remedy: &'static str,
    },
    /// A table of the plane is full.
    #[error(
        "no room for {wanted} more {what}: the plane was made for {capacity}; remove chains, or start the agent with a larger capacity"
    )]
    Full {
        /// What there is too much of.
        what: &'static str,
        /// How many were asked for.
        wanted: u32,
        /// How many there can be.
        capacity: u32,
    },
    /// A match cannot be taken in.
    #[error("interface {interface}: {cause}")]
    Classifier {
        /// The port.
        interface: String,
        /// Why.
        cause: ClassifierError,
    },
    /// A chain that cannot be built.
    #[error("chain with path identifier {spi}: {problem}")]
    Chain {
        /// Its service path identifier.
        spi: u32,
        /// What is wrong with it.
        problem: String,
    },
    /// The kernel does not tell when its programs have ended.
    #[error("cannot wait until no packet is in a program any more (membarrier): {0}")]
    GracePeriod(io::Error),
    /// A function that cannot be loaded where it is.
    #[error("{what} at position {position}: {problem}")]
    Function {
        /// Its kind, or `function`.
        what: &'static str,
        /// Its position in its chain.
        position: u8,
        /// Why, and what to do about it.
        problem: String,
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

    /// The kernel wants a smaller map.
    pub(crate) fn is_too_big(&self) -> bool {
        matches!(self, Self::Map { cause, .. } if cause.raw_os_error() == Some(libc::E2BIG))
    }

    pub(crate) fn function(what: &'static str, position: u8, problem: impl Into<String>) -> Self {
        Self::Function {
            what,
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

/// The operating system's error behind a libbpf one, as far as libbpf-rs shows it.
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
            ": run as root (CAP_BPF and CAP_NET_ADMIN), and see that no lockdown or security module forbids eBPF"
        }
        Some(libc::ENOMEM) => ": free memory, or raise the memory limit of the agent's cgroup",
        Some(libc::EINVAL | libc::ENOSYS) => {
            ": the kernel may be too old, 6.1 is needed; `myelin doctor` tells what it lacks"
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
             CAP_NET_ADMIN), and see that no lockdown or security module forbids eBPF"
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
