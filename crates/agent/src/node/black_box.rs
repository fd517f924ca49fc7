//! Black boxes (`kind: external`): programs that Myelin did not write, each in the sandbox of its
//! function, between two links. The agent starts, watches and restarts these programs, and ends
//! them with all their children.
//!
//! Each generation of a chain has its own black boxes. A packet that leaves a black box has no
//! generation stamp, so its link identifies the generation.

mod links;
mod path;
mod turns;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use myelin_dataplane::Deaths;
use myelin_linux::journal::Journal;
use myelin_linux::link::{self, LinkId};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::procfs;
use myelin_spec::{ExternalConfig, FunctionConfig, FunctionSpec, Isolation, ServiceChain, Space};

use crate::api::{ApiError, BlackBoxStatus, RunDir, SandboxStatus};
use crate::control::actuator;
use crate::node::confinement::{
    ConfinedProcess, Confinement, ConfinementSpec, Program, ProgramExit,
};
use crate::node::container;
use crate::node::log::Log;
use crate::node::sandbox::Sandbox;
use crate::pool::{Lease, Pool, lock};

/// Wait before the first restart of a program. The wait doubles after each further end.
const FIRST_RESTART_DELAY: Duration = Duration::from_millis(100);
/// Longest time between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_millis(300);
/// Time between two checks while a program starts or ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Capabilities in a container: a program may do everything with its own interfaces.
const CAPABILITIES: &[&str] = &["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK"];

/// Identifies a black box on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    pub(crate) position: u8,
}

/// All black boxes.
pub(crate) type BlackBoxes = Pool<Key, BlackBox>;
/// A generation's lease on its black box.
pub(crate) type BlackBoxLease = Lease<Key, BlackBox>;
pub(crate) use turns::BlackBoxTurns;

/// A black box and its resources. Dropping the value ends the program with all its children.
pub(crate) struct BlackBox {
    title: MessagePrefix,
    confinement: Arc<Confinement>,
    /// Whether the black box has limits or a container. Without them it has only a control group,
    /// which lists its processes.
    is_confined: bool,
    log_path: PathBuf,
    /// Whether the program ended too often and is no longer restarted.
    failed: Arc<AtomicBool>,
    turns: BlackBoxTurns,
    state: Mutex<BlackBoxState>,
}

/// The mutable state of a black box.
struct BlackBoxState {
    title: MessagePrefix,
    config: ExternalConfig,
    variables: BTreeMap<String, String>,
    /// The `PATH` for the host's executables; `None` for a container, which has its own files.
    search: Option<String>,
    confinement: Arc<Confinement>,
    netns: Netns,
    /// The near end of the link into the black box.
    near: LinkId,
    log: Log,
    program: Option<ConfinedProcess>,
    /// Whether the program is up. Before that, its end is an error of the deployment.
    is_supervised: bool,
    restarts: u64,
    deaths: Deaths,
    /// Exit status of the last process, and the last lines of its output.
    last_end: Option<String>,
    /// The time at which the next process starts.
    due: Option<Instant>,
    /// [`BlackBox::failed`], which is readable without the lock.
    failed: Arc<AtomicBool>,
}

/// The beginning of each message: the position in the chain file, the chain and the function.
#[derive(Debug, Clone)]
struct MessagePrefix(String);

impl MessagePrefix {
    fn of(chain: &str, function: &FunctionSpec) -> Self {
        let FunctionSpec { place, name, .. } = function;
        Self(format!("{place}: chain `{chain}`, function `{name}`"))
    }
}

impl fmt::Display for MessagePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that the machine has runc, the root file systems and the programs that a chain's
/// functions need, before the agent makes anything. Does not search root file systems for programs.
pub(crate) fn check(chain: &ServiceChain) -> Result<(), ApiError> {
    for function in &chain.functions {
        check_function(chain, function).map_err(|error| {
            ApiError::failed(format!(
                "{}: {error}",
                MessagePrefix::of(&chain.name, function)
            ))
        })?;
    }
    Ok(())
}

fn check_function(chain: &ServiceChain, function: &FunctionSpec) -> Result<(), ApiError> {
    let sandbox = &function.sandbox;
    let config = match &function.config {
        FunctionConfig::External(config) => Some(config),
        _ => None,
    };
    if sandbox.isolation == Isolation::Container {
        if config.is_some() || function.required_space() == Some(Space::User) {
            container::version()?;
        }
        if let Some(rootfs) = &sandbox.rootfs {
            container::list_rootfs_parts(Path::new(rootfs))?;
        }
    } else if let Some(config) = config {
        let search = path::search_path(&config.variables(&chain.name, &function.name));
        path::find_executable(&config.command[0], &search).map_err(ApiError::failed)?;
    }
    Ok(())
}

