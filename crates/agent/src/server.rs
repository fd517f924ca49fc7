//! The agent's HTTP server on its Unix socket.
//!
//! The handlers only translate: every piece of work is a blocking call into the [`Engine`] on a thread of its own. What may wait (a change,
//! a measurement, a question to a worker) has a limited number of threads, so that reading always finds one.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use tokio::net::UnixListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use crate::Monitor;
use crate::api::{
    self, AgentInfo, ApiError, CalibrateRequest, ChainStatus, ChainUp, DownReply, ErrorKind, Event,
    FunctionFlows, ProbeRequest, RunDir, RunRequest, SlaEvent, SlaSecond, UpRequest,
};
use crate::deploy::UpOptions;
use crate::engine::Engine;

/// Longest request, bytes: a chain file with the files that it names. The longest list of routes takes some 16 MiB.
const MAX_REQUEST: usize = 64 << 20;

/// Requests that may wait, at once.
const MOST_WAITING: usize = 48;
/// Threads beside those, for requests that only read.
const READERS: usize = 16;
/// How long a client may leave the events of its stream unread before its work is cancelled.
const UNREAD: Duration = Duration::from_secs(30);
/// How long the last answers may take once the agent is to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// How often a full stream is tried again.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// How the server ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServeOptions {
    /// Stop when no chain has been deployed for this long. An agent that a client started uses it, so that
    /// nothing stays behind on a machine where nobody runs a chain.
    pub idle_exit: Option<Duration>,
}

struct Shared {
    engine: Arc<Engine>,
    stop: Notify,
    /// Held by each request that may wait.
    may_wait: Arc<Semaphore>,
}

impl Shared {
    /// A place among the requests that may wait.
    fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.may_wait).try_acquire_owned().map_err(|_| {
            ApiError::failed(format!(
                "{MOST_WAITING} requests that wait for something are under way in this agent: try again when one has ended, or call \
                 off all deployments with `myelin down --all`"
            ))
        })
    }
}

/// An error as an answer.
struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            ErrorKind::Usage => StatusCode::BAD_REQUEST,
            ErrorKind::Refused => StatusCode::CONFLICT,
            ErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self.0)).into_response()
    }
}

/// Answers a client of this version, and tells any other that it is not.
async fn same_version(request: Request, next: Next) -> Response {
    let version = request.headers().get(api::VERSION_HEADER);
    let version = version.and_then(|version| version.to_str().ok());
    let mut response = match api::check_client(version) {
        Ok(()) => next.run(request).await,
        Err(error) => Refusal(error).into_response(),
    };
    let version = HeaderValue::from_static(api::VERSION);
    response.headers_mut().insert(api::VERSION_HEADER, version);
    response
}

async fn nothing(uri: Uri) -> Refusal {
    Refusal(ApiError::usage(format!("there is no `{uri}` here")))
}

/// Serves until stopped by a request, by a signal or by idleness.
///
/// # Errors
/// The socket cannot be made (another agent serves the directory, or no permission).
pub(crate) fn serve(
    run_dir: &RunDir,
    engine: Engine,
    options: ServeOptions,
) -> Result<(), ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MOST_WAITING + READERS)
        .build()
        .map_err(|error| {
            ApiError::failed(format!("cannot start the agent's event loop: {error}"))
        })?;
    runtime.block_on(run(run_dir, Arc::new(engine), options))
}

