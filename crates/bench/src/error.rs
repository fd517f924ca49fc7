//! Why an experiment ended without a report.

use std::io;

use myelin_api::ApiError;

use crate::reference;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// There is no experiment of that name.
    #[error("there is no experiment `{0}`; `myelin bench --list` shows those that there are")]
    Unknown(String),
    /// Not privileged.
    #[error(
        "an experiment makes network namespaces, links and eBPF programs, which needs root: use sudo"
    )]
    NotRoot,
    /// The caller asked for the end.
    #[error("cancelled; everything that was made is removed")]
    Cancelled,
    /// A variant that lets nothing through, so there is nothing to compare.
    #[error(
        "variant `{variant}`: {lost} of {sent} packets of {payload} B were lost: see what `myelin doctor` says of this machine"
    )]
    Lost {
        /// The variant.
        variant: String,
        /// Packets lost.
        lost: u64,
        /// Packets sent.
        sent: u64,
        /// UDP payload, bytes.
        payload: usize,
    },
    /// A program of the experiment could not be used.
    #[error(
        "eBPF program `{program}` of the experiment: cannot {action}: {cause}; `myelin doctor` tells what this kernel lacks"
    )]
    Ebpf {
        /// The program.
        program: String,
        /// What was attempted.
        action: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// A system to compare with that cannot be had on this machine.
    #[error("{peer} cannot be had here: {reason}")]
    Peer {
        /// The system.
        peer: String,
        /// What is missing, or what it said.
        reason: String,
    },
    /// The operating system refused a step.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was attempted, with its object.
        action: String,
        /// The cause.
        cause: io::Error,
    },
    /// A program that was started to be measured failed.
    #[error("`{command}` failed ({status}): {words}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its standard error.
        words: String,
    },
    /// A part of a chain file that an experiment is made of.
    #[error("the experiment's own chain file: {0}; please report it")]
    Snippet(String),
    /// The agent's answer.
    Agent(#[from] ApiError),
    /// The kernel room's.
    Kernel(#[from] myelin_kernel::Error),
    /// A worker's memory.
    Dataplane(#[from] myelin_dataplane::Error),
    /// The machine's.
    Linux(#[from] myelin_linux::Error),
    /// The probe's.
    Probe(#[from] myelin_measure::Error),
    /// Rounds that cannot be compared.
    Ratio(#[from] myelin_metrics::stats::RatioError),
    /// A file of plots or cases that cannot be read: the experiment, and what is wrong.
    #[error("the data of experiment `{0}`: {1}; please report it")]
    Data(&'static str, String),
    /// The page's.
    Report(#[from] myelin_report::Error),
    /// A C reference's.
    Reference(#[from] reference::Error),
}

impl Error {
    pub(crate) fn system(action: impl Into<String>, cause: io::Error) -> Self {
        Self::System {
            action: action.into(),
            cause,
        }
    }

    pub(crate) fn ebpf(program: &str, action: &'static str, cause: io::Error) -> Self {
        Self::Ebpf {
            program: program.to_owned(),
            action,
            cause,
        }
    }
}