/// The resources of a node that black boxes need.
#[derive(Clone, Copy)]
pub(crate) struct BlackBoxDirs<'a> {
    pub(crate) run_dir: &'a RunDir,
    pub(crate) cgroup: &'a str,
    pub(crate) journal: &'a Journal,
}

impl BlackBox {
    /// Makes the confinement and the log of `function`'s program, and starts the program in
    /// `sandbox`.
    pub(crate) fn start(
        BlackBoxDirs {
            run_dir,
            cgroup,
            journal,
        }: BlackBoxDirs<'_>,
        (chain, function, config): (&str, &FunctionSpec, &ExternalConfig),
        turns: BlackBoxTurns,
        sandbox: &Sandbox,
    ) -> Result<Self, ApiError> {
        let key = turns.key;
        let title = MessagePrefix::of(chain, function);
        let failed = |error: &dyn fmt::Display| ApiError::failed(format!("{title}: {error}"));
        let variables = config.variables(chain, &function.name);
        let isolation = function.sandbox.isolation;
        let search = (isolation == Isolation::Process).then(|| path::search_path(&variables));
        let name = format!("{chain}.{}.{}", function.name, key.generation);
        let log = Log::create(run_dir, &name, journal)?;
        // The process number makes the name unique: a killed agent's group may still exist.
        let group = format!("{name}-{}-{}", std::process::id(), key.spi);
        let demand = ConfinementSpec {
            name: &group,
            parent_group: cgroup,
            isolation,
            limits: function.sandbox.limits,
            rootfs: function.sandbox.rootfs.as_ref().map(PathBuf::from),
            netns: Some(&sandbox.netns),
            user: None,
            turns: turns.demand(),
        };
        let netns = sandbox.netns.try_clone().map_err(|error| failed(&error))?;
        let confinement = Confinement::create(&demand, run_dir, journal);
        let confinement = Arc::new(confinement.map_err(|error| failed(&error))?);
        let mut state = BlackBoxState {
            title: title.clone(),
            config: config.clone(),
            variables,
            search,
            confinement: Arc::clone(&confinement),
            netns,
            near: sandbox.near.clone(),
            log,
            program: None,
            is_supervised: false,
            restarts: 0,
            deaths: Deaths::default(),
            last_end: None,
            due: None,
            failed: Arc::default(),
        };
        state.launch().map_err(|error| failed(&error))?;
        Ok(Self {
            log_path: state.log.path().to_owned(),
            failed: Arc::clone(&state.failed),
            is_confined: function.sandbox.demand().is_some(),
            turns: BlackBoxTurns {
                group: confinement.group_path().to_owned(),
                ..turns
            },
            confinement,
            state: Mutex::new(state),
            title,
        })
    }

