//! Runs the programs of one function in a control group with limits: as host processes, or each as
//! an OCI container (`isolation`).
//!
//! The group holds all programs even if agent and programs misbehave. Removing the group ends the
//! programs. The group counts their resource usage over restarts.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use myelin_dataplane::{Launched, Launcher, WorkerConfig};
use myelin_linux::cgroup::{Cgroup, Limits as GroupLimits};
use myelin_linux::journal::{Journal, Resource, ResourceGuards};
use myelin_linux::netns::Netns;
use myelin_linux::process::{PidFd, Signal, command_in};
use myelin_linux::session::User;
use myelin_spec::{Isolation, Limits, units};

use crate::api::{ApiError, ExecRequest, RunDir, SandboxStatus};
use crate::control::actuator;
use crate::node::container::{Container, ContainerProgram};
use crate::pool::lock;

pub(crate) use myelin_linux::cgroup::Usage;

/// The default `PATH` of confined programs.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The description of a confinement.
#[derive(Debug)]
pub(crate) struct ConfinementSpec<'a> {
    /// A name that no other confinement of this run has or had: letters, digits, `-`, `.` and `_`.
    pub(crate) name: &'a str,
    /// The control group under which all groups of the agent lie.
    pub(crate) parent_group: &'a str,
    pub(crate) isolation: Isolation,
    pub(crate) limits: Limits,
    /// A directory with the container's files; by default the host's programs and libraries.
    pub(crate) rootfs: Option<PathBuf>,
    /// The network namespace of the programs. By default a container has an empty namespace, and a
    /// process has the agent's.
    pub(crate) netns: Option<&'a Netns>,
    /// The user whom the root of a container is on the machine; `None`: root.
    pub(crate) user: Option<&'a User>,
    pub(crate) turns: GroupTurns,
}

/// What a control group must permit so that its threads can take turns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupTurns {
    /// Real-time priorities.
    pub(crate) is_real_time: bool,
    /// The freezer.
    pub(crate) is_frozen: bool,
}

/// A program to start.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// The executable: a path, or a name that is looked up in the confinement's `PATH`.
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// The first word of the command line, if it differs from the path. Contains no slash.
    pub(crate) name: Option<String>,
    /// The working directory; `None` is `/`.
    pub(crate) directory: Option<PathBuf>,
    /// The environment, besides `PATH` and `HOME`.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Standard input; `None` is `/dev/null`, as for the outputs.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// Capabilities in a container, such as `CAP_NET_ADMIN`. A host process has the agent's.
    pub(crate) capabilities: &'static [&'static str],
    /// In a container: mount this executable from the host.
    pub(crate) mount_executable: bool,
    /// When it becomes true, the start of a container is interrupted: the confinement goes.
    pub(crate) is_ending: Arc<AtomicBool>,
}

/// The control group and container of one function's programs.
#[derive(Debug)]
pub(crate) struct Confinement {
    group: Cgroup,
    limits: Mutex<Limits>,
    /// Number of kills at the memory limit that the agent has reported.
    reported_oom_kills: AtomicU64,
    netns: Option<Netns>,
    container: Option<Container>,
    /// Removed newest first: runc processes, then the control group, then files.
    _resources: ResourceGuards,
}

/// A program that was started.
#[derive(Debug)]
pub(crate) struct ConfinedProcess {
    pid: u32,
    process: ProcessHandle,
}

#[derive(Debug)]
enum ProcessHandle {
    Child(Child),
    /// Not a child of the agent. `None`: the process ended before the agent opened its handle.
    Container(Option<PidFd>),
}

/// The exit status of a program. For containers the kernel reports the status since Linux 6.15, if
/// the agent opened the handle in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgramExit(pub(crate) Option<ExitStatus>);

impl Confinement {
    /// Creates the group and the container's files, and checks the root file system. On an error,
    /// leaves nothing behind.
    pub(crate) fn create(
        demand: &ConfinementSpec<'_>,
        run_dir: &RunDir,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let path = format!("{}/{}", demand.parent_group, demand.name);
        let container = match demand.isolation {
            Isolation::Process => None,
            Isolation::Container => Some(Container::plan(demand, run_dir, &path)?),
        };
        let mut resources: Vec<Resource> =
            container.iter().flat_map(Container::directories).collect();
        resources.push(Resource::Cgroup { path: path.clone() });
        resources.extend(container.as_ref().map(Container::runc_processes));
        let recorded = resources
            .into_iter()
            .map(|resource| journal.guard(resource));
        let recorded = recorded
            .collect::<Result<_, _>>()
            .map_err(ApiError::failed)?;
        let resources = ResourceGuards(recorded);
        let limits = GroupLimits {
            cpu_millicores: demand.limits.cpu_millicores,
            memory_bytes: demand.limits.memory_bytes,
            is_real_time: demand.turns.is_real_time,
        };
        let netns = demand.netns.map(Netns::try_clone).transpose();
        let mut group = actuator::create_group(&path, &limits).map_err(ApiError::failed)?;
        if demand.turns.is_frozen {
            actuator::freeze(&mut group, false).map_err(ApiError::failed)?;
        }
        Ok(Self {
            netns: netns.map_err(ApiError::failed)?,
            group,
            limits: Mutex::new(demand.limits),
            reported_oom_kills: AtomicU64::new(0),
            container,
            _resources: resources,
        })
    }

