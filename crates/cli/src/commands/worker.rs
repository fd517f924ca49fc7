//! `myelin worker`: the process that runs user functions. The agent starts it, with a control
//! socket as standard input.

use std::process::ExitCode;

use myelin_api::ApiError;

/// Arguments of `myelin worker`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Use ports over DPDK.
    #[arg(long)]
    dpdk: bool,
    /// Use packet sockets, for super-packets.
    #[arg(long, conflicts_with = "dpdk")]
    packet_sockets: bool,
    /// Delay the packets of emulated links.
    #[arg(long, conflicts_with_all = ["dpdk", "packet_sockets"])]
    delay_line: bool,
}

/// Runs until the agent stops it.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let control = myelin_dataplane::control_from_stdin().map_err(|error| {
        ApiError::failed(format!(
            "standard input is no control socket: {error}; only the agent starts this command"
        ))
    })?;
    if arguments.dpdk {
        myelin_dataplane::worker_main::<myelin_dpdk::Dpdk>(control)
    }
    if arguments.delay_line {
        myelin_dataplane::delay_line_main(control)
    }
    if arguments.packet_sockets {
        myelin_dataplane::worker_main::<myelin_dataplane::PacketSockets>(control)
    }
    myelin_dataplane::worker_main::<myelin_dataplane::Sockets>(control)
}