    /// Waits until the program has taken its interfaces or its startup time is over.
    ///
    /// # Errors
    /// The program ends first, or the request is cancelled.
    pub(crate) fn wait_until_up(
        &self,
        started: Instant,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), ApiError> {
        let startup = Duration::from_nanos(lock(&self.state).config.startup_ns);
        while !lock(&self.state).is_up(started + startup)? {
            if is_cancelled() {
                return Err(ApiError::failed(format!(
                    "{}: cancelled while the program started: the client disconnected, or another request removes all chains",
                    self.title
                )));
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        lock(&self.state).is_supervised = true;
        Ok(())
    }

    /// Whether the program ended too often and is no longer restarted.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The container or the limits, if the black box has any.
    pub(crate) fn sandbox(&self) -> Option<SandboxStatus> {
        self.is_confined.then(|| self.confinement.status())
    }

    /// Returns the status for `ps`, without a process number during a restart.
    pub(crate) fn status(&self) -> BlackBoxStatus {
        let state = self.state.try_lock().ok();
        let state = state.as_deref();
        let pid = state.and_then(|state| state.program.as_ref().map(ConfinedProcess::pid));
        let usage = self.confinement.usage();
        BlackBoxStatus {
            pid,
            restarts: state.map_or(0, |state| state.restarts),
            last_end: state.and_then(|state| state.last_end.clone()),
            log: self.log_path.display().to_string(),
            resident_kib: pid
                .and_then(|pid| procfs::resident_bytes(pid).ok())
                .map_or(0, |bytes| bytes / 1024),
            cpu_s: usage.cpu_ns as f64 / 1e9,
            packets_out: 0,
            packets_back: 0,
        }
    }

    /// Restarts the program if it has ended. Returns true if the program is no longer restarted.
    pub(crate) fn restart_if_ended(&self) -> bool {
        let has_failed = lock(&self.state).restart_if_ended() == Some(ExitAction::Failed);
        if has_failed {
            tracing::error!(
                "{}: the program ended too often and is no longer restarted: see its output in {}; the chain is \
                `failed` until `myelin down`",
                self.title,
                self.log_path.display()
            );
        }
        has_failed
    }
}

impl Drop for BlackBox {
    fn drop(&mut self) {
        let Some(mut program) = lock(&self.state).program.take() else {
            return;
        };
        let end = || {
            program.terminate();
            let start = Instant::now();
            while program.try_wait().is_none() && start.elapsed() < TERM_TIMEOUT {
                std::thread::sleep(CHECK_INTERVAL);
            }
            if program.try_wait().is_none() {
                program.kill();
            }
        };
        self.turns.cores.without_turns(self, end);
    }
}

impl BlackBoxState {
    fn launch(&mut self) -> Result<(), ApiError> {
        let command = self.config.command_line();
        let path = match &self.search {
            Some(search) => path::find_executable(&command[0], search).map_err(ApiError::failed)?,
            None => PathBuf::from(&command[0]),
        };
        let pair =
            |(name, value): (&String, &String)| (OsString::from(name), OsString::from(value));
        let program = Program {
            path,
            args: command[1..].iter().map(OsString::from).collect(),
            name: (!command[0].contains('/')).then(|| command[0].clone()),
            env: self.variables.iter().map(pair).collect(),
            stdout: Some(self.log.handle()?),
            stderr: Some(self.log.handle()?),
            capabilities: CAPABILITIES,
            ..Program::default()
        };
        let program = self.program.insert(self.confinement.spawn(program)?);
        if let Some(core) = self.config.core {
            // Threads that the program starts later inherit the core.
            match actuator::bind(program.pid(), core) {
                Err(error) if !error.is_not_found() => return Err(ApiError::failed(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the program has taken its interfaces or has used up its startup time.
    ///
    /// # Errors
    /// The program has ended.
    fn is_up(&mut self, deadline: Instant) -> Result<bool, ApiError> {
        if let Some(ended) = self.program.as_mut().and_then(ConfinedProcess::try_wait) {
            return Err(ApiError::failed(format!(
                "{}: the program `{}` {ended}, but must run until SIGTERM; {}",
                self.title,
                self.config.command[0],
                self.log.describe_end()
            )));
        }
        // If the namespace is unreadable, the startup time decides.
        Ok(links::are_taken(&self.netns).unwrap_or(false) || Instant::now() >= deadline)
    }

    /// Records an end of the program, and restarts the program after the delay.
    fn restart_if_ended(&mut self) -> Option<ExitAction> {
        self.log.truncate();
        if self.failed.load(Ordering::Relaxed) || !self.is_supervised {
            return None;
        }
        if let Some(program) = &mut self.program {
            let ended = program.try_wait()?;
            self.program = None;
            return Some(self.record_exit(ended));
        }
        self.due.filter(|due| *due <= Instant::now())?;
        self.due = None;
        // Children of the old process may still run, and would disturb the new process.
        let launched = self.confinement.kill_all().and_then(|()| self.launch());
        self.restarts += 1;
        match launched {
            Ok(()) => None,
            Err(error) => Some(self.schedule_restart(error.message)),
        }
    }

    fn record_exit(&mut self, ended: ProgramExit) -> ExitAction {
        let end = format!("{ended}; {}", self.log.describe_end());
        self.schedule_restart(end)
    }

    /// Schedules the next restart, unless the program ended too often.
    fn schedule_restart(&mut self, end: String) -> ExitAction {
        tracing::warn!("{}: the program {end}", self.title);
        self.last_end = Some(end);
        if self.deaths.record_death(Instant::now()) {
            self.failed.store(true, Ordering::Relaxed);
            self.set_link_down();
            // The program's children could keep running and fill the log.
            if let Err(error) = self.confinement.kill_all() {
                tracing::error!(
                    "{}: cannot end the program's child processes: {error}",
                    self.title
                );
            }
            return ExitAction::Failed;
        }
        let doublings = self.deaths.count_recent().saturating_sub(1) as u32;
        self.due = Some(Instant::now() + FIRST_RESTART_DELAY * 2_u32.pow(doublings));
        ExitAction::WaitsForRestart
    }

    /// Sets the link down, because a bridge that the program made would forward without the
    /// program.
    fn set_link_down(&self) {
        let down =
            Netlink::open().and_then(|mut netlink| netlink.apply([link::set_down(&self.near)]));
        if let Err(error) = down {
            tracing::error!(
                "{}: cannot set the link down, so packets still reach the namespace of the black box: {error}",
                self.title
            );
        }
    }
}

/// The supervisor's action after a program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExitAction {
    WaitsForRestart,
    Failed,
}
