//! The client's side of the agent's socket: what the command line and other Rust programs call.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::version::{PREFIX, STOP, VERSION, VERSION_HEADER, check_agent};
use crate::{
    AgentInfo, ApiError, CalibrateRequest, ChainStatus, ChainUp, DownReply, Event, FunctionFlows,
    ProbeRequest, RunDir, RunRequest, SlaEvent, SlaSecond, UpRequest,
};

/// How long a fresh agent may take until its socket answers.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long an agent may take to remove what is left when it stops.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long a killed agent may take until the kernel has ended it.
const DYING: Duration = Duration::from_secs(2);
/// An agent that a client started stops when no chain has been deployed for this long.
const IDLE_EXIT: &str = "60s";

/// A connection to the agent of one run directory; each call opens the socket anew.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    run_dir: RunDir,
}

impl Client {
    /// Connects to the agent that runs, if one does.
    ///
    /// # Errors
    /// `Ok(None)` when none runs; an error when one runs but its socket is not for this user.
    pub fn connect(run_dir: &RunDir) -> Result<Option<Self>, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ApiError::failed(format!("cannot start an event loop: {error}")))?;
        let client = Self {
            runtime,
            run_dir: run_dir.clone(),
        };
        match std::os::unix::net::UnixStream::connect(run_dir.socket()) {
            Ok(_) => Ok(Some(client)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(ApiError::failed(format!(
                    "{}: permission denied: the agent serves root and the group `myelin`; use sudo, or have \
                     root create that group and add you to it before the agent starts",
                    run_dir.socket().display()
                )))
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => Ok(None),
                // One that is there and cannot be spoken to is not the same as none.
                _ => Err(ApiError::failed(format!(
                    "{}: the agent's socket does not answer: {error}",
                    run_dir.socket().display()
                ))),
            },
        }
    }

    /// Connects, and starts an agent first when none runs.
    ///
    /// # Errors
    /// Not root and no agent runs; the agent did not come up (its last words are in the message).
    pub fn connect_or_start(run_dir: &RunDir, program: &Path) -> Result<Self, ApiError> {
        if let Some(client) = Self::connect(run_dir)? {
            return Ok(client);
        }
        if !nix::unistd::geteuid().is_root() {
            return Err(ApiError::failed(format!(
                "no agent runs at {} and only root can start one: use sudo, or start `sudo myelin agent` once",
                run_dir.path().display()
            )));
        }
        start_agent(run_dir, program)?;
        Self::connect(run_dir)?.ok_or_else(|| {
            ApiError::failed(format!(
                "the agent stopped right after it had started; see {}",
                run_dir.log().display()
            ))
        })
    }

    /// Who answers.
    pub fn info(&self) -> Result<AgentInfo, ApiError> {
        self.get("/agent")
    }

    /// The running chains.
    pub fn list(&self) -> Result<Vec<ChainStatus>, ApiError> {
        self.get("/chains")
    }

    /// The flows that the functions of one chain know, or of all of them.
    pub fn flows(&self, chain: Option<&str>) -> Result<Vec<FunctionFlows>, ApiError> {
        self.get(&of("/flows", chain))
    }

    /// Violations of contracts whose numbers are above `after`, of one chain or of all of them, in the order of their beginning.
    pub fn events(&self, chain: Option<&str>, after: u64) -> Result<Vec<SlaEvent>, ApiError> {
        self.get(&format!("{}?after={after}", of("/events", chain)))
    }

    /// The last seconds of a chain, at most so many, the oldest first.
    pub fn seconds(&self, chain: &str, most: usize) -> Result<Vec<SlaSecond>, ApiError> {
        self.get(&format!("/seconds/{chain}?last={most}"))
    }

    /// Deploys all chains of a file, or none.
    pub fn up(&self, request: &UpRequest) -> Result<Vec<ChainUp>, ApiError> {
        self.call(Method::POST, "/chains", Some(request))
    }

    /// Removes one chain.
    pub fn down(&self, chain: &str) -> Result<DownReply, ApiError> {
        self.call(Method::DELETE, &of("/chains", Some(chain)), None::<&()>)
    }

    /// Removes everything, what a killed agent left behind included, and stops the agent. One of another version is stopped
    /// without further words; what it had goes with it.
    pub fn down_all(&self) -> Result<DownReply, ApiError> {
        let agent = self.runtime.block_on(async {
            let response = self.send(Method::GET, "/", None::<&()>).await?;
            Ok(version_of(&response).map(str::to_owned))
        })?;
        let reply = if check_agent(agent.as_deref()).is_ok() {
            self.call(Method::DELETE, "/chains", None::<&()>)?
        } else {
            let agent = agent.map_or(String::new(), |agent| format!(" ({agent})"));
            DownReply {
                removed: vec![format!(
                    "an agent of another version{agent}, with all its chains"
                )],
                ..DownReply::default()
            }
        };
        self.stop()?;
        Ok(reply)
    }

    /// Probes a running chain.
    pub fn probe(
        &self,
        request: &ProbeRequest,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), ApiError> {
        self.stream("/probe", request, on_event)
    }

    /// Deploys, probes, reports, tears down.
    pub fn run(
        &self,
        request: &RunRequest,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), ApiError> {
        self.stream("/run", request, on_event)
    }

    /// Measures this machine's costs.
    pub fn calibrate(
        &self,
        request: &CalibrateRequest,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), ApiError> {
        self.stream("/calibrate", request, on_event)
    }

    /// Tells the agent, of whatever version, to remove everything and stop, and waits until it has: until nobody holds the run
    /// directory any more.
    pub fn stop(&self) -> Result<(), ApiError> {
        self.runtime.block_on(async {
            let response = self.send(Method::DELETE, STOP, None::<&()>).await?;
            succeeded(response).await.map(drop)
        })?;
        if self.ends_within(STOP_LIMIT) {
            return Ok(());
        }
        Err(ApiError::failed(format!(
            "the agent at {} does not end; its last words are in {}",
            self.run_dir.path().display(),
            self.run_dir.log().display()
        )))
    }

    /// Whether the agent that this client spoke to is no more; one that has been killed may take a moment to be gone, and accepts connections
    /// until then.
    pub fn has_ended(&self) -> bool {
        self.ends_within(DYING)
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.run_dir.is_served() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.call(Method::GET, path, None::<&()>)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ApiError> {
        self.runtime.block_on(async {
            let body = self.answer(method, path, body).await?;
            decode(&body.collect().await.map_err(lost)?.to_bytes())
        })
    }

    fn stream(
        &self,
        path: &str,
        request: &impl Serialize,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), ApiError> {
        self.runtime.block_on(async {
            let mut body = self.answer(Method::POST, path, Some(request)).await?;
            let mut pending = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(lost)?;
                pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = pending.drain(..=end).collect();
                    match decode(&line)? {
                        Event::Error(error) => return Err(error),
                        event => on_event(event),
                    }
                }
            }
            Ok(())
        })
    }

    /// What an agent of this version answers to a request.
    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Incoming, ApiError> {
        let path = format!("{PREFIX}{path}");
        let response = self.send(method, &path, body).await?;
        check_agent(version_of(&response))?;
        succeeded(response).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>, ApiError> {
        let socket = UnixStream::connect(self.run_dir.socket())
            .await
            .map_err(lost)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
            .await
            .map_err(lost)?;
        tokio::spawn(connection);
        let bytes = body.map_or(Ok(Vec::new()), serde_json::to_vec);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "myelin")
            .header("content-type", "application/json")
            .header(VERSION_HEADER, VERSION)
            .body(Full::new(Bytes::from(bytes.map_err(lost)?)))
            .map_err(lost)?;
        sender.send_request(request).await.map_err(lost)
    }
}

