//! Streams the events of long work to a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{CancelOnDrop, HttpError, ServerState};
use crate::Monitor;
use crate::api::{ApiError, Event};
use crate::engine::Engine;

/// The agent cancels the work of a client that reads no event for this long.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts to send into a full stream.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Streams the events of long work, one JSON object a line. A client that disconnects or stops
/// reading cancels the work.
pub(super) fn stream_events(
    state: Arc<ServerState>,
    work: impl FnOnce(&Engine, &Monitor<'_>) -> Result<(), ApiError> + Send + 'static,
) -> Response {
    let permit = match state.acquire_permit() {
        Ok(permit) => permit,
        Err(error) => return HttpError(error).into_response(),
    };
    let (sender, receiver) = mpsc::channel::<Event>(64);
    let cancelled = Arc::new(AtomicBool::new(false));
    let client = CancelOnDrop(Arc::clone(&cancelled));
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let emit = |event: Event| {
            if !send_event(&sender, event) {
                cancelled.store(true, Ordering::Relaxed);
            }
        };
        let monitor = Monitor {
            emit: &emit,
            cancelled: &cancelled,
        };
        if let Err(error) = work(&state.engine, &monitor) {
            emit(Event::Error(error));
        }
    });
    let lines =
        futures_util::stream::unfold((receiver, client), |(mut receiver, client)| async move {
            let event = receiver.recv().await?;
            let line = serde_json::to_string(&event).map(|mut line| {
                line.push('\n');
                line
            });
            Some((line, (receiver, client)))
        });
    (
        [("content-type", "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}

/// Sends an event. Returns false if the client has disconnected or stopped reading. A progress
/// event that does not fit is dropped.
fn send_event(sender: &mpsc::Sender<Event>, event: Event) -> bool {
    let start = Instant::now();
    let mut unsent = event;
    loop {
        unsent = match sender.try_send(unsent) {
            Ok(()) | Err(TrySendError::Full(Event::Progress { .. })) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(event)) => event,
        };
        if start.elapsed() > UNREAD_TIMEOUT {
            return false;
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}
