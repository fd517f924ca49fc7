//! The agents of a topology's nodes. Each runs in the network namespace of its node, keeps its
//! processes and groups under the node's control group, and serves a run directory of its own.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use myelin_emulator::{Network, NetworkHost};
use myelin_linux::cgroup::Limits;
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_linux::netns::Netns;
use myelin_linux::process::{PidFd, Signal, command_in_network};

use crate::api::{ApiError, Client, NodeAgentStatus, RunDir};
use crate::control::actuator;
use crate::node::Parts;
use crate::pool::lock;

/// The control group of the agent and of the node's other programs, below the node's group. The
/// agent's functions have groups beside this one: in cgroup v2 a group with processes has no
/// subgroups.
const PROGRAMS: &str = "programs";
/// Longest wait for the socket of a new agent.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for an agent that removes its chains.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for the kernel to end a killed agent.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);
/// Longest path of a Unix socket (`sun_path` without its last zero).
const MAX_SOCKET_PATH: usize = 107;

/// The agent of a node. Dropping the value kills the agent and removes everything that it made.
pub(crate) struct NodeAgent {
    host: NetworkHost,
    run_dir: RunDir,
    cpus: Vec<u32>,
    process: Mutex<NodeProcess>,
}

struct NodeProcess {
    child: Child,
    /// Removes what the agent leaves.
    recorded: Option<ResourceGuard>,
}

/// The control group of the programs of a node with this group.
pub(crate) fn programs_of(group: &str) -> String {
    format!("{group}/{PROGRAMS}")
}

impl NodeAgent {
    /// Starts the agents of all nodes, and waits until they answer. After a failure, none runs.
    ///
    /// # Errors
    /// An agent does not start. The message has the last line of its log.
    pub(crate) fn start_all(parts: &Parts, network: &Network) -> Result<Vec<Self>, ApiError> {
        let topology = network.topology();
        let mut nodes = Vec::new();
        for host in network.hosts().filter(|host| host.is_node) {
            let spec = topology.node(&host.name);
            let cpus = spec.map(|spec| spec.cpus.clone()).unwrap_or_default();
            let run_dir = parts.run_dir.of_node(&topology.name, &host.name);
            check_socket_path(&run_dir)?;
            let process = start(parts, &run_dir, &host, &cpus)?;
            nodes.push(Self {
                host,
                run_dir,
                cpus,
                process: Mutex::new(process),
            });
        }
        nodes.iter().try_for_each(Self::wait_until_ready)?;
        Ok(nodes)
    }

    /// Asks all agents to remove their chains and to end, and waits for them.
    pub(crate) fn stop_all(nodes: &[Self]) {
        for node in nodes {
            let mut process = lock(&node.process);
            // Until somebody waits for the child, the kernel does not reuse its number.
            if let Ok(None) = process.child.try_wait()
                && let Ok(handle) = PidFd::open(process.child.id())
            {
                let _ = handle.signal(Signal::TERM);
            }
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for node in nodes {
            while node.pid().is_some() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
            if node.pid().is_some() {
                tracing::warn!(
                    node = node.host.name,
                    "the node's agent does not end: it is killed"
                );
            }
        }
    }

    /// The node's name.
    pub(crate) fn name(&self) -> &str {
        &self.host.name
    }

    /// Process number; `None` if the agent has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        let mut process = lock(&self.process);
        let ended = process.child.try_wait();
        matches!(ended, Ok(None)).then(|| process.child.id())
    }

    /// Describes the agent.
    pub(crate) fn status(&self) -> NodeAgentStatus {
        NodeAgentStatus {
            run_dir: self.run_dir.path().display().to_string(),
            pid: self.pid(),
        }
    }

    /// Connects to the agent.
    ///
    /// # Errors
    /// The agent has ended, or does not answer.
    pub(crate) fn connect(&self) -> Result<Client, ApiError> {
        Client::connect(&self.run_dir)?.ok_or_else(|| {
            ApiError::failed(format!("the agent of the node `{}` has ended", self.name()))
        })
    }

    /// Whether the agent has ended. Waits a moment, because a killed process accepts connections
    /// until the kernel has ended it.
    pub(crate) fn has_ended(&self) -> bool {
        let deadline = Instant::now() + KILL_TIMEOUT;
        while self.pid().is_some() {
            let answers = self.connect().is_ok_and(|client| client.info().is_ok());
            if answers || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Starts the agent anew if it has ended. Removes what the ended agent left.
    ///
    /// # Errors
    /// The new agent does not start.
    pub(crate) fn revive(&self, parts: &Parts) -> Result<(), ApiError> {
        if !self.has_ended() {
            return Ok(());
        }
        let mut process = lock(&self.process);
        // Another request may have started it meanwhile.
        if matches!(process.child.try_wait(), Ok(None)) {
            return Ok(());
        }
        process.recorded = None;
        *process = start(parts, &self.run_dir, &self.host, &self.cpus)?;
        drop(process);
        self.wait_until_ready()
    }

    fn wait_until_ready(&self) -> Result<(), ApiError> {
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(self.run_dir.socket()).is_err() {
            if self.pid().is_none() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.run_dir.log()).unwrap_or_default();
                return Err(ApiError::failed(format!(
                    "the agent of the node `{}` did not start: {}",
                    self.name(),
                    log.lines().last().unwrap_or("the log is empty").trim()
                )));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the agent of a node. The caller waits for its socket.
fn start(
    parts: &Parts,
    run_dir: &RunDir,
    host: &NetworkHost,
    cpus: &[u32],
) -> Result<NodeProcess, ApiError> {
    let name = &host.name;
    let failed = |error: &dyn std::fmt::Display| {
        ApiError::failed(format!(
            "cannot start the agent of the node `{name}`: {error}"
        ))
    };
    let group = host
        .cgroup
        .as_deref()
        .ok_or_else(|| failed(&"no control group"))?;
    let recorded = parts.journal.guard(Resource::Agent {
        run_dir: run_dir.path().to_owned(),
    });
    let recorded = recorded.map_err(|error| failed(&error))?;
    std::fs::create_dir_all(run_dir.path()).map_err(|error| failed(&error))?;
    let log = File::create(run_dir.log()).map_err(|error| failed(&error))?;
    let programs = actuator::create_group(&programs_of(group), &Limits::default());
    let mut programs = programs.map_err(|error| failed(&error))?;
    if !cpus.is_empty() {
        actuator::set_cores(&mut programs, cpus).map_err(|error| failed(&error))?;
    }
    let netns = Netns::open(&host.netns).map_err(|error| failed(&error))?;
    let command = command_in_network(&netns, &parts.program);
    let mut command = command.map_err(|error| failed(&error))?;
    command
        .args(["agent", "--cgroup", group, "--run-dir"])
        .arg(run_dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0);
    programs
        .join(&mut command)
        .map_err(|error| failed(&error))?;
    let child = command.spawn().map_err(|error| failed(&error))?;
    Ok(NodeProcess {
        child,
        recorded: Some(recorded),
    })
}

fn check_socket_path(run_dir: &RunDir) -> Result<(), ApiError> {
    let socket = run_dir.socket();
    let len = socket.as_os_str().len();
    if len <= MAX_SOCKET_PATH {
        return Ok(());
    }
    Err(ApiError::failed(format!(
        "{}: the path of the socket has {len} bytes, and the kernel takes {MAX_SOCKET_PATH}: use shorter names, or a \
         shorter `--run-dir`",
        socket.display()
    )))
}
