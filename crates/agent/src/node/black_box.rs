//! Black boxes (`kind: external`): programs that Myelin knows nothing of, each in the sandbox of its function, between two
//! links. Started, watched, started again, and ended with all that they started.
//!
//! A black box belongs to one generation of its chain, also when the next one has the same: what comes out of it does not tell which
//! generation it is of, but its links do.

mod links;
mod log;
mod path;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
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
use crate::node::black_box::log::Log;
use crate::node::confinement::{Confined, Confinement, Demand, Ended, Program};
use crate::node::container;
use crate::node::sandbox::Sandbox;
use crate::pool::{Lease, Pool, lock};

/// The wait before a program that ended is started again; twice as long after each further end.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How long one that is told to end may take.
const FAREWELL: Duration = Duration::from_millis(300);
/// How often it is looked at while it comes up.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What it may do in a container: everything with its own interfaces.
const CAPABILITIES: &[&str] = &["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK"];

/// Which black box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    pub(crate) position: u8,
}

/// All that are up.
pub(crate) type BlackBoxes = Pool<Key, BlackBox>;
/// A generation's share of its black box.
pub(crate) type BlackBoxLease = Lease<Key, BlackBox>;

/// A black box and what it was given. Dropping it ends it with all that it started.
pub(crate) struct BlackBox {
    title: Title,
    confinement: Arc<Confinement>,
    /// Whether that is more than a group to find all its processes by.
    is_confined: bool,
    log_path: PathBuf,
    state: Mutex<State>,
}

/// What changes in its life.
struct State {
    title: Title,
    config: ExternalConfig,
    variables: BTreeMap<String, String>,
    /// Where its executable is looked for on the host; `None` in a container, which has files of its own.
    search: Option<String>,
    confinement: Arc<Confinement>,
    netns: Netns,
    /// The near end of the link that leads to it.
    near: LinkId,
    log: Log,
    program: Option<Confined>,
    /// Set once it has come up; until then its end is an error of the deployment.
    is_supervised: bool,
    restarts: u64,
    deaths: Deaths,
    /// How the last one ended.
    last_end: Option<String>,
    /// When the next one is started.
    due: Option<Instant>,
    /// It kept ending and is not started again.
    failed: bool,
}

/// As messages name it: the place in the chain file, the chain and the function.
#[derive(Debug, Clone)]
struct Title(String);

impl Title {
    fn of(chain: &str, function: &FunctionSpec) -> Self {
        let FunctionSpec { place, name, .. } = function;
        Self(format!("{place}: chain `{chain}`, function `{name}`"))
    }
}

impl fmt::Display for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks what the functions of a chain need of the machine and can be looked for before anything is made: runc, root file
/// systems, programs. What is in a container is not looked at.
pub(crate) fn check(chain: &ServiceChain) -> Result<(), ApiError> {
    for function in &chain.functions {
        check_function(chain, function).map_err(|error| {
            ApiError::failed(format!("{}: {error}", Title::of(&chain.name, function)))
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
            container::parts_of(Path::new(rootfs))?;
        }
    } else if let Some(config) = config {
        let search = path::of(&config.variables(&chain.name, &function.name));
        path::find(&config.command[0], &search).map_err(ApiError::failed)?;
    }
    Ok(())
}

/// Where black boxes are made.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) run_dir: &'a RunDir,
    pub(crate) journal: &'a Journal,
}

impl BlackBox {
    /// Makes what the program of `function` needs in its sandbox, and starts it.
    pub(crate) fn start(
        Surroundings { run_dir, journal }: Surroundings<'_>,
        chain: &str,
        (function, config): (&FunctionSpec, &ExternalConfig),
        key: Key,
        sandbox: &Sandbox,
    ) -> Result<Self, ApiError> {
        let title = Title::of(chain, function);
        let failed = |error: &dyn fmt::Display| ApiError::failed(format!("{title}: {error}"));
        let variables = config.variables(chain, &function.name);
        let isolation = function.sandbox.isolation;
        let search = (isolation == Isolation::Process).then(|| path::of(&variables));
        let name = format!("{chain}.{}.{}", function.name, key.generation);
        let log = Log::create(run_dir, &name, journal)?;
        // Of this agent alone: one that was killed may have left a group that still stands.
        let group = format!("{name}-{}-{}", std::process::id(), key.spi);
        let demand = Demand {
            name: &group,
            isolation,
            limits: function.sandbox.limits,
            rootfs: function.sandbox.rootfs.as_ref().map(PathBuf::from),
            netns: Some(&sandbox.netns),
        };
        let netns = sandbox.netns.try_clone().map_err(|error| failed(&error))?;
        let confinement = Confinement::create(&demand, run_dir, journal);
        let confinement = Arc::new(confinement.map_err(|error| failed(&error))?);
        let mut state = State {
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
            failed: false,
        };
        state.launch().map_err(|error| failed(&error))?;
        Ok(Self {
            log_path: state.log.path().to_owned(),
            is_confined: function.sandbox.demand().is_some(),
            confinement,
            state: Mutex::new(state),
            title,
        })
    }