async fn run(run_dir: &RunDir, engine: Arc<Engine>, options: ServeOptions) -> Result<(), ApiError> {
    let path = run_dir.socket();
    // This agent holds the lock on the run directory, so a socket there is left over.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| {
        ApiError::failed(format!(
            "cannot make the agent's socket {}: {error}",
            path.display()
        ))
    })?;
    restrict(&path)?;
    let shared = Arc::new(Shared {
        engine: Arc::clone(&engine),
        stop: Notify::new(),
        may_wait: Arc::new(Semaphore::new(MOST_WAITING)),
    });
    let versioned = Router::new()
        .route("/agent", get(info))
        .route("/chains", get(list).post(up).delete(down_all))
        .route("/chains/{name}", delete(down))
        .route("/events", get(events))
        .route("/events/{name}", get(events))
        .route("/flows", get(flows))
        .route("/flows/{name}", get(flows))
        .route("/seconds/{name}", get(seconds))
        .route("/probe", post(probe))
        .route("/run", post(run_chain))
        .route("/calibrate", post(calibrate));
    let router = Router::new()
        .nest(api::PREFIX, versioned)
        .fallback(nothing)
        .layer(middleware::from_fn(same_version))
        // The same in every version, so no version is asked for.
        .route(api::STOP, delete(stop))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(Arc::clone(&shared));
    tracing::info!(socket = %path.display(), "agent ready");
    let ending = Arc::new(Notify::new());
    let is_ending = Arc::clone(&ending);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            tokio::select! {
                () = shared.stop.notified() => {}
                () = signalled() => {}
                () = idle(Arc::clone(&shared.engine), options.idle_exit) => {}
            }
            // The server ends when all requests are answered.
            shared.engine.call_off();
            is_ending.notify_one();
        })
        .into_future();
    // A client that has sent half a request does not delay the end.
    let stalled = async {
        ending.notified().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    let result = tokio::select! {
        result = served => result,
        () = stalled => Ok(()),
    };
    let _ = std::fs::remove_file(&path);
    // An ordinary end leaves a clean machine.
    let _ = tokio::task::spawn_blocking(move || engine.close()).await;
    result.map_err(|error| ApiError::failed(format!("the agent's socket failed: {error}")))
}

/// Root, and the group `myelin` where there is one.
fn restrict(path: &std::path::Path) -> Result<(), ApiError> {
    let group = nix::unistd::Group::from_name("myelin").ok().flatten();
    let mode = if let Some(group) = &group {
        nix::unistd::chown(path, None, Some(group.gid)).map_err(|error| {
            ApiError::failed(format!(
                "cannot give {} to group myelin: {error}",
                path.display()
            ))
        })?;
        0o660
    } else {
        0o600
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|error| ApiError::failed(format!("cannot restrict {}: {error}", path.display())))
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
}

async fn idle(engine: Arc<Engine>, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(500).min(limit)).await;
        // It waits for the node's lock, and the socket must be served meanwhile.
        let asked = Arc::clone(&engine);
        let busy = tokio::task::spawn_blocking(move || asked.is_busy()).await;
        if busy.unwrap_or(true) {
            since = Instant::now();
        } else if since.elapsed() >= limit {
            return;
        }
    }
}

