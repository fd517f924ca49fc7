//! Who sends a request: the user at the other end of the connection, as the kernel tells, and its
//! rights.
//!
//! Root, the agent's own user and the members of the socket's group have all rights. Others have
//! those of [`Access`], and their programs and containers have only the rights of the user.

use std::ffi::CString;

use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use myelin_linux::session::User;
use nix::unistd::{Gid, Group, Uid, getgrouplist};
use tokio::net::UnixListener;

use super::access::{Access, Action, Names, check_limits};
use super::{GROUP, HttpError};
use crate::api::{ApiError, ContainerLimits, ContainerStatus};
use crate::engine::Engine;
use crate::node::hosts::FoundHost;

/// Requests of users without all rights, below the prefix: the rules decide about the second list.
const READS: [&str; 5] = ["/agent", "/chains", "/containers", "/images", "/topologies"];
const DECIDED: [&str; 5] = [
    "/exec",
    "/containers",
    "/containers/limits",
    "/containers/log",
    "/containers/remove",
];

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

/// Refuses requests that a user without all rights never may send.
pub(super) async fn check_peer(
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix(crate::api::PREFIX).unwrap_or_default();
    let may_be_granted = match *request.method() {
        Method::GET => READS.contains(&path),
        Method::POST => DECIDED.contains(&path),
        _ => false,
    };
    if may_be_granted {
        return next.run(request).await;
    }
    let action = format!("send `{} {}`", request.method(), request.uri().path());
    match peer.check_all_rights(&action) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            // Before other layers, which name the version.
            let version = HeaderValue::from_static(crate::api::VERSION);
            ([(crate::api::VERSION_HEADER, version)], HttpError(error)).into_response()
        }
    }
}

impl Peer {
    /// Whether this user has all rights.
    fn has_all_rights(self) -> bool {
        let own = Uid::effective().as_raw();
        let is_owner = self.user.is_some_and(|(uid, _)| uid == 0 || uid == own);
        is_owner || self.names().groups.iter().any(|group| group == GROUP)
    }

    /// The user whose rights programs and containers get; `None`: those of the agent.
    pub(super) fn user(self) -> Option<User> {
        if self.has_all_rights() {
            return None;
        }
        // Without credentials, the program gets the rights of nobody.
        let (uid, gid) = self.user.unwrap_or((65_534, 65_534));
        Some(User {
            uid,
            gid,
            groups: self.groups(),
        })
    }

    fn groups(self) -> Vec<u32> {
        let Some((uid, gid)) = self.user else {
            return Vec::new();
        };
        let name = CString::new(user_name(uid)).ok();
        let groups = name.and_then(|name| getgrouplist(&name, Gid::from_raw(gid)).ok());
        let groups = groups.map(|groups| groups.into_iter().map(Gid::as_raw).collect());
        groups.unwrap_or_else(|| vec![gid])
    }

    fn names(self) -> Names {
        let group_name = |gid: u32| {
            let found = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
            found.map_or_else(|| gid.to_string(), |group| group.name)
        };
        Names {
            user: self
                .user
                .map_or_else(String::new, |(uid, _)| user_name(uid)),
            groups: self.groups().into_iter().map(group_name).collect(),
        }
    }

    /// Checks that the user has all rights.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_all_rights(self, action: &str) -> Result<(), ApiError> {
        if self.has_all_rights() {
            return Ok(());
        }
        let user = self.names().user;
        Err(ApiError::failed(format!(
            "user `{user}` may not {action}: only root and the group `{GROUP}` may; use sudo"
        )))
    }

    /// Whether the user may run programs on a host.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_exec(self, host: &FoundHost) -> Result<(), ApiError> {
        self.grant(Action::Exec, host).map(drop)
    }

    /// Whether the user may use a container in a host: a new one, or one of its own.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_container(
        self,
        engine: &Engine,
        host: &FoundHost,
        name: &str,
    ) -> Result<(), ApiError> {
        if self.grant(Action::Containers, host)?.is_none() {
            return Ok(());
        }
        let is_foreign = |found: &ContainerStatus| {
            is_container(found, host, name) && found.user != self.user.map(|(uid, _)| uid)
        };
        if engine.containers().iter().any(is_foreign) {
            return Err(ApiError::failed(format!(
                "host `{}`, container `{name}`: it belongs to another user",
                host.path()
            )));
        }
        Ok(())
    }

    /// Whether a container of the user may have these limits.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check_limits(
        self,
        engine: &Engine,
        host: &FoundHost,
        name: &str,
        asked: ContainerLimits,
    ) -> Result<(), ApiError> {
        let Some(granted) = self.grant(Action::Containers, host)? else {
            return Ok(());
        };
        let own = self.user.map(|(uid, _)| uid);
        let all = engine.containers();
        // A limit that a request does not name stays.
        let current = all.iter().find(|found| is_container(found, host, name));
        let current = current.map(|found| found.limits).unwrap_or_default();
        let asked = ContainerLimits {
            cpu_millicores: asked.cpu_millicores.or(current.cpu_millicores),
            memory_bytes: asked.memory_bytes.or(current.memory_bytes),
        };
        let others = all
            .iter()
            .filter(|found| found.user == own && !is_container(found, host, name));
        let others: Vec<ContainerLimits> = others.map(|found| found.limits).collect();
        check_limits(granted, &others, asked)
    }

    /// Returns the limits of the user's containers together; `None`: the user has all rights.
    fn grant(self, action: Action, host: &FoundHost) -> Result<Option<ContainerLimits>, ApiError> {
        if self.has_all_rights() {
            return Ok(None);
        }
        Access::read()?.grant(&self.names(), action, host).map(Some)
    }
}

fn is_container(found: &ContainerStatus, host: &FoundHost, name: &str) -> bool {
    (&*found.topology, &*found.host, &*found.name) == (&*host.object, &*host.name, name)
}

fn user_name(uid: u32) -> String {
    let found = nix::unistd::User::from_uid(Uid::from_raw(uid))
        .ok()
        .flatten();
    found.map_or_else(|| uid.to_string(), |user| user.name)
}