    /// Waits until it has taken its interfaces, or the time is over that it may need for that. An error if it ends before, or
    /// its chain is called off.
    pub(crate) fn await_up(
        &self,
        started: Instant,
        is_called_off: &dyn Fn() -> bool,
    ) -> Result<(), ApiError> {
        let startup = Duration::from_nanos(lock(&self.state).config.startup_ns);
        while !lock(&self.state).is_up(started + startup)? {
            if is_called_off() {
                return Err(ApiError::failed(format!(
                    "{}: called off while its program came up: whoever asked for it has gone, or everything is to be removed",
                    self.title
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        lock(&self.state).is_supervised = true;
        Ok(())
    }

    /// Whether it kept ending and is not started again.
    pub(crate) fn has_failed(&self) -> bool {
        // One that is being started again was not given up.
        self.state.try_lock().is_ok_and(|state| state.failed)
    }

    /// What it stands in, where that is a container or has limits.
    pub(crate) fn sandbox(&self) -> Option<SandboxStatus> {
        self.is_confined.then(|| self.confinement.status())
    }

    /// What `ps` shows. Of one that is being started again it shows no process.
    pub(crate) fn status(&self) -> BlackBoxStatus {
        let state = self.state.try_lock().ok();
        let state = state.as_deref();
        let pid = state.and_then(|state| state.program.as_ref().map(Confined::pid));
        let usage = self.confinement.usage();
        BlackBoxStatus {
            pid,
            restarts: state.map_or(0, |state| state.restarts),
            last_end: state.and_then(|state| state.last_end.clone()),
            log: self.log_path.display().to_string(),
            resident_kib: pid
                .and_then(|pid| procfs::memory(pid).ok())
                .map_or(0, |memory| memory.resident_bytes / 1024),
            cpu_s: usage.cpu_ns as f64 / 1e9,
            packets_out: 0,
            packets_back: 0,
        }
    }

    /// Starts it again if its program ended. True when it is given up for that.
    pub(crate) fn look_after(&self) -> bool {
        let gives_up = lock(&self.state).look_after() == Some(Fate::GivenUp);
        if gives_up {
            tracing::error!("{}: it is given up", self.title);
        }
        gives_up
    }
}

impl Drop for BlackBox {
    fn drop(&mut self) {
        let Some(mut program) = lock(&self.state).program.take() else {
            return;
        };
        program.terminate();
        let start = Instant::now();
        while program.try_wait().is_none() && start.elapsed() < FAREWELL {
            std::thread::sleep(LOOK_EVERY);
        }
        if program.try_wait().is_none() {
            program.kill();
        }
    }
}

impl State {
    fn launch(&mut self) -> Result<(), ApiError> {
        let command = self.config.command_line();
        let path = match &self.search {
            Some(search) => path::find(&command[0], search).map_err(ApiError::failed)?,
            None => PathBuf::from(&command[0]),
        };
        let pair =
            |(name, value): (&String, &String)| (OsString::from(name), OsString::from(value));
        let program = Program {
            path,
            args: command[1..].iter().map(OsString::from).collect(),
            name: (!command[0].contains('/')).then(|| command[0].clone()),
            env: self.variables.iter().map(pair).collect(),
            stdin: None,
            stdout: Some(self.log.handle()?),
            stderr: Some(self.log.handle()?),
            capabilities: CAPABILITIES,
            bring: false,
        };
        self.program = Some(self.confinement.spawn(program)?);
        Ok(())
    }

    /// Whether it has taken its interfaces, or has had the time for that.
    ///
    /// # Errors
    /// Its program has ended.
    fn is_up(&mut self, deadline: Instant) -> Result<bool, ApiError> {
        if let Some(ended) = self.program.as_mut().and_then(Confined::try_wait) {
            return Err(ApiError::failed(format!(
                "{}: its program `{}` {ended}, but must stay until it is told to end; {}",
                self.title,
                self.config.command[0],
                self.log.last_words()
            )));
        }
        // What cannot be seen is left to the time.
        Ok(links::are_taken(&self.netns).unwrap_or(false) || Instant::now() >= deadline)
    }

    /// Takes note of its end, starts it again when it is time.
    fn look_after(&mut self) -> Option<Fate> {
        self.log.keep_short();
        if self.failed || !self.is_supervised {
            return None;
        }
        if let Some(program) = &mut self.program {
            let ended = program.try_wait()?;
            self.program = None;
            return Some(self.ended(ended));
        }
        self.due.filter(|due| *due <= Instant::now())?;
        self.due = None;
        // Its children may have outlived it, and would be in the way of the next one.
        let launched = self.confinement.clear().and_then(|()| self.launch());
        self.restarts += 1;
        match launched {
            Ok(()) => None,
            Err(error) => Some(self.died(error.message)),
        }
    }

    fn ended(&mut self, ended: Ended) -> Fate {
        let words = format!("{ended}; {}", self.log.last_words());
        self.died(words)
    }

    fn died(&mut self, how: String) -> Fate {
        tracing::warn!("{}: its program {how}", self.title);
        self.last_end = Some(how);
        if self.deaths.record_death(Instant::now()) {
            self.failed = true;
            self.cut_off();
            // Its children would go on, and fill the log.
            if let Err(error) = self.confinement.clear() {
                tracing::error!("{}: what it started is still there: {error}", self.title);
            }
            return Fate::GivenUp;
        }
        let doublings = self.deaths.recent().saturating_sub(1) as u32;
        self.due = Some(Instant::now() + FIRST_WAIT * 2_u32.pow(doublings));
        Fate::WaitsForRestart
    }

    /// What it has set up in its namespace may forward without it.
    fn cut_off(&self) {
        let down = Netlink::open().and_then(|mut netlink| netlink.apply([link::down(&self.near)]));
        if let Err(error) = down {
            tracing::error!("{}: packets still reach its namespace: {error}", self.title);
        }
    }
}

/// What becomes of one whose program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    WaitsForRestart,
    GivenUp,
}
