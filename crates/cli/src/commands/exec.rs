//! `myelin exec`: runs a program on an emulated host, with this terminal.

use std::ffi::OsString;
use std::process::ExitCode;

use myelin_api::{ApiError, RunDir};

use super::host;

/// Arguments of `myelin exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin exec server -- iperf3 -s -1\n  \
                  myelin exec client -- irtt client -i 5ms -d 5s 10.0.0.2\n  \
                  myelin exec tactile/client -- tcpdump -ni eth0    if several chains run\n  \
                  myelin exec h1 -- ping -c 3 10.0.0.2              a host of a topology\n\n\
                  Programs keep the limits of a topology's host, and end with the topology if there are limits. The hosts are ordinary network namespaces (ip netns list). The exit status is the program's.")]
pub(crate) struct Arguments {
    /// `client`, `server`, the host of a topology, or one of them after `CHAIN/` or `TOPOLOGY/`.
    host: String,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Replaces this process by the program, in the network namespace of the host.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let host = host::find(run_dir, &arguments.host)?;
    if let Some(cgroup) = &host.cgroup {
        myelin_linux::cgroup::enter(cgroup).map_err(ApiError::failed)?;
    }
    let error = myelin_linux::process::exec_in_netns(&host.netns, &arguments.command);
    Err(ApiError::failed(error))
}
