//! The version check of client and agent. Neither side acts on a message of a distant version.
//!
//! Every request and answer names its sender's version in a header, which costs no round trip. Near
//! versions differ only in their last number: the later one may have more requests, and no request
//! with another meaning. The agent names a request that it lacks. It checks the version before it
//! parses a request, and refuses a request of a distant version or without a version. An agent
//! older than this header has no path that begins with [`PREFIX`], and does not act either. One
//! request is the same in all versions: `DELETE` of [`STOP`]. So `myelin down --all` stops any
//! agent.

use crate::ApiError;

/// The version of this library, and of the client or agent that uses this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The header that names the sender's version.
pub const VERSION_HEADER: &str = "myelin-version";
/// Start of all paths except [`STOP`].
pub const PREFIX: &str = "/v2";
/// The path that stops an agent of any version.
pub const STOP: &str = "/v1/agent";

/// Whether a client and an agent of these versions understand each other: all numbers but the last
/// are equal.
fn is_near(version: &str) -> bool {
    let series = |version: &str| {
        version
            .rsplit_once('.')
            .map(|(series, _)| series.to_owned())
    };
    version == VERSION || (series(version).is_some() && series(version) == series(VERSION))
}

/// Checks the agent's version for a client. `None`: the agent is older than the version header.
pub(crate) fn check_agent(agent: Option<&str>) -> Result<(), ApiError> {
    if agent.is_some_and(is_near) {
        return Ok(());
    }
    let (agent, needed) = agent.map_or_else(
        || ("an older version".to_owned(), "that version".to_owned()),
        |agent| (format!("version {agent}"), format!("version {agent}")),
    );
    Err(ApiError::failed(format!(
        "the agent is {agent} and this `myelin` is version {VERSION}: nothing was done; run `myelin down --all`, which stops that \
         agent and removes its chains, then this command again, or use `myelin` of {needed}"
    )))
}

/// Checks a client's version for the agent. `None`: the client is older than the version header.
///
/// # Errors
/// The versions are distant: the message names both, and the remedy.
pub fn check_client(client: Option<&str>) -> Result<(), ApiError> {
    if client.is_some_and(is_near) {
        return Ok(());
    }
    let client = client.map_or("an older version".to_owned(), |client| {
        format!("version {client}")
    });
    Err(ApiError::failed(format!(
        "the agent is version {VERSION} and this `myelin` is {client}: nothing was done; use `myelin` of version {VERSION}, or stop \
         the agent and its chains with `sudo kill {}`",
        std::process::id()
    )))
}
