//! `myelin exec`: run any program on an emulated end host, with this terminal.

use std::ffi::OsString;
use std::process::ExitCode;

use myelin_agent::api::{ApiError, HostInfo};
use myelin_agent::{Client, RunDir};

/// Arguments of `myelin exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  myelin exec server -- iperf3 -s -1\n  \
                  myelin exec client -- irtt client -i 5ms -d 5s 10.0.0.2\n  \
                  myelin exec tactile/client -- tcpdump -ni eth0    where several chains run\n\n\
                  The end hosts are ordinary network namespaces (ip netns list). The exit status is the program's.")]
pub(crate) struct Arguments {
    /// `client`, `server`, `CHAIN/client` or `CHAIN/server`.
    host: String,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program, inside the host's network namespace.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed(
            "no agent runs, so there is no host: `myelin up FILE` makes a chain and its hosts",
        )
    })?;
    let host = find(&client, &arguments.host)?;
    let error = myelin_linux::process::exec_in_netns(&host.netns, &arguments.command);
    Err(ApiError::failed(error))
}

fn find(client: &Client, name: &str) -> Result<HostInfo, ApiError> {
    let (chain, role) = match name.split_once('/') {
        Some((chain, role)) => (Some(chain), role),
        None => (None, name),
    };
    let chains = client.list()?;
    let mut found: Vec<(String, HostInfo)> = chains
        .into_iter()
        .filter(|status| chain.is_none_or(|chain| status.chain == chain))
        .flat_map(|status| {
            let chain = status.chain;
            status
                .hosts
                .into_iter()
                .map(move |host| (chain.clone(), host))
        })
        .filter(|(_, host)| host.role == role)
        .collect();
    // A chain and its reverse share their hosts.
    found.dedup_by(|one, other| one.1.netns == other.1.netns);
    match found.len() {
        1 => Ok(found.remove(0).1),
        0 => Err(ApiError::usage(format!(
            "no host `{name}`: the hosts are `client` and `server` of a chain that runs without `spec.ports` \
             (`myelin ps` lists them)"
        ))),
        _ => Err(ApiError::usage(format!(
            "host `{name}` exists in several chains; say which: {}",
            found
                .iter()
                .map(|(chain, host)| format!("{chain}/{}", host.role))
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}
