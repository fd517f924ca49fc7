//! The agent's HTTP server on its Unix socket.
//!
//! The handlers only convert between HTTP and [`Engine`] calls. Each request is a blocking call on
//! its own thread. Requests that may wait (changes, measurements, queries to workers) have a
//! limited number of threads, so requests that only read always find a free one.

mod access;
mod container;
mod exec;
mod lease;
mod peer;
mod program;
mod query;
mod stream;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use tokio::net::UnixListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use self::lease::Leases;
use self::peer::Peer;
use self::query::{AFTER_QUERY, LAST_QUERY, query_number};
use self::stream::stream_events;
use crate::api::{
    self, AgentInfo, ApiError, CalibrateRequest, ChainStatus, ChainUp, CoreStatus, DownReply,
    ErrorKind, FunctionFlows, HostStatus, LinkRequest, NodeEvent, ProbeRequest, RunDir, RunRequest,
    SlaEvent, SlaSecond, SpanStatus, TextContents, TextRequest, TopologyLink, TopologyStatus,
    UpRequest,
};
use crate::deploy::UpOptions;
use crate::engine::Engine;
use crate::node::NodeOptions;

/// Longest request, bytes: a chain file and the files that it names. The longest route list takes
/// about 16 MiB.
const MAX_REQUEST: usize = 64 << 20;

/// Maximum number of requests that may wait at the same time.
const MAX_WAITING_REQUESTS: usize = 48;
/// Additional threads for requests that only read.
const READER_THREADS: usize = 16;
/// The group whose members have all rights, if it exists.
const GROUP: &str = "myelin";
/// Longest time for the last answers after the server begins to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of the server.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Stop after this time without chains. A client that starts an agent sets this time, so no
    /// agent stays on a machine without chains.
    pub idle_exit: Option<Duration>,
    /// The control group and the clock of the agent.
    pub node: NodeOptions,
}

struct ServerState {
    engine: Arc<Engine>,
    stop: Notify,
    /// Each request that may wait holds a permit.
    permits: Arc<Semaphore>,
    leases: Leases,
    /// Becomes true when the server begins to stop.
    is_ending: watch::Sender<bool>,
}

impl ServerState {
    /// Takes a permit for a request that may wait.
    fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            ApiError::failed(format!(
                "this agent already has its maximum of {MAX_WAITING_REQUESTS} waiting requests: try again later, or cancel all deployments with \
                 `myelin down --all`"
            ))
        })
    }
}

/// An error as an HTTP response.
struct HttpError(ApiError);

impl From<ApiError> for HttpError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            ErrorKind::Usage => StatusCode::BAD_REQUEST,
            ErrorKind::Refused => StatusCode::CONFLICT,
            ErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self.0)).into_response()
    }
}

/// Refuses clients of another version.
async fn check_version(request: Request, next: Next) -> Response {
    let version = request.headers().get(api::VERSION_HEADER);
    let version = version.and_then(|version| version.to_str().ok());
    let mut response = match api::check_client(version) {
        Ok(()) => next.run(request).await,
        Err(error) => HttpError(error).into_response(),
    };
    let version = HeaderValue::from_static(api::VERSION);
    response.headers_mut().insert(api::VERSION_HEADER, version);
    response
}

async fn not_found(method: Method, uri: Uri) -> HttpError {
    HttpError(ApiError::usage(format!(
        "the agent is version {} and lacks the request `{method} {uri}`: `myelin schema api` lists the requests; \
         for a request of a newer version use a newer agent",
        api::VERSION
    )))
}

/// Serves until a request, a signal or idleness stops the server.
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
        .max_blocking_threads(MAX_WAITING_REQUESTS + READER_THREADS)
        .build()
        .map_err(|error| {
            ApiError::failed(format!("cannot start the agent's event loop: {error}"))
        })?;
    runtime.block_on(run(run_dir, Arc::new(engine), options))
}

/// The requests of this version of the interface, below [`api::PREFIX`].
fn versioned_routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/agent", get(info))
        .route("/chains", get(list).post(up).delete(down_all))
        .route("/cores", get(cores))
        .route("/chains/{name}", delete(down))
        .route("/topologies", get(topologies))
        .route("/spans", get(spans))
        .route("/hosts/{*name}", get(host))
        .route("/links", post(change_link))
        .route("/events", get(events))
        .route("/events/{name}", get(events))
        .route("/node-events", get(node_events))
        .route("/flows", get(flows))
        .route("/flows/{name}", get(flows))
        .route("/seconds/{name}", get(seconds))
        .route("/texts", post(texts))
        .route("/leases", post(lease::grant))
        .route("/leases/{lease}", delete(lease::end))
        .route("/exec", post(exec::exec))
        .route("/containers", get(container::list).post(container::add))
        .route("/containers/limits", post(container::limit))
        .route("/containers/log", post(container::log))
        .route("/containers/remove", post(container::remove))
        .route("/images", get(container::images).post(container::import))
        .route("/images/{name}", delete(container::remove_image))
        .route("/probe", post(probe))
        .route("/run", post(run_chain))
        .route("/calibrate", post(calibrate))
}

