//! Errors of the dataplane, with the object, the cause and the remedy.

use std::io;
use std::path::PathBuf;

/// An error of the dataplane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number outside the range that the kernel or the worker accepts.
    #[error("{what} is {value}: must be {expected}")]
    Parameter {
        /// Name of the parameter.
        what: &'static str,
        /// Value of the parameter.
        value: u64,
        /// The accepted values.
        expected: &'static str,
    },
    /// The kernel refused to create or map shared memory.
    #[error("cannot set up {what} of {bytes} bytes: {source}")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// Size of the memory, bytes.
        bytes: usize,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel refused a step of opening an AF_XDP socket.
    #[error(
        "AF_XDP socket on {interface} queue {queue}: {step}: {source}{}",
        remedy(source)
    )]
    Socket {
        /// The interface.
        interface: String,
        /// Number of the receive queue.
        queue: u32,
        /// The step that failed.
        step: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel refused a step of opening a packet socket.
    #[error("packet socket on {interface}: {step}: {source}")]
    PacketSocket {
        /// The interface.
        interface: String,
        /// The step that failed.
        step: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A ring of the kernel does not fit the mapping that this program expects.
    #[error(
        "AF_XDP socket: the {ring} ring does not fit its mapping: check that this program made the socket"
    )]
    Ring {
        /// Name of the ring.
        ring: &'static str,
    },
    /// The kernel did not start the worker program.
    #[error("cannot start worker {}: {source}", exe.display())]
    Spawn {
        /// The program.
        exe: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The worker did not answer.
    #[error("worker {worker} (process {pid}): {what}: {source}; restart the worker")]
    Control {
        /// The worker's run id.
        worker: String,
        /// Number of the worker's process.
        pid: u32,
        /// The request.
        what: String,
        /// The error of the socket.
        source: io::Error,
    },
    /// The worker refused a request.
    #[error("worker {worker}: {what}: {message}")]
    Refused {
        /// The worker's run id.
        worker: String,
        /// The request.
        what: String,
        /// The worker's answer.
        message: String,
    },
    /// The worker has no socket with this number.
    #[error("worker {worker} has no socket {socket}")]
    NoSocket {
        /// The worker's run id.
        worker: String,
        /// The number of the socket.
        socket: u16,
    },
    /// The chain's generation exists already, does not exist, or cannot be added.
    #[error("worker {worker}: chain {spi} generation {generation} {problem}")]
    Chain {
        /// The worker's run id.
        worker: String,
        /// Service path identifier.
        spi: u32,
        /// Generation.
        generation: u16,
        /// The problem, as the end of the sentence "the chain ...".
        problem: &'static str,
    },
}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run as root (CAP_NET_RAW, CAP_NET_ADMIN)",
        Some(libc::EBUSY) => "; another AF_XDP socket holds this queue: use another queue",
        Some(libc::EAFNOSUPPORT) => "; this kernel was built without CONFIG_XDP_SOCKETS",
        Some(libc::ENOBUFS | libc::ENOMEM) => "; raise the locked-memory limit (ulimit -l)",
        Some(libc::EINVAL) => "; check that the interface has this queue",
        _ => "",
    }
}
