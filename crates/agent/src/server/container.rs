//! The requests for containers in hosts.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, Path, State};

use super::peer::Peer;
use super::{HttpError, ServerState, run_blocking, run_waiting};
use crate::api::{
    ApiError, ContainerImage, ContainerLimitsRequest, ContainerLog, ContainerName,
    ContainerRequest, ContainerStatus, DownReply, ImageRequest, ImageStatus,
};
use crate::engine::Engine;
use crate::node::hosts::FoundHost;
use crate::node::images;
use crate::node::topologies::RunningTopology;
use crate::pool::lock;

/// Held while a user without all rights changes its containers: their limits together are checked
/// first, and a container that starts or ends is in no list.
static GRANTED: Mutex<()> = Mutex::new(());

fn take_turn(peer: Peer) -> Option<MutexGuard<'static, ()>> {
    peer.user().is_some().then(|| lock(&GRANTED))
}

/// Finds a host with its topology, for a user who may use containers there.
pub(super) fn find(
    engine: &Engine,
    peer: Peer,
    host: &str,
    name: &str,
) -> Result<(FoundHost, Arc<RunningTopology>), ApiError> {
    let mut found = engine.find_host(host)?;
    peer.check_container(engine, &found, name)?;
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
        let turn = take_turn(peer);
        let (host, topology) = find(engine, peer, &request.host, &request.name)?;
        peer.check_limits(engine, &host, &request.name, request.limits)?;
        let user = peer.user();
        if user.is_some() && matches!(request.image, ContainerImage::Directory(_)) {
            // The agent would open the directory with rights that the user lacks.
            let action = "use a directory as an image";
            peer.check_all_rights(action)?;
        }
        let containers = &topology.containers;
        let started = containers.add(&engine.node.parts, &host, &request, user.as_ref())?;
        drop(turn);
        if request.watch_ms == 0 {
            return Ok(started);
        }
        let longest = Duration::from_millis(request.watch_ms);
        containers.watch(&host, &request.name, longest)
    })
    .await
}

pub(super) async fn limit(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<ContainerLimitsRequest>,
) -> Result<Json<ContainerStatus>, HttpError> {
    run_waiting(state, move |engine| {
        let _turn = take_turn(peer);
        let name = &request.container;
        let (host, topology) = find(engine, peer, &name.host, &name.name)?;
        peer.check_limits(engine, &host, &name.name, request.limits)?;
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
        let (host, topology) = find(engine, peer, &name.host, &name.name)?;
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
        let _turn = take_turn(peer);
        let (host, topology) = find(engine, peer, &name.host, &name.name)?;
        topology.containers.remove(&host, &name.name)?;
        Ok(DownReply {
            removed: vec![format!("{}/{}", host.path(), name.name)],
            ..DownReply::default()
        })
    })
    .await
}

pub(super) async fn images(
    State(state): State<Arc<ServerState>>,
) -> Result<Json<Vec<ImageStatus>>, HttpError> {
    run_blocking(state, |_| Ok(images::list())).await
}

pub(super) async fn import(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<ImageRequest>,
) -> Result<Json<ImageStatus>, HttpError> {
    run_waiting(state, move |engine| {
        peer.check_all_rights("store an image")?;
        images::import(&request, &engine.node.parts.journal)
    })
    .await
}

pub(super) async fn remove_image(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Result<Json<DownReply>, HttpError> {
    run_waiting(state, move |_| {
        peer.check_all_rights("remove an image")?;
        images::remove(&name)?;
        Ok(DownReply {
            removed: vec![name],
            ..DownReply::default()
        })
    })
    .await
}
