//! Who sends a request: the user at the other end of the connection, as the kernel tells.

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use myelin_linux::session::User;
use nix::unistd::{Gid, Uid, getgrouplist};
use tokio::net::UnixListener;

use crate::api::ApiError;
use crate::node::hosts::FoundHost;

/// The user at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// Numbers of the user and of its first group; `None`: the kernel does not tell.
    user: Option<(u32, u32)>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        Self {
            user: credentials.map(|user| (user.uid(), user.gid())),
        }
    }
}

impl Peer {
    /// Whether this is root, or the user of the agent, who owns the socket.
    fn is_owner(self) -> bool {
        let own = Uid::effective().as_raw();
        self.user.is_some_and(|(uid, _)| uid == 0 || uid == own)
    }

    /// Whether the user may run programs on a host.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_exec(self, host: &FoundHost) -> Result<(), ApiError> {
        self.check_owner(host, "run programs on")
    }

    /// Whether the user may start, change and read containers in a host.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_containers(self, host: &FoundHost) -> Result<(), ApiError> {
        self.check_owner(host, "use containers in")
    }

    fn check_owner(self, host: &FoundHost, action: &str) -> Result<(), ApiError> {
        if self.is_owner() {
            return Ok(());
        }
        Err(ApiError::failed(format!(
            "this user may not {action} host `{}`: use sudo",
            host.path()
        )))
    }

    /// The user whose rights a program gets; `None`: those of the agent.
    pub(super) fn user(self) -> Option<User> {
        if self.is_owner() {
            return None;
        }
        // Without credentials, the program gets the rights of nobody.
        let (uid, gid) = self.user.unwrap_or((65_534, 65_534));
        let name = nix::unistd::User::from_uid(Uid::from_raw(uid))
            .ok()
            .flatten();
        let name = name.and_then(|user| std::ffi::CString::new(user.name).ok());
        let groups = name.and_then(|name| getgrouplist(&name, Gid::from_raw(gid)).ok());
        let groups = groups.map_or_else(
            || vec![gid],
            |groups| groups.into_iter().map(Gid::as_raw).collect(),
        );
        Some(User { uid, gid, groups })
    }
}
