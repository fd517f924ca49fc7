//! Finds the emulated end hosts of running chains by name.

use myelin_api::{ApiError, Client, HostInfo, RunDir};

/// Finds a host by name: `client`, `server`, `CHAIN/client` or `CHAIN/server`.
///
/// # Errors
/// No agent runs, no chain has such a host, or several chains have such a host.
pub(crate) fn find(run_dir: &RunDir, name: &str) -> Result<HostInfo, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed(
            "no agent runs, so there is no host: `myelin up FILE` deploys a chain and its hosts",
        )
    })?;
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
    found.dedup_by(|(_, host), (_, previous)| host.netns == previous.netns);
    match found.len() {
        1 => Ok(found.remove(0).1),
        0 => Err(ApiError::usage(format!(
            "no host `{name}`: the hosts are `client` and `server` of a chain that runs without `spec.ports` \
             (`myelin ps` lists them)"
        ))),
        _ => Err(ApiError::usage(format!(
            "host `{name}` exists in several chains; write one of these names: {}",
            found
                .iter()
                .map(|(chain, host)| format!("{chain}/{}", host.role))
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}
