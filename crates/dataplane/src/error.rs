//! What can go wrong, told with the object, the cause and the remedy.

use std::io;
use std::path::PathBuf;

/// An error of the dataplane room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number outside what the kernel or the worker takes.
    #[error("{what} is {value}: must be {expected}")]
    Parameter {
        /// Which parameter.
        what: &'static str,
        /// What it was.
        value: u64,
        /// What it must be.
        expected: &'static str,
    },
    /// Shared memory could not be made or mapped.
    #[error("{what} of {bytes} bytes: {source}")]
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// Its size, bytes.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A step of opening an AF_XDP socket failed.
    #[error(
        "AF_XDP socket on {interface} queue {queue}: {step}: {source}{}",
        remedy(source)
    )]
    Socket {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's rings do not look as this program expects them.
    #[error(
        "AF_XDP socket: the {ring} ring does not fit its mapping: is this a socket of this program?"
    )]
    Ring {
        /// Which ring.
        ring: &'static str,
    },
    /// The worker program could not be started.
    #[error("cannot start worker {}: {source}", exe.display())]
    Spawn {
        /// The program.
        exe: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The worker does not answer.
    #[error("worker {worker} (process {pid}): {what}: {source}; restart it")]
    Control {
        /// The worker's run id.
        worker: String,
        /// Its process.
        pid: u32,
        /// What was asked of it.
        what: String,
        /// Why there is no answer.
        source: io::Error,
    },
    /// The worker refused what was asked of it.
    #[error("worker {worker}: {what}: {message}")]
    Refused {
        /// The worker's run id.
        worker: String,
        /// What was asked.
        what: String,
        /// Its answer.
        message: String,
    },
    /// The worker has no socket of this number.
    #[error("worker {worker} has no socket {socket}")]
    NoSocket {
        /// The worker's run id.
        worker: String,
        /// The number.
        socket: u16,
    },
    /// A chain of this identifier and generation is there already, or is not there.
    #[error("worker {worker}: chain {spi} generation {generation} {problem}")]
    Chain {
        /// The worker's run id.
        worker: String,
        /// Service path identifier.
        spi: u32,
        /// Generation.
        generation: u16,
        /// What is wrong with it.
        problem: &'static str,
    },
}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run as root (CAP_NET_RAW, CAP_NET_ADMIN)",
        Some(libc::EBUSY) => "; another AF_XDP socket holds this queue, use another one",
        Some(libc::EAFNOSUPPORT) => "; this kernel was built without CONFIG_XDP_SOCKETS",
        Some(libc::ENOBUFS | libc::ENOMEM) => "; raise the locked-memory limit (ulimit -l)",
        Some(libc::EINVAL) => "; does the interface have this queue?",
        _ => "",
    }
}
