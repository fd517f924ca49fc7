//! The client of the agent's API, for the command line and other Rust programs.

mod start;
mod transport;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use self::transport::{check_response, connection_error, version_of};
use crate::version::{PREFIX, STOP, check_agent};
use crate::{
    AgentInfo, ApiError, CalibrateRequest, ChainStatus, ChainUp, ContainerLimitsRequest,
    ContainerLog, ContainerName, ContainerRequest, ContainerStatus, CoreStatus, DownReply, Event,
    ExecRequest, ExecStream, FunctionFlows, HostStatus, ImageRequest, ImageStatus, LinkRequest,
    NodeEvent, ProbeRequest, RunDir, RunRequest, SlaEvent, SlaSecond, SpanStatus, TopologyLink,
    TopologyStatus, UpRequest, send_descriptors,
};

/// Longest wait for an agent that removes its chains and stops.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for the kernel to end a killed agent.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait for the answer to a request that only reads. Requests that change something and
/// streams take as long as they need.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// A client of the agent that serves one run directory. Each call opens a new connection.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    run_dir: RunDir,
    /// Longest wait for an answer that only reads.
    read_limit: Duration,
}

impl Client {
    /// Connects to a running agent.
    ///
    /// # Errors
    /// The agent runs, but its socket refuses this user, or it answers nothing. Without an agent,
    /// the result is `Ok(None)`.
    pub fn connect(run_dir: &RunDir) -> Result<Option<Self>, ApiError> {
        Self::connect_within(run_dir, READ_LIMIT)
    }

