//! The agents of a topology's nodes. Each runs in the network namespace of its node, keeps its
//! processes and groups under the node's control group, and serves a run directory of its own.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use myelin_dataplane::Deaths;
use myelin_emulator::{Network, NetworkHost};
use myelin_linux::cgroup::Limits;
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_linux::netns::Netns;
use myelin_linux::process::{PidFd, Signal, command_in_network};
use myelin_spec::NodeClock;

use crate::api::{ApiError, Client, NodeAgentStatus, NodeEventKind, RunDir};
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
/// Time without an answer after which an agent is silent. Also an agent with a small share of a
/// busy core answers in this time.
const SILENT_AFTER: Duration = Duration::from_secs(15);
/// Time without an answer after which a chain with a part on the node is not brought up again yet.
const PROMPT: Duration = Duration::from_secs(3);
/// Time without a second answer after which a silent agent is killed: the first answer may have
/// been late because the whole machine stood still.
const KILLED_AFTER: Duration = Duration::from_secs(10);
/// Time for which functions are placed elsewhere after the silence of an agent.
const DISTRUST: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);
/// Longest path of a Unix socket (`sun_path` without its last zero).
const MAX_SOCKET_PATH: usize = 107;

/// The agent of a node. Dropping the value kills the agent and removes everything that it made.
pub(crate) struct NodeAgent {
    topology: String,
    host: NetworkHost,
    run_dir: RunDir,
    cpus: Vec<u32>,
    /// The name of its clock, if that is not the machine's.
    clock: Option<String>,
    process: Mutex<NodeProcess>,
    faults: Mutex<Faults>,
}

/// The faults of a node's agent.
#[derive(Default)]
struct Faults {
    deaths: Deaths,
    /// How often the agent was started.
    starts: u32,
    /// The last fault, or why the agent is not started anew.
    last: Option<String>,
    /// Since when functions are placed on other nodes, because the agent was silent.
    silent_since: Option<Instant>,
    /// Whether the agent was killed for its silence, and has not been started anew.
    was_killed: bool,
    /// Whether the agent ended too often.
    has_failed: bool,
}