    /// Starts a program in the confinement. A container holds one program at a time, so the
    /// confinement first kills the processes of the previous program.
    pub(crate) fn spawn(&self, program: Program) -> Result<ConfinedProcess, ApiError> {
        match &self.container {
            Some(container) => container
                .run(program, &self.group, self.netns.as_ref())
                .map_err(|error| self.explain(error))
                .map(|(pid, handle)| ConfinedProcess {
                    pid,
                    process: ProcessHandle::Container(handle),
                }),
            None => self.spawn_process(program),
        }
    }

    /// Starts a further program in a running container, unless `is_ending` becomes true before.
    ///
    /// # Errors
    /// This is no container, or the program does not start.
    pub(crate) fn start_program(
        &self,
        request: &ExecRequest,
        descriptors: [OwnedFd; 3],
        is_ending: &AtomicBool,
    ) -> Result<ContainerProgram, ApiError> {
        let container = self.container.as_ref();
        let container = container.ok_or_else(|| ApiError::failed("this is no container"))?;
        let started = container.start_program(request, descriptors, is_ending);
        started.map_err(|error| self.explain(error))
    }

    fn spawn_process(&self, program: Program) -> Result<ConfinedProcess, ApiError> {
        let mut command = match &self.netns {
            Some(netns) => command_in(netns, &program.path).map_err(ApiError::failed)?,
            None => Command::new(&program.path),
        };
        self.group.join(&mut command).map_err(ApiError::failed)?;
        if let Some(name) = &program.name {
            command.arg0(name);
        }
        command
            .args(&program.args)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/")
            .envs(program.env)
            .stdin(stdio(program.stdin))
            .stdout(stdio(program.stdout))
            .stderr(stdio(program.stderr))
            .current_dir(program.directory.as_deref().unwrap_or(Path::new("/")))
            // With its own process group, Ctrl-C on a terminal reaches only the agent.
            .process_group(0);
        let child = command.spawn().map_err(|error| {
            ApiError::failed(format!(
                "cannot start {} in the control group {}: {error}",
                program.path.display(),
                self.group.path()
            ))
        })?;
        Ok(ConfinedProcess {
            pid: child.id(),
            process: ProcessHandle::Child(child),
        })
    }

    /// Returns the limits.
    pub(crate) fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// Changes the limits of the programs while they run. A limit of `None` stays as it is.
    pub(crate) fn limit(&self, changed: Limits) -> Result<(), ApiError> {
        let mut limits = lock(&self.limits);
        let group_limits = GroupLimits {
            cpu_millicores: changed.cpu_millicores,
            memory_bytes: changed.memory_bytes,
            is_real_time: false,
        };
        actuator::limit_group(&self.group, &group_limits).map_err(ApiError::failed)?;
        limits.cpu_millicores = changed.cpu_millicores.or(limits.cpu_millicores);
        limits.memory_bytes = changed.memory_bytes.or(limits.memory_bytes);
        Ok(())
    }

    /// Makes a command run in the control group.
    pub(crate) fn join(&self, command: &mut Command) -> Result<(), ApiError> {
        self.group.join(command).map_err(ApiError::failed)
    }

    /// The path of the control group below the root of each hierarchy.
    pub(crate) fn group_path(&self) -> &str {
        self.group.path()
    }

    /// Kills all processes in the confinement, including orphans of a program. Another program can
    /// start then.
    pub(crate) fn kill_all(&self) -> Result<(), ApiError> {
        self.group.remove_members().map_err(ApiError::failed)
    }

    /// Returns the resource usage of all programs since the confinement's creation, including ended
    /// programs.
    pub(crate) fn usage(&self) -> Usage {
        self.group.usage()
    }

    /// Returns the memory limit, if the kernel has killed a process that exceeded the limit since
    /// the last call.
    pub(crate) fn take_oom_limit(&self) -> Option<String> {
        let kills = self.usage().oom_kills;
        let reported = self.reported_oom_kills.swap(kills, Ordering::Relaxed);
        let limit = self.limits().memory_bytes?;
        (kills > reported).then(|| units::format_memory_bytes(limit))
    }

