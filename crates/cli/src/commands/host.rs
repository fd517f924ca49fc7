//! Finds emulated hosts by name: the end hosts of chains, and the hosts of topologies.

use myelin_api::{ApiError, Client, RunDir};

/// An emulated host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundHost {
    /// The chain or topology.
    object: String,
    /// The host's name in the object.
    name: String,
    /// The network namespace.
    pub(crate) netns: String,
}

/// Finds a host by name: `client`, `server`, the name of a topology's host, or one of them after
/// `OBJECT/`.
///
/// # Errors
/// No agent runs, no object has such a host, or several objects have such a host.
pub(crate) fn find(run_dir: &RunDir, name: &str) -> Result<FoundHost, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed(
            "no agent runs, so there is no host: `myelin up FILE` deploys a chain and its hosts, or a topology",
        )
    })?;
    let (object, host) = match name.split_once('/') {
        Some((object, host)) => (Some(object), host),
        None => (None, name),
    };
    let mut found = list(&client)?;
    found.retain(|found| found.name == host && object.is_none_or(|object| found.object == object));
    // A chain and its reverse share their hosts.
    found.dedup_by(|host, previous| host.netns == previous.netns);
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(ApiError::usage(format!(
            "no host `{name}`: the hosts are those of topologies, and `client` and `server` of a chain that runs \
             without `spec.ports` (`myelin ps` lists them)"
        ))),
        _ => Err(ApiError::usage(format!(
            "host `{name}` exists in several chains and topologies; write one of these names: {}",
            found
                .iter()
                .map(|found| format!("{}/{}", found.object, found.name))
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// Lists all hosts.
fn list(client: &Client) -> Result<Vec<FoundHost>, ApiError> {
    let mut hosts = Vec::new();
    for status in client.list()? {
        hosts.extend(status.hosts.into_iter().map(|host| FoundHost {
            object: status.chain.clone(),
            name: host.role,
            netns: host.netns,
        }));
    }
    for status in client.topologies()? {
        hosts.extend(status.hosts.into_iter().map(|host| FoundHost {
            object: status.name.clone(),
            name: host.name,
            netns: host.netns,
        }));
    }
    Ok(hosts)
}