async fn run(run_dir: &RunDir, engine: Arc<Engine>, options: ServeOptions) -> Result<(), ApiError> {
    let path = run_dir.socket();
    // This agent holds the lock on the run directory, so an existing socket is stale.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| {
        ApiError::failed(format!(
            "cannot make the agent's socket {}: {error}",
            path.display()
        ))
    })?;
    restrict_socket(&path)?;
    let state = Arc::new(ServerState {
        engine: Arc::clone(&engine),
        stop: Notify::new(),
        permits: Arc::new(Semaphore::new(MAX_WAITING_REQUESTS)),
        leases: Leases::default(),
        is_ending: watch::Sender::new(false),
    });
    let router = Router::new()
        .nest(api::PREFIX, versioned_routes())
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .layer(middleware::from_fn(check_version))
        // This path is the same in every version, so it skips the version check.
        .route(api::STOP, delete(stop))
        .layer(middleware::from_fn(peer::check_peer))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(Arc::clone(&state));
    tracing::info!(socket = %path.display(), "agent ready");
    let ending = Arc::new(Notify::new());
    let announce_end = Arc::clone(&ending);
    let service = router.into_make_service_with_connect_info::<Peer>();
    let served = axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            tokio::select! {
                () = state.stop.notified() => {}
                () = wait_for_signal() => {}
                () = wait_until_idle(Arc::clone(&state.engine), options.idle_exit) => {}
            }
            // The server ends after all requests are answered.
            state.engine.cancel_changes();
            state.is_ending.send_replace(true);
            announce_end.notify_one();
        })
        .into_future();
    // A client that has sent only half of its request must not delay the end.
    let stalled = async {
        ending.notified().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    let result = tokio::select! {
        result = served => result,
        () = stalled => Ok(()),
    };
    let _ = std::fs::remove_file(&path);
    // A normal end removes everything.
    let _ = tokio::task::spawn_blocking(move || engine.close()).await;
    result.map_err(|error| ApiError::failed(format!("the agent's socket failed: {error}")))
}

/// Limits the socket to root and, if it exists, the group `myelin`. With rules for other users,
/// every user may connect, and the rules decide about each request.
fn restrict_socket(path: &std::path::Path) -> Result<(), ApiError> {
    let group = nix::unistd::Group::from_name(GROUP).ok().flatten();
    let has_rules = access::path().exists();
    let mode = if let Some(group) = &group {
        nix::unistd::chown(path, None, Some(group.gid)).map_err(|error| {
            ApiError::failed(format!(
                "cannot give {} to group {GROUP}: {error}",
                path.display()
            ))
        })?;
        0o660
    } else {
        0o600
    };
    let mode = if has_rules { 0o666 } else { mode };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|error| ApiError::failed(format!("cannot restrict {}: {error}", path.display())))
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
}

async fn wait_until_idle(engine: Arc<Engine>, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(500).min(limit)).await;
        // The check may wait for a lock, and the agent must answer other clients meanwhile.
        let checked = Arc::clone(&engine);
        let busy = tokio::task::spawn_blocking(move || checked.is_busy()).await;
        if busy.unwrap_or(true) {
            since = Instant::now();
        } else if since.elapsed() >= limit {
            return;
        }
    }
}

/// Sets the flag when dropped, because the client has disconnected or has its answer.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work that may wait, under a permit, as [`run_blocking`] does.
async fn run_waiting<T: Send + 'static>(
    state: Arc<ServerState>,
    work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, HttpError> {
    let permit = state.acquire_permit()?;
    run_blocking(state, move |engine| {
        let _permit = permit;
        work(engine)
    })
    .await
}

/// Runs blocking work on a thread and returns its result as an answer.
async fn run_blocking<T: Send + 'static>(
    state: Arc<ServerState>,
    work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, HttpError> {
    let done = tokio::task::spawn_blocking(move || work(&state.engine)).await;
    let thread_failed = |error| ApiError::failed(format!("the request's thread failed: {error}"));
    Ok(Json(done.map_err(thread_failed)??))
}

async fn info(State(state): State<Arc<ServerState>>) -> Result<Json<AgentInfo>, HttpError> {
    run_blocking(state, |engine| Ok(engine.info())).await
}

async fn stop(State(state): State<Arc<ServerState>>) -> StatusCode {
    state.stop.notify_one();
    StatusCode::NO_CONTENT
}

async fn list(State(state): State<Arc<ServerState>>) -> Result<Json<Vec<ChainStatus>>, HttpError> {
    run_blocking(state, |engine| Ok(engine.list())).await
}