/// The path of one chain's, or of all chains'.
fn of(path: &str, chain: Option<&str>) -> String {
    chain.map_or_else(|| path.to_owned(), |chain| format!("{path}/{chain}"))
}

fn version_of(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get(VERSION_HEADER)?.to_str().ok()
}

/// The body of an answer; the error of one that tells one.
async fn succeeded(response: Response<Incoming>) -> Result<Incoming, ApiError> {
    let status = response.status();
    let body = response.into_body();
    if status.is_success() {
        return Ok(body);
    }
    let bytes = body.collect().await.map_err(lost)?.to_bytes();
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&bytes);
        ApiError::failed(format!("the agent answered {status}: {text}"))
    }))
}

fn lost(error: impl std::fmt::Display) -> ApiError {
    ApiError::failed(format!(
        "lost the agent: {error}; `myelin ps` tells whether it still runs"
    ))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::failed(format!(
            "the agent's answer is not understood ({error}): is it another build of version {VERSION}? \
             `myelin down --all` stops it"
        ))
    })
}

/// Starts `PROGRAM agent` in a session of its own, so that it outlives the client and its terminal.
fn start_agent(run_dir: &RunDir, program: &Path) -> Result<(), ApiError> {
    let failed = |what: &str, error: std::io::Error| {
        ApiError::failed(format!("cannot start the agent: {what}: {error}"))
    };
    std::fs::create_dir_all(run_dir.path())
        .map_err(|error| failed(&run_dir.path().display().to_string(), error))?;
    let log = std::fs::File::create(run_dir.log())
        .map_err(|error| failed(&run_dir.log().display().to_string(), error))?;
    let mut child = Command::new(program)
        .args(["agent", "--idle-exit", IDLE_EXIT, "--run-dir"])
        .arg(run_dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // A group of its own: an interrupt in the client's terminal is not meant for the agent.
        .process_group(0)
        .spawn()
        .map_err(|error| failed(&program.display().to_string(), error))?;
    let start = Instant::now();
    loop {
        if std::os::unix::net::UnixStream::connect(run_dir.socket()).is_ok() {
            return Ok(());
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || start.elapsed() > START_LIMIT {
            let words = std::fs::read_to_string(run_dir.log()).unwrap_or_default();
            return Err(ApiError::failed(format!(
                "the agent did not start: {}",
                words.lines().last().unwrap_or("it said nothing").trim()
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