    /// Adds the memory limit to an error that the limit caused.
    pub(crate) fn explain(&self, error: impl fmt::Display) -> ApiError {
        match self.take_oom_limit() {
            Some(limit) => ApiError::failed(format!(
                "{error}: the kernel killed a process that exceeded its memory limit of {limit}; raise `limits.memory`"
            )),
            None => ApiError::failed(error),
        }
    }

    /// Returns the confinement's status for `ps`.
    pub(crate) fn status(&self) -> SandboxStatus {
        let (usage, limits) = (self.usage(), self.limits());
        SandboxStatus {
            isolation: if self.container.is_some() {
                Isolation::Container
            } else {
                Isolation::Process
            },
            cpu_limit_cores: limits.cpu_millicores.map(|limit| f64::from(limit) / 1e3),
            memory_limit_bytes: limits.memory_bytes,
            cpu_s: usage.cpu_ns as f64 / 1e9,
            memory_bytes: usage.memory_bytes,
            throttled_periods: usage.throttled_periods,
            throttled_s: usage.throttled_ns as f64 / 1e9,
            oom_kills: usage.oom_kills,
            container: self
                .container
                .as_ref()
                .map(|container| container.id().to_owned()),
        }
    }
}

impl ConfinedProcess {
    /// Process number on the host.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the exit status, or `None` while the process runs.
    pub(crate) fn try_wait(&mut self) -> Option<ProgramExit> {
        match &mut self.process {
            ProcessHandle::Child(child) => match child.try_wait() {
                Ok(None) => None,
                Ok(status) => Some(ProgramExit(status)),
                Err(_) => Some(ProgramExit(None)),
            },
            ProcessHandle::Container(None) => Some(ProgramExit(None)),
            ProcessHandle::Container(Some(handle)) => match handle.wait(Duration::ZERO) {
                Ok(false) => None,
                _ => Some(ProgramExit(handle.exit_status().map(ExitStatus::from_raw))),
            },
        }
    }

    /// Asks the process to end (SIGTERM).
    pub(crate) fn terminate(&self) {
        match &self.process {
            ProcessHandle::Child(child) => {
                // The agent has not reaped the child, so the kernel cannot reuse its PID.
                if let Ok(handle) = PidFd::open(child.id()) {
                    let _ = handle.signal(Signal::TERM);
                }
            }
            ProcessHandle::Container(Some(handle)) => {
                let _ = handle.signal(Signal::TERM);
            }
            ProcessHandle::Container(None) => {}
        }
    }

    /// Kills the process and waits for its end. In a container the children end too; the children
    /// of a host process end with the confinement.
    pub(crate) fn kill(&mut self) {
        const KILL_TIMEOUT: Duration = Duration::from_secs(5);
        match &mut self.process {
            ProcessHandle::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            ProcessHandle::Container(Some(handle)) => {
                let _ = handle.signal(Signal::KILL);
                let _ = handle.wait(KILL_TIMEOUT);
            }
            ProcessHandle::Container(None) => {}
        }
    }
}

/// Starts a worker in the confinement. The agent passes all resources to the worker, so the
/// worker's container has no capabilities and no network.
impl Launcher for Confinement {
    fn launch(&self, config: &WorkerConfig, control: OwnedFd) -> io::Result<Box<dyn Launched>> {
        let program = Program {
            path: config.exe.clone(),
            args: config.args.clone(),
            name: Some(config.process_name()),
            stdin: Some(control),
            stderr: Some(io::stderr().as_fd().try_clone_to_owned()?),
            mount_executable: true,
            ..Program::default()
        };
        let confined = self.spawn(program).map_err(io::Error::other)?;
        Ok(Box::new(confined))
    }
}

impl Launched for ConfinedProcess {
    fn pid(&self) -> u32 {
        ConfinedProcess::pid(self)
    }

    fn is_alive(&mut self) -> bool {
        self.try_wait().is_none()
    }

    fn kill(&mut self) {
        ConfinedProcess::kill(self);
    }
}

impl ProgramExit {
    /// Whether a signal ended the program, or its exit status is not 0. An end without a known
    /// status is no failure.
    pub(crate) fn has_failed(self) -> bool {
        self.0.is_some_and(|status| !status.success())
    }
}

impl fmt::Display for ProgramExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exited with status {code}"),
                (None, Some(signal)) => write!(f, "was killed by signal {signal}"),
                (None, None) => f.write_str("ended"),
            },
            None => f.write_str("ended"),
        }
    }
}

fn stdio(fd: Option<OwnedFd>) -> Stdio {
    fd.map_or_else(Stdio::null, Stdio::from)
}