async fn cores(State(state): State<Arc<ServerState>>) -> Result<Json<Vec<CoreStatus>>, HttpError> {
    run_blocking(state, |engine| Ok(engine.cores())).await
}

async fn topologies(
    State(state): State<Arc<ServerState>>,
) -> Result<Json<Vec<TopologyStatus>>, HttpError> {
    run_blocking(state, |engine| Ok(engine.topologies())).await
}

async fn spans(State(state): State<Arc<ServerState>>) -> Result<Json<Vec<SpanStatus>>, HttpError> {
    run_waiting(state, |engine| Ok(engine.spans())).await
}

async fn host(
    State(state): State<Arc<ServerState>>,
    Path(name): Path<String>,
) -> Result<Json<HostStatus>, HttpError> {
    run_blocking(state, move |engine| {
        engine.find_host(&name).map(|host| host.status())
    })
    .await
}

async fn change_link(
    State(state): State<Arc<ServerState>>,
    Json(request): Json<LinkRequest>,
) -> Result<Json<TopologyLink>, HttpError> {
    run_waiting(state, move |engine| engine.change_link(&request)).await
}

async fn flows(
    State(state): State<Arc<ServerState>>,
    name: Option<Path<String>>,
) -> Result<Json<Vec<FunctionFlows>>, HttpError> {
    run_waiting(state, move |engine| engine.flows(chain_name(name.as_ref()))).await
}

async fn events(
    State(state): State<Arc<ServerState>>,
    name: Option<Path<String>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<SlaEvent>>, HttpError> {
    let after = query_number(query.as_deref(), AFTER_QUERY)?.unwrap_or(0);
    run_blocking(state, move |engine| {
        engine.events(chain_name(name.as_ref()), after)
    })
    .await
}

async fn node_events(
    State(state): State<Arc<ServerState>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<NodeEvent>>, HttpError> {
    let after = query_number(query.as_deref(), AFTER_QUERY)?.unwrap_or(0);
    run_blocking(state, move |engine| Ok(engine.node_events(after))).await
}

/// The chain at the end of a path; `None` asks for all chains.
fn chain_name(name: Option<&Path<String>>) -> Option<&str> {
    name.map(|Path(name)| name.as_str())
}

async fn seconds(
    State(state): State<Arc<ServerState>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<SlaSecond>>, HttpError> {
    let last = query_number(query.as_deref(), LAST_QUERY)?.unwrap_or(u64::MAX);
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    run_blocking(state, move |engine| engine.seconds(&name, last)).await
}

async fn texts(
    State(state): State<Arc<ServerState>>,
    Json(request): Json<TextRequest>,
) -> Result<Json<TextContents>, HttpError> {
    run_blocking(state, move |_| {
        let source = myelin_spec::Source::new(request.name);
        let objects = myelin_spec::parse_documents(&request.text, &source)?;
        let files = myelin_spec::referenced_files(&request.text).into_iter();
        let files = files.map(|file| api::NamedFile {
            path: file.path,
            is_secret: file.is_secret,
        });
        Ok(TextContents {
            objects,
            files: files.collect(),
        })
    })
    .await
}

async fn up(
    State(state): State<Arc<ServerState>>,
    Json(request): Json<UpRequest>,
) -> Result<Json<Vec<ChainUp>>, HttpError> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _client = CancelOnDrop(Arc::clone(&cancelled));
    let leases = state.leases.clone();
    run_waiting(state, move |engine| {
        let options = UpOptions {
            force: request.force,
            cancelled: Some(&cancelled),
            ..UpOptions::default()
        };
        match request.lease {
            None => engine.up(&request.source, options),
            Some(lease) => leases.up(lease, engine, &request.source, options),
        }
    })
    .await
}

async fn down(
    State(state): State<Arc<ServerState>>,
    Path(name): Path<String>,
) -> Result<Json<DownReply>, HttpError> {
    run_waiting(state, move |engine| engine.down(&name)).await
}

async fn down_all(State(state): State<Arc<ServerState>>) -> Result<Json<DownReply>, HttpError> {
    // Cancel first, because the cancelled requests may hold all threads for waiting requests.
    state.engine.cancel_changes();
    run_blocking(state, super::engine::Engine::down_all).await
}

async fn probe(
    State(state): State<Arc<ServerState>>,
    Json(request): Json<ProbeRequest>,
) -> Response {
    stream_events(state, move |engine, monitor| {
        engine.probe(&request, monitor)
    })
}

async fn run_chain(
    State(state): State<Arc<ServerState>>,
    Json(request): Json<RunRequest>,
) -> Response {
    stream_events(state, move |engine, monitor| engine.run(&request, monitor))
}

async fn calibrate(
    State(state): State<Arc<ServerState>>,
    Json(request): Json<CalibrateRequest>,
) -> Response {
    stream_events(state, move |engine, monitor| {
        engine.calibrate(&request, monitor)
    })
}
