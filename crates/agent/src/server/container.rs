//! The requests for containers in hosts.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, State};

use super::peer::Peer;
use super::{HttpError, ServerState, run_blocking, run_waiting};
use crate::api::{
    ApiError, ContainerLimitsRequest, ContainerLog, ContainerName, ContainerRequest,
    ContainerStatus, DownReply,
};
use crate::engine::Engine;
use crate::node::hosts::FoundHost;
use crate::node::topologies::RunningTopology;

/// Finds a host with its topology, for a user who may use containers there.
fn find(
    engine: &Engine,
    peer: Peer,
    host: &str,
) -> Result<(FoundHost, Arc<RunningTopology>), ApiError> {
    let mut found = engine.find_host(host)?;
    peer.check_containers(&found)?;
    let topology = found.topology.take().ok_or_else(|| {
        ApiError::usage(format!(
            "host `{}` belongs to a chain, and containers run in the hosts of topologies: write a topology, and name \
             its hosts as the chain's ports",
            found.path()
        ))
    })?;
    Ok((found, topology))
}

pub(super) async fn list(
    State(state): State<Arc<ServerState>>,
) -> Result<Json<Vec<ContainerStatus>>, HttpError> {
    run_blocking(state, |engine| Ok(engine.containers())).await
}

pub(super) async fn add(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<ContainerRequest>,
) -> Result<Json<ContainerStatus>, HttpError> {
    run_waiting(state, move |engine| {
        let (host, topology) = find(engine, peer, &request.host)?;
        let user = peer.user();
        let containers = &topology.containers;
        containers.add(&engine.node.parts, &host, &request, user.as_ref())
    })
    .await
}

pub(super) async fn limit(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<ContainerLimitsRequest>,
) -> Result<Json<ContainerStatus>, HttpError> {
    run_waiting(state, move |engine| {
        let name = &request.container;
        let (host, topology) = find(engine, peer, &name.host)?;
        topology.containers.limit(&host, &name.name, request.limits)
    })
    .await
}

pub(super) async fn log(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(name): Json<ContainerName>,
) -> Result<Json<ContainerLog>, HttpError> {
    run_blocking(state, move |engine| {
        let (host, topology) = find(engine, peer, &name.host)?;
        let text = topology.containers.log(&host, &name.name)?;
        Ok(ContainerLog { text })
    })
    .await
}

pub(super) async fn remove(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(name): Json<ContainerName>,
) -> Result<Json<DownReply>, HttpError> {
    run_waiting(state, move |engine| {
        let (host, topology) = find(engine, peer, &name.host)?;
        topology.containers.remove(&host, &name.name)?;
        Ok(DownReply {
            removed: vec![format!("{}/{}", host.path(), name.name)],
            ..DownReply::default()
        })
    })
    .await
}
