//! `myelin exec`: runs a program on an emulated end host, with this terminal.

use std::ffi::OsString;
use std::process::ExitCode;

use myelin_api::{ApiError, RunDir};

use super::host;

/// Arguments of `myelin exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin exec server -- iperf3 -s -1\n  \
                  myelin exec client -- irtt client -i 5ms -d 5s 10.0.0.2\n  \
                  myelin exec tactile/client -- tcpdump -ni eth0    if several chains run\n\n\
                  The end hosts are ordinary network namespaces (ip netns list). The exit status is the program's.")]
pub(crate) struct Arguments {
    /// `client`, `server`, `CHAIN/client` or `CHAIN/server`.
    host: String,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Replaces this process by the program, in the network namespace of the host.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let host = host::find(run_dir, &arguments.host)?;
    let error = myelin_linux::process::exec_in_netns(&host.netns, &arguments.command);
    Err(ApiError::failed(error))
}
