//! Errors of experiments.

use std::io;

use myelin_api::ApiError;

use crate::reference;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// No experiment has that name.
    #[error("there is no experiment `{0}`; `myelin bench --list` shows all experiments")]
    Unknown(String),
    /// The experiment does not have that fault.
    #[error("fault `{0}` is one of experiment `{1}`; write `myelin bench {1} --fault {0}`")]
    Fault(crate::Fault, &'static str),
    /// The caller is not root.
    #[error(
        "an experiment makes network namespaces, links and eBPF programs, which needs root: use sudo"
    )]
    NotRoot,
    /// The caller cancelled the experiment.
    #[error("cancelled; the experiment has removed everything that it made")]
    Cancelled,
    /// A variant lost too many packets to be compared.
    #[error(
        "variant `{variant}`: {lost} of {sent} packets of {payload} B were lost; `myelin doctor` checks this machine"
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
    /// An eBPF program of the experiment failed.
    #[error(
        "eBPF program `{program}`: cannot {action}: {cause}; `myelin doctor` shows what this kernel lacks"
    )]
    Ebpf {
        /// The program.
        program: String,
        /// The failed action.
        action: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// A system to compare with is not available on this machine.
    #[error("{peer} is not available here: {reason}")]
    Peer {
        /// The system.
        peer: String,
        /// The missing part, or the system's message.
        reason: String,
    },
    /// The operating system refused a step.
    #[error("cannot {action}: {cause}")]
    System {
        /// The failed action, with its object.
        action: String,
        /// The cause.
        cause: io::Error,
    },
    /// A measured program failed.
    #[error("`{command}` failed ({status}): {messages}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its standard error.
        messages: String,
    },
    /// The experiment itself has a fault.
    #[error("fault in the experiment: {0}; please report it")]
    Internal(String),
    /// An error of the agent.
    Agent(#[from] ApiError),
    /// An error of the kernel crate.
    Kernel(#[from] myelin_kernel::Error),
    /// An error of the data plane.
    Dataplane(#[from] myelin_dataplane::Error),
    /// An error of the operating system.
    Linux(#[from] myelin_linux::Error),
    /// An error of a measurement.
    Probe(#[from] myelin_measure::Error),
    /// The experiment's file of plots or cases is invalid.
    #[error("the plots or cases of experiment `{0}` are invalid: {1}; please report it")]
    Data(&'static str, String),
    /// The page or a figure cannot be drawn.
    Report(#[from] myelin_report::Error),
    /// An error of a C reference program.
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
