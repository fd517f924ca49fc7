//! The version check of client and agent. Neither side acts on a message of another version.
//!
//! Every request and answer names its sender's version in a header, which costs no round trip. The
//! agent checks the version before it parses a request, and refuses a request of another version or
//! without a version. An agent older than this header has no path that begins with [`PREFIX`], and
//! does not act either. One request is the same in all versions: `DELETE` of [`STOP`]. So `myelin
//! down --all` stops any agent.

use crate::ApiError;

/// The version of this library, and of the client or agent that uses this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The header that names the sender's version.
pub const VERSION_HEADER: &str = "myelin-version";
/// Start of all paths except [`STOP`].
pub const PREFIX: &str = "/v2";
/// The path that stops an agent of any version.
pub const STOP: &str = "/v1/agent";

/// Checks the agent's version for a client. `None`: the agent is older than the version header.
pub(crate) fn check_agent(agent: Option<&str>) -> Result<(), ApiError> {
    if agent == Some(VERSION) {
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
/// The versions differ: the message names both, and the remedy.
pub fn check_client(client: Option<&str>) -> Result<(), ApiError> {
    if client == Some(VERSION) {
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