    /// Connects to a running agent, and waits no longer for any answer that only reads.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_within(
        run_dir: &RunDir,
        read_limit: Duration,
    ) -> Result<Option<Self>, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ApiError::failed(format!("cannot start an event loop: {error}")))?;
        let client = Self {
            runtime,
            run_dir: run_dir.clone(),
            read_limit,
        };
        // Fails at once if too many clients wait for the agent.
        let connected = client
            .runtime
            .block_on(UnixStream::connect(run_dir.socket()))
            .map(drop);
        match connected {
            Ok(()) => client.greet().map(|()| Some(client)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(ApiError::failed(format!(
                    "{}: permission denied: the agent serves root and the group `myelin`; use sudo, or have \
                    root create that group and add you to the group before the agent starts",
                    run_dir.socket().display()
                )))
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => Ok(None),
                // An agent runs but does not answer.
                _ => Err(ApiError::failed(format!(
                    "{}: the agent's socket does not answer: {error}",
                    run_dir.socket().display()
                ))),
            },
        }
    }

    /// Checks that the agent answers, so that no later request waits for a stopped process.
    fn greet(&self) -> Result<(), ApiError> {
        let answer = async { Ok(self.send(Method::GET, "/", None::<&()>).await) };
        // Other errors are those of the next request.
        let answer = self.runtime.block_on(self.within_limit(answer));
        answer.map(drop)
    }

    /// Waits for the answer to a request that only reads.
    async fn within_limit<T>(
        &self,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        if let Ok(answer) = tokio::time::timeout(self.read_limit, answer).await {
            return answer;
        }
        let socket = UnixStream::connect(self.run_dir.socket()).await;
        let peer = socket.and_then(|socket| socket.peer_cred());
        let pid = peer.ok().and_then(|peer| peer.pid());
        let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        Err(ApiError::failed(format!(
            "the agent (process {pid}) has not answered for {} s: `kill -CONT {pid}` lets a stopped process go on; `kill -KILL {pid}` \
             and then `myelin down --all` remove one that hangs; its log is {}",
            self.read_limit.as_secs(),
            self.run_dir.log().display()
        )))
    }

    /// Connects to a running agent, or starts one.
    ///
    /// # Errors
    /// No agent runs and the user is not root, or the new agent did not start. The message then has
    /// the last line of the agent's log.
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
        start::start_agent(run_dir, program)?;
        Self::connect(run_dir)?.ok_or_else(|| {
            ApiError::failed(format!(
                "the agent stopped right after its start; see the log {}",
                run_dir.log().display()
            ))
        })
    }

    /// Describes the agent.
    pub fn info(&self) -> Result<AgentInfo, ApiError> {
        self.get("/agent")
    }

    /// Lists the running chains.
    pub fn list(&self) -> Result<Vec<ChainStatus>, ApiError> {
        self.get("/chains")
    }

    /// Lists the cores whose workers take turns.
    pub fn cores(&self) -> Result<Vec<CoreStatus>, ApiError> {
        self.get("/cores")
    }

    /// Lists the flows of one chain's functions, or of all functions.
    pub fn flows(&self, chain: Option<&str>) -> Result<Vec<FunctionFlows>, ApiError> {
        self.get(&chain_path("/flows", chain))
    }

    /// Lists violations with a serial above `after`, of one chain or of all, by serial.
    pub fn events(&self, chain: Option<&str>, after: u64) -> Result<Vec<SlaEvent>, ApiError> {
        self.get(&format!("{}?after={after}", chain_path("/events", chain)))
    }

    /// Lists the events of the topologies' nodes with a serial above `after`, by serial.
    pub fn node_events(&self, after: u64) -> Result<Vec<NodeEvent>, ApiError> {
        self.get(&format!("/node-events?after={after}"))
    }

    /// Lists the last `limit` seconds of a chain, the oldest first.
    pub fn seconds(&self, chain: &str, limit: usize) -> Result<Vec<SlaSecond>, ApiError> {
        self.get(&format!("/seconds/{chain}?last={limit}"))
    }

    /// Deploys all chains of a file, or none.
    pub fn up(&self, request: &UpRequest) -> Result<Vec<ChainUp>, ApiError> {
        self.call(Method::POST, "/chains", Some(request))
    }

    /// Lists the running topologies.
    pub fn topologies(&self) -> Result<Vec<TopologyStatus>, ApiError> {
        self.get("/topologies")
    }

    /// Lists the running chains over nodes.
    pub fn spans(&self) -> Result<Vec<SpanStatus>, ApiError> {
        self.get("/spans")
    }

    /// Finds a host: `client`, `server`, the name of a topology's host or node, or one of them
    /// after `OBJECT/`.
    pub fn host(&self, name: &str) -> Result<HostStatus, ApiError> {
        self.get(&chain_path("/hosts", Some(name)))
    }

    /// Changes a link of a topology under traffic.
    pub fn change_link(&self, request: &LinkRequest) -> Result<TopologyLink, ApiError> {
        self.call(Method::POST, "/links", Some(request))
    }

    /// Runs a program on a host, with these descriptors as input, output and errors.
    ///
    /// # Errors
    /// No such host, or the agent refuses this user. The stream tells whether the program starts.
    pub fn exec(
        &self,
        request: &ExecRequest,
        descriptors: [BorrowedFd<'_>; 3],
    ) -> Result<ExecStream, ApiError> {
        let stream = self.runtime.block_on(async {
            let path = format!("{PREFIX}/exec");
            let response = self.send(Method::POST, &path, Some(request)).await?;
            check_agent(version_of(&response))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let _ = check_response(response).await?;
                return Err(connection_error("the agent runs no program"));
            }
            let upgraded = hyper::upgrade::on(response).await;
            let upgraded = upgraded.map_err(connection_error)?;
            let parts = upgraded.downcast::<TokioIo<UnixStream>>();
            let parts = parts.map_err(|_| connection_error("the stream is no socket"))?;
            let stream = parts.io.into_inner().into_std();
            stream.map_err(connection_error)
        })?;
        stream.set_nonblocking(false).map_err(connection_error)?;
        send_descriptors(&stream, descriptors).map_err(connection_error)?;
        Ok(ExecStream::new(stream))
    }

    /// Lists the containers of all hosts.
    pub fn containers(&self) -> Result<Vec<ContainerStatus>, ApiError> {
        self.get("/containers")
    }

    /// Starts a container in a host.
    pub fn add_container(&self, request: &ContainerRequest) -> Result<ContainerStatus, ApiError> {
        self.call(Method::POST, "/containers", Some(request))
    }

    /// Changes limits of a container.
    pub fn limit_container(
        &self,
        request: &ContainerLimitsRequest,
    ) -> Result<ContainerStatus, ApiError> {
        self.call(Method::POST, "/containers/limits", Some(request))
    }

    /// Reads the output of a container.
    pub fn container_log(&self, container: &ContainerName) -> Result<ContainerLog, ApiError> {
        self.call(Method::POST, "/containers/log", Some(container))
    }

    /// Ends a container and removes it.
    pub fn remove_container(&self, container: &ContainerName) -> Result<DownReply, ApiError> {
        self.call(Method::POST, "/containers/remove", Some(container))
    }

    /// Lists the stored images.
    pub fn images(&self) -> Result<Vec<ImageStatus>, ApiError> {
        self.get("/images")
    }

    /// Stores the image of an archive.
    pub fn import_image(&self, request: &ImageRequest) -> Result<ImageStatus, ApiError> {
        self.call(Method::POST, "/images", Some(request))
    }

    /// Removes a stored image.
    pub fn remove_image(&self, name: &str) -> Result<DownReply, ApiError> {
        let path = chain_path("/images", Some(name));
        self.call(Method::DELETE, &path, None::<&()>)
    }

    /// Removes one chain or topology.
    pub fn down(&self, chain: &str) -> Result<DownReply, ApiError> {
        let path = chain_path("/chains", Some(chain));
        self.call(Method::DELETE, &path, None::<&()>)
    }

    /// Removes all chains and the objects of a killed agent, and stops the agent. Also stops an
    /// agent of another version, which then removes its own chains.
    pub fn down_all(&self) -> Result<DownReply, ApiError> {
        let agent = self.runtime.block_on(async {
            let response = self.send(Method::GET, "/", None::<&()>).await?;
            Ok::<_, ApiError>(version_of(&response).map(str::to_owned))
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

    /// Deploys, probes, reports and removes chains.
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

    /// Stops an agent of any version, and waits until it has removed its chains and ended.
    pub fn stop(&self) -> Result<(), ApiError> {
        self.runtime.block_on(async {
            let response = self.send(Method::DELETE, STOP, None::<&()>).await?;
            check_response(response).await.map(drop)
        })?;
        if self.wait_for_end(STOP_LIMIT) {
            return Ok(());
        }
        Err(ApiError::failed(format!(
            "the agent at {} does not end; see the log {}",
            self.run_dir.path().display(),
            self.run_dir.log().display()
        )))
    }

    /// Whether the agent has ended. Waits a moment, because a killed agent accepts connections
    /// until the kernel has ended its process.
    pub fn has_ended(&self) -> bool {
        self.wait_for_end(KILL_LIMIT)
    }

    fn wait_for_end(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.run_dir.is_served() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// Builds the path for one chain, or for all chains.
fn chain_path(path: &str, chain: Option<&str>) -> String {
    chain.map_or_else(|| path.to_owned(), |chain| format!("{path}/{chain}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// An agent that answers this number of requests, then none.
    fn agent_that_stops_after(answers: usize) -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().expect("a directory");
        let run_dir = RunDir::resolve(Some(dir.path()));
        let listener = UnixListener::bind(run_dir.socket()).expect("a socket");
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for socket in listener.incoming() {
                let mut socket = socket.expect("a client");
                if kept.len() < 2 * answers {
                    // The client connects once without a request.
                    let mut head = [0; 4096];
                    if socket.read(&mut head).is_ok_and(|bytes| bytes > 0) {
                        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                        socket.write_all(answer).expect("the answer");
                    }
                }
                kept.push(socket);
            }
        });
        (dir, run_dir)
    }

    fn assert_tells_of_this_process(error: &ApiError) {
        let text = error.to_string();
        let remedy = format!("`kill -CONT {}`", std::process::id());
        assert!(
            text.contains("has not answered") && text.contains(&remedy),
            "{text}"
        );
    }

    #[test]
    fn no_client_waits_for_ever_for_a_stopped_agent() {
        let limit = Duration::from_millis(200);
        let (_dir, run_dir) = agent_that_stops_after(0);
        let error = Client::connect_within(&run_dir, limit).err();
        assert_tells_of_this_process(&error.expect("no answer"));

        let (_dir, run_dir) = agent_that_stops_after(1);
        let client = Client::connect_within(&run_dir, limit).expect("the first answer");
        let error = client.expect("an agent").list().expect_err("no answer");
        assert_tells_of_this_process(&error);
    }
}
