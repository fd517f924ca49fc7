//! Leases: a lease holds the chains and topologies of a program, and the agent removes these when
//! the program's connection ends. So a killed program leaves nothing.
//!
//! A program never changes or shares an object that its lease does not hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use super::{HttpError, ServerState, run_waiting};
use crate::api::{ApiError, ChainSource, ChainUp, DownReply, Lease};
use crate::deploy::UpOptions;
use crate::engine::Engine;
use crate::pool::lock;

/// The names of the objects that a lease holds.
#[derive(Debug, Default)]
struct Held {
    chains: BTreeSet<String>,
    topologies: BTreeSet<String>,
    has_ended: bool,
}

/// What a lease holds. A deployment locks it from its begin to its end, so the end of the lease
/// waits for a deployment and removes its objects too.
type SharedHeld = Arc<Mutex<Held>>;

/// The open leases.
#[derive(Clone, Default)]
pub(super) struct Leases(Arc<Mutex<OpenLeases>>);

#[derive(Default)]
struct OpenLeases {
    last: u64,
    held: BTreeMap<u64, SharedHeld>,
}

impl Leases {
    fn open(&self) -> u64 {
        let mut leases = lock(&self.0);
        leases.last += 1;
        let number = leases.last;
        leases.held.insert(number, SharedHeld::default());
        number
    }

    /// Closes a lease and returns what it holds. Returns `None` if the lease has ended.
    fn close(&self, lease: u64) -> Option<SharedHeld> {
        lock(&self.0).held.remove(&lease)
    }

    /// Deploys a file whose new objects the lease holds.
    ///
    /// # Errors
    /// The errors of [`Engine::up`]; the lease has ended; an object of the file runs, and this
    /// lease does not hold it.
    pub(super) fn up(
        &self,
        lease: u64,
        engine: &Engine,
        source: &ChainSource,
        options: UpOptions<'_>,
    ) -> Result<Vec<ChainUp>, ApiError> {
        let shared = lock(&self.0).held.get(&lease).cloned();
        let shared = shared.ok_or_else(|| ended(lease))?;
        let mut held = lock(&shared);
        if held.has_ended {
            return Err(ended(lease));
        }
        let objects = source.parse_objects()?;
        let own: BTreeSet<String> = held.chains.union(&held.topologies).cloned().collect();
        let options = UpOptions {
            own: Some(&own),
            ..options
        };
        let ups = engine.up(source, options)?;
        let chains = objects.chains.into_iter();
        held.chains.extend(chains.map(|chain| chain.name));
        let topologies = objects.topologies.into_iter();
        held.topologies
            .extend(topologies.map(|topology| topology.name));
        Ok(ups)
    }
}

fn ended(lease: u64) -> ApiError {
    ApiError::failed(format!(
        "lease {lease} does not exist or has ended, so the agent makes nothing for it: open another lease"
    ))
}

/// Removes objects that may be gone already. Chains use the
/// hosts of topologies, so they go first. Returns the removed objects.
fn remove(engine: &Engine, held: &SharedHeld) -> DownReply {
    let mut held = lock(held);
    held.has_ended = true;
    let mut reply = DownReply::default();
    for name in held.chains.iter().chain(&held.topologies) {
        match engine.down(name) {
            Ok(removed) => reply.removed.extend(removed.removed),
            Err(error) => tracing::warn!(name, %error, "not removed with its lease"),
        }
    }
    tracing::info!(removed = ?reply.removed, "a lease has ended");
    reply
}

/// Ends the lease when dropped, because the client has disconnected or the server stops.
struct EndOnDrop {
    lease: u64,
    state: Arc<ServerState>,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let held = self.state.leases.close(self.lease);
        // Without a runtime the agent has ended and removes everything.
        if let (Some(held), Ok(runtime)) = (held, tokio::runtime::Handle::try_current()) {
            let engine = Arc::clone(&self.state.engine);
            runtime.spawn_blocking(move || drop(remove(&engine, &held)));
        }
    }
}

/// Ends a lease, and answers when its objects are gone.
pub(super) async fn end(
    State(state): State<Arc<ServerState>>,
    Path(lease): Path<u64>,
) -> Result<Json<DownReply>, HttpError> {
    let leases = state.leases.clone();
    run_waiting(state, move |engine| {
        let held = leases.close(lease).ok_or_else(|| ended(lease))?;
        Ok(remove(engine, &held))
    })
    .await
}

/// Opens a lease. The answer has one line, and ends only when the server stops.
pub(super) async fn grant(State(state): State<Arc<ServerState>>) -> Response {
    let lease = state.leases.open();
    let is_ending = state.is_ending.subscribe();
    let guard = EndOnDrop { lease, state };
    let lines = futures_util::stream::unfold((Some(lease), guard), move |(first, guard)| {
        let mut is_ending = is_ending.clone();
        async move {
            if let Some(lease) = first {
                let line = serde_json::to_string(&Lease { lease }).map(|line| line + "\n");
                return Some((line, (None, guard)));
            }
            let _ = is_ending.wait_for(|is_ending| *is_ending).await;
            None
        }
    });
    (
        [("content-type", "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}
