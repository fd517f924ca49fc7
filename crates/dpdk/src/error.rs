//! Errors of DPDK, with the object, the cause and the remedy.

use std::sync::Arc;

use crate::sys::ShimError;

/// An error of the crate `dpdk`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program was built without DPDK.
    #[error(
        "this program was built without DPDK: {reason}; install its development files (Debian: libdpdk-dev) and build again"
    )]
    Absent {
        /// The dependency that the build did not find.
        reason: &'static str,
    },
    /// The libraries of the build are missing on this machine.
    #[error(
        "DPDK cannot be loaded: {cause}; install the DPDK that this program was built with, or build it here"
    )]
    Load {
        /// The loader's error.
        cause: String,
    },
    /// This process has already started its only environment.
    #[error("DPDK already runs in this process, and a process has only one environment")]
    Running,
    /// The environment did not start.
    #[error("DPDK with prefix {prefix}: {cause}{}{remedy}", quoted(log))]
    Environment {
        /// `--file-prefix`.
        prefix: String,
        /// DPDK's error.
        cause: Arc<std::io::Error>,
        /// The last lines of DPDK's log.
        log: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// DPDK did not allocate the pool of mbufs.
    #[error(
        "DPDK with prefix {prefix}: no memory for {frames} frames: {cause}; request fewer frames, or reserve more hugepages"
    )]
    Pool {
        /// `--file-prefix`.
        prefix: String,
        /// Number of requested frames.
        frames: u32,
        /// The cause.
        cause: String,
    },
    /// DPDK did not open a device.
    #[error("DPDK device `{device}`: {step}: {cause}{}{remedy}", quoted(log))]
    Device {
        /// The device, as the user wrote it.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// DPDK's error.
        cause: Arc<std::io::Error>,
        /// The last lines of DPDK's log.
        log: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The text is not a device name.
    #[error("DPDK device `{device}`: {problem}")]
    Name {
        /// The user's text.
        device: String,
        /// The problem.
        problem: &'static str,
    },
}

impl Error {
    pub(crate) fn environment(prefix: &str, error: ShimError) -> Self {
        let log = last_lines(&error.log);
        let remedy = if log.contains("another primary process") {
            "; another process uses this prefix: end that process, or start this one with another run directory"
        } else if log.contains("ugepage") || log.contains("memory") {
            "; reserve hugepages (sysctl vm.nr_hugepages=512), or remove `hugepages`"
        } else if log.contains("ermission") {
            "; run as root"
        } else {
            ""
        };
        Self::Environment {
            prefix: prefix.to_owned(),
            cause: Arc::new(error.cause),
            log,
            remedy,
        }
    }

    pub(crate) fn device(device: &str, step: &'static str, error: ShimError) -> Self {
        let remedy = match error.cause.raw_os_error() {
            Some(libc::ENODEV | libc::ENOENT)
                if myelin_spec::DpdkDevice::new(device).is_ok_and(|device| device.is_pci()) =>
            {
                "; bind the device to vfio-pci (dpdk-devbind.py -b vfio-pci ADDRESS), and check that no other process uses the device"
            }
            Some(libc::ENODEV | libc::ENOENT | libc::EFAULT) => {
                "; check the driver's name, and that the interface exists in the agent's network namespace"
            }
            Some(libc::EEXIST) => "; another port has a device of this name: choose another name",
            Some(libc::EPERM | libc::EACCES) if !nix::unistd::geteuid().is_root() => {
                "; run as root"
            }
            Some(libc::ENOMEM) => "; reserve more hugepages, or remove `hugepages`",
            _ => "",
        };
        Self::Device {
            device: device.to_owned(),
            step,
            log: last_lines(&error.log),
            cause: Arc::new(error.cause),
            remedy,
        }
    }
}

/// Returns the last lines of a log, which contain the cause, as one line.
fn last_lines(log: &str) -> String {
    const LINES: usize = 4;
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join(" / ")
}

/// Puts a log in brackets after a space, if it is not empty.
fn quoted(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!(" ({log})")
    }
}