/// What a check of an agent found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It answers, or starts.
    Answers,
    /// It runs, and does not answer.
    Silent,
    /// It has ended.
    Ended,
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
            let is_own = spec.is_some_and(|spec| spec.clock == NodeClock::Own);
            let clock = is_own.then(|| format!("{}/{}", topology.name, host.name));
            let process = start(parts, &run_dir, &host, (&cpus, clock.as_deref()))?;
            nodes.push(Self {
                topology: topology.name.clone(),
                host,
                run_dir,
                cpus,
                clock,
                process: Mutex::new(process),
                faults: Mutex::default(),
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
        // Before the faults: a start anew locks the process first.
        let pid = self.pid();
        let faults = lock(&self.faults);
        NodeAgentStatus {
            run_dir: self.run_dir.path().display().to_string(),
            pid,
            restarts: faults.starts,
            fault: faults.last.clone(),
        }
    }

    /// How often the agent was started anew. A part of an earlier start is lost.
    pub(crate) fn starts(&self) -> u32 {
        lock(&self.faults).starts
    }

    /// Whether the agent ended too often, and is started anew only by a request.
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.faults).has_failed
    }

    /// Whether functions may be placed on the node.
    pub(crate) fn is_trusted(&self) -> bool {
        let faults = lock(&self.faults);
        let was_silent = faults
            .silent_since
            .is_some_and(|since| since.elapsed() < DISTRUST);
        !was_silent && !faults.has_failed
    }

    /// Asks the agent for a sign of life.
    pub(crate) fn check(&self) -> Health {
        self.ask(SILENT_AFTER)
    }

    /// Whether the agent runs and does not answer now.
    pub(crate) fn is_silent(&self) -> bool {
        self.ask(PROMPT) == Health::Silent
    }

    fn ask(&self, limit: Duration) -> Health {
        if self.pid().is_none() {
            return Health::Ended;
        }
        let asked = Instant::now();
        let client = self.connect_within(limit);
        let answer = client.and_then(|client| client.info());
        // An agent that starts or ends refuses the connection at once.
        match answer {
            Err(_) if asked.elapsed() >= limit => Health::Silent,
            _ => Health::Answers,
        }
    }

    fn record(&self, parts: &Parts, kind: NodeEventKind, text: String) {
        let node = (self.topology.as_str(), self.name());
        parts.node_events.record(node, None, kind, text);
    }

    /// Asks a silent agent again, and kills it if it does not answer.
    pub(crate) fn end_silent(&self, parts: &Parts) {
        let [first, again] = [SILENT_AFTER, KILLED_AFTER].map(|limit| limit.as_secs());
        let text = format!("the agent did not answer in {first} s, and is asked again");
        self.record(parts, NodeEventKind::Silent, text);
        match self.ask(KILLED_AFTER) {
            Health::Silent => {}
            Health::Answers => {
                let text = "the agent answers again".to_owned();
                return self.record(parts, NodeEventKind::Back, text);
            }
            Health::Ended => return,
        }
        let mut faults = lock(&self.faults);
        faults.silent_since = Some(Instant::now());
        faults.was_killed = true;
        faults.last = Some(format!(
            "it did not answer in {first} s, nor in {again} s when asked again, and was killed"
        ));
        drop(faults);
        tracing::warn!(
            node = self.name(),
            "the node's agent is silent: it is killed"
        );
        let _ = lock(&self.process).child.kill();
    }

    /// Starts an ended agent anew, unless it ends too often. Returns whether it runs.
    pub(crate) fn restart(&self, parts: &Parts) -> bool {
        let mut faults = lock(&self.faults);
        if faults.has_failed {
            return false;
        }
        let ends_too_often = faults.deaths.record_death(Instant::now());
        drop(faults);
        let started = if ends_too_often {
            Err(ApiError::failed("it ended too often"))
        } else {
            self.revive(parts)
        };
        let Err(error) = started else { return true };
        let mut faults = lock(&self.faults);
        let ends = ends_too_often || faults.deaths.record_failed_start();
        if ends && !faults.has_failed {
            faults.has_failed = true;
            tracing::error!(node = self.name(), %error, "the node's agent is no longer started anew");
            let text = format!(
                "{}: it is no longer started anew; see its log, then `up` a chain on the node",
                error.message
            );
            self.record(parts, NodeEventKind::Failed, format!("the agent: {text}"));
            faults.last = Some(text);
        }
        false
    }

    /// Connects to the agent.
    ///
    /// # Errors
    /// The agent has ended, or does not answer for [`SILENT_AFTER`].
    pub(crate) fn connect(&self) -> Result<Client, ApiError> {
        self.connect_within(SILENT_AFTER)
    }

    fn connect_within(&self, limit: Duration) -> Result<Client, ApiError> {
        Client::connect_within(&self.run_dir, limit)?.ok_or_else(|| {
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
        let fault = self.note_end(parts);
        process.recorded = None;
        let clock = self.clock.as_deref();
        *process = start(parts, &self.run_dir, &self.host, (&self.cpus, clock))?;
        drop(process);
        // Also of an agent that is not ready in time: it comes up later, without the parts.
        lock(&self.faults).starts += 1;
        self.wait_until_ready()?;
        let mut faults = lock(&self.faults);
        faults.has_failed = false;
        faults.deaths.record_start();
        drop(faults);
        let text = "the agent was started anew".to_owned();
        self.record(parts, NodeEventKind::Back, text);
        tracing::warn!(node = self.name(), fault, "started the node's agent anew");
        Ok(())
    }

    /// Records the end of the agent. Returns the reason.
    fn note_end(&self, parts: &Parts) -> String {
        let mut faults = lock(&self.faults);
        let was_killed = std::mem::take(&mut faults.was_killed);
        let reason = faults.last.clone().filter(|_| was_killed);
        let reason = reason.unwrap_or_else(|| "it had ended".to_owned());
        faults.last = Some(reason.clone());
        drop(faults);
        self.record(parts, NodeEventKind::Ended, format!("the agent: {reason}"));
        reason
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
    (cpus, clock): (&[u32], Option<&str>),
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
        .args(clock.into_iter().flat_map(|clock| ["--clock", clock]))
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