/// Dropped when the client has gone, or has its answer: sets the flag.
struct Client(Arc<AtomicBool>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// As [`blocking`], for work that may wait.
async fn waiting<T: Send + 'static>(
    shared: Arc<Shared>,
    work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, Refusal> {
    let place = shared.place()?;
    blocking(shared, move |engine| {
        let _place = place;
        work(engine)
    })
    .await
}

/// Runs blocking work and turns its result into an answer.
async fn blocking<T: Send + 'static>(
    shared: Arc<Shared>,
    work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, Refusal> {
    let done = tokio::task::spawn_blocking(move || work(&shared.engine)).await;
    let cut_off = |error| ApiError::failed(format!("the agent's work was cut off: {error}"));
    Ok(Json(done.map_err(cut_off)??))
}

async fn info(State(shared): State<Arc<Shared>>) -> Result<Json<AgentInfo>, Refusal> {
    blocking(shared, |engine| Ok(engine.info())).await
}

async fn stop(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.stop.notify_one();
    StatusCode::NO_CONTENT
}

async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<ChainStatus>>, Refusal> {
    blocking(shared, |engine| Ok(engine.list())).await
}

async fn flows(
    State(shared): State<Arc<Shared>>,
    name: Option<Path<String>>,
) -> Result<Json<Vec<FunctionFlows>>, Refusal> {
    waiting(shared, move |engine| engine.flows(chain(name.as_ref()))).await
}

async fn events(
    State(shared): State<Arc<Shared>>,
    name: Option<Path<String>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<SlaEvent>>, Refusal> {
    let after = queried(query.as_deref(), AFTER)?.unwrap_or(0);
    blocking(shared, move |engine| {
        engine.events(chain(name.as_ref()), after)
    })
    .await
}

/// The chain that a path ends with; none where it asks for all of them.
fn chain(name: Option<&Path<String>>) -> Option<&str> {
    name.map(|Path(name)| name.as_str())
}

async fn seconds(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<SlaSecond>>, Refusal> {
    let last = queried(query.as_deref(), LAST)?.unwrap_or(u64::MAX);
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    blocking(shared, move |engine| engine.seconds(&name, last)).await
}

/// Queries with a number: of what, the word, and what the number is.
const AFTER: [&str; 3] = ["events", "after=SERIAL", "an event's number"];
const LAST: [&str; 3] = ["seconds", "last=COUNT", "how many seconds"];

/// The number of a query, where there is one.
fn queried(query: Option<&str>, [of, word, number]: [&str; 3]) -> Result<Option<u64>, ApiError> {
    let Some(query) = query else {
        return Ok(None);
    };
    let asked = query.split_once('=').filter(|(key, _)| {
        let expected = word.split_once('=');
        expected.is_some_and(|(expected, _)| expected == *key)
    });
    let asked = asked.and_then(|(_, text)| text.parse().ok());
    asked.map(Some).ok_or_else(|| {
        ApiError::usage(format!(
            "{of}: the query `{query}` is not understood: write `{word}`, with {number}"
        ))
    })
}

async fn up(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<UpRequest>,
) -> Result<Json<Vec<ChainUp>>, Refusal> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _client = Client(Arc::clone(&cancelled));
    waiting(shared, move |engine| {
        let options = UpOptions {
            force: request.force,
            cancelled: Some(&cancelled),
            ..UpOptions::default()
        };
        engine.up(&request.source, options)
    })
    .await
}

async fn down(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<Json<DownReply>, Refusal> {
    waiting(shared, move |engine| engine.down(&name)).await
}

async fn down_all(State(shared): State<Arc<Shared>>) -> Result<Json<DownReply>, Refusal> {
    // Here, since all threads that may wait can be waiting for what is called off.
    shared.engine.call_off();
    blocking(shared, super::engine::Engine::down_all).await
}

async fn probe(State(shared): State<Arc<Shared>>, Json(request): Json<ProbeRequest>) -> Response {
    stream(shared, move |engine, monitor| {
        engine.probe(&request, monitor)
    })
}

async fn run_chain(State(shared): State<Arc<Shared>>, Json(request): Json<RunRequest>) -> Response {
    stream(shared, move |engine, monitor| engine.run(&request, monitor))
}

async fn calibrate(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<CalibrateRequest>,
) -> Response {
    stream(shared, move |engine, monitor| {
        engine.calibrate(&request, monitor)
    })
}

/// Long work: its events go out one JSON object a line as they happen; when the client goes away, or reads nothing for long, the work is
/// told to stop.
fn stream(
    shared: Arc<Shared>,
    work: impl FnOnce(&Engine, &Monitor<'_>) -> Result<(), ApiError> + Send + 'static,
) -> Response {
    let place = match shared.place() {
        Ok(place) => place,
        Err(error) => return Refusal(error).into_response(),
    };
    let (sender, receiver) = mpsc::channel::<Event>(64);
    let cancelled = Arc::new(AtomicBool::new(false));
    let client = Client(Arc::clone(&cancelled));
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let emit = |event: Event| {
            if !send(&sender, event) {
                cancelled.store(true, Ordering::Relaxed);
            }
        };
        let monitor = Monitor {
            emit: &emit,
            cancelled: &cancelled,
        };
        if let Err(error) = work(&shared.engine, &monitor) {
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

/// Puts an event into a stream; false when the client has gone, or has read nothing for long. Progress that finds no room is
/// dropped: there is more to come.
fn send(sender: &mpsc::Sender<Event>, event: Event) -> bool {
    let since = Instant::now();
    let mut unsent = event;
    loop {
        unsent = match sender.try_send(unsent) {
            Ok(()) | Err(TrySendError::Full(Event::Progress { .. })) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(event)) => event,
        };
        if since.elapsed() > UNREAD {
            return false;
        }
        std::thread::sleep(TRY_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_the_number_that_is_asked_for_or_is_refused() {
        assert_eq!(queried(None, AFTER).unwrap(), None);
        assert_eq!(queried(Some("after=7"), AFTER).unwrap(), Some(7));
        assert_eq!(queried(Some("last=0"), LAST).unwrap(), Some(0));
        for query in ["", "after=7", "last", "last=", "last=-1", "last=1&after=2"] {
            let error = queried(Some(query), LAST).unwrap_err();
            assert!(error.message.contains("last=COUNT"), "{query}: {error:?}");
        }
    }
}
