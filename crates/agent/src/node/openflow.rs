//! The OpenFlow switches of a topology: Open vSwitch with its user-space datapath, from the
//! distribution's package, one pair of daemons for all switches of a topology.
//!
//! The daemons run in the network namespace of the switches, in a control group with a limit of
//! memory, as an unprivileged user who may change only links and send raw frames. Their files are
//! in a directory of the run directory. They reach their controllers through sockets of this
//! directory, at which the agent listens (`relay.rs`).
//!
//! If a daemon ends, both start anew. The database has the switches and their ports. The
//! controllers make the flows anew.

mod relay;

use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use myelin_dataplane::Deaths;
use myelin_emulator::{Network, OpenFlowPorts};
use myelin_linux::cgroup::Hierarchies;
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_linux::netns::Netns;
use myelin_spec::{Isolation, Limits, Topology};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::User;

use crate::api::{ApiError, ControllerState};
use crate::node::Parts;
use crate::node::confinement::{
    ConfinedProcess, Confinement, ConfinementSpec, GroupTurns, PATH, Program,
};
use crate::pool::lock;
use relay::Relay;

/// Number of the daemons.
const DAEMONS: usize = 2;
/// The user of the daemons.
const USER: &str = "nobody";
/// Memory of both daemons, with the flows that a controller makes.
const MEMORY_BYTES: u64 = 512 << 20;
const DATABASE_SOCKET: &str = "db.sock";
/// Names of the database's socket for programs in the directory of the daemons.
const DATABASE: &str = "unix:db.sock";
/// Longest wait for the daemons.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of the daemons' output that an error reads.
const MAX_LOG: u64 = 1 << 20;
/// Timeout of `ovs-vsctl`, which waits until the switches have their ports.
const TOOL_TIMEOUT: &str = "--timeout=20";
const PAUSE: Duration = Duration::from_millis(2);
/// The value of an optional column without a value.
const UNSET: &str = "[]";

/// The running OpenFlow switches of a topology. Dropping the value ends the daemons.
pub(crate) struct OpenFlow {
    // Fields drop in this order.
    /// By the name of the switch.
    relays: Vec<(String, Relay)>,
    daemons: Mutex<Vec<ConfinedProcess>>,
    confinement: Confinement,
    files: Files,
    faults: Mutex<Faults>,
    _directory: ResourceGuard,
}

/// The faults of the daemons.
#[derive(Default)]
struct Faults {
    deaths: Deaths,
    /// Whether they ended too often, and are no longer started anew.
    has_failed: bool,
}

/// Returns the version of Open vSwitch.
///
/// # Errors
/// Open vSwitch is not installed.
pub fn version() -> Result<String, ApiError> {
    let output = Command::new(find("ovs-vswitchd")?)
        .arg("--version")
        .output()
        .map_err(|error| ApiError::failed(format!("cannot run ovs-vswitchd: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Checks that the machine has Open vSwitch, if the topology needs it, before the agent makes
/// anything.
///
/// # Errors
/// Open vSwitch is not installed.
pub(crate) fn check(topology: &Topology) -> Result<(), ApiError> {
    let Some(name) = topology.controllers.keys().next() else {
        return Ok(());
    };
    version().map(drop).map_err(|error| {
        ApiError::failed(format!(
            "{}: topology `{}`, switch `{name}`: {error}",
            topology.place, topology.name
        ))
    })
}

fn find(program: &str) -> Result<PathBuf, ApiError> {
    let mut paths = PATH.split(':').map(|path| Path::new(path).join(program));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        ApiError::failed(format!(
            "an OpenFlow switch needs Open vSwitch, and {program} is not in {PATH}: install it with \
             `apt install openvswitch-switch`"
        ))
    })
}

impl OpenFlow {
    /// Starts the OpenFlow switches of a network, and waits until they have all ports.
    ///
    /// # Errors
    /// A daemon does not start, or refuses a port. The message has its last output.
    pub(crate) fn start(parts: &Parts, network: &Network) -> Result<Option<Self>, ApiError> {
        let Some(netns) = network.openflow_netns() else {
            return Ok(None);
        };
        let netns = Netns::open(&netns).map_err(ApiError::failed)?;
        let topology = &network.topology().name;
        let path = parts.run_dir.path().join(format!("{topology}.openflow"));
        let files = Files { path };
        let recorded = parts.journal.guard(Resource::Directory {
            path: files.path.clone(),
        });
        let recorded = recorded.map_err(ApiError::failed)?;
        files.create()?;
        let switches: Vec<OpenFlowPorts> = network.openflow().collect();
        let mut relays = Vec::with_capacity(switches.len());
        for switch in &switches {
            let socket = files.path.join(relay_socket(switch));
            let netns = match &switch.controller {
                myelin_spec::ControllerAddress::Host { host, .. } => {
                    let mut hosts = network.hosts();
                    let host = hosts.find(|other| other.name == *host);
                    host.map(|host| Netns::open(&host.netns)).transpose()
                }
                _ => Ok(None),
            };
            let netns = netns.map_err(ApiError::failed)?;
            let relay = Relay::start(&socket, switch.controller.clone(), netns)?;
            relays.push((switch.name.clone(), relay));
        }
        // Until here no other user can write to the directory.
        files.give_away()?;
        let has_memory = Hierarchies::detect().is_ok_and(|all| all.has_controller("memory"));
        let confinement = Confinement::create(
            &ConfinementSpec {
                // A killed agent's group may still exist.
                name: &format!("{topology}.openflow-{}", std::process::id()),
                parent_group: &parts.cgroup,
                isolation: Isolation::Process,
                limits: Limits {
                    memory_bytes: has_memory.then_some(MEMORY_BYTES),
                    ..Limits::default()
                },
                rootfs: None,
                user: None,
                netns: Some(&netns),
                turns: GroupTurns::default(),
            },
            &parts.run_dir,
            &parts.journal,
        )?;
        let started = Self {
            relays,
            daemons: Mutex::default(),
            confinement,
            files,
            faults: Mutex::default(),
            _directory: recorded,
        };
        started.run_daemons()?;
        started.files.configure(&switches, &started.confinement)?;
        Ok(Some(started))
    }

    /// Whether a daemon has ended and may start anew.
    pub(crate) fn must_restart(&self) -> bool {
        !lock(&self.faults).has_failed && !self.is_running()
    }

    /// Starts the daemons anew, unless they end too often.
    pub(crate) fn restart(&self) {
        let mut faults = lock(&self.faults);
        for mut daemon in lock(&self.daemons).drain(..).rev() {
            daemon.kill();
        }
        let ends_too_often = faults.deaths.record_death(Instant::now());
        let started = if ends_too_often {
            Err(self.files.failed("the daemons ended too often"))
        } else {
            // The server waits for its socket.
            let _ = fs::remove_file(self.files.path.join(DATABASE_SOCKET));
            self.run_daemons()
        };
        match started {
            Ok(()) => {
                faults.deaths.record_start();
                tracing::warn!("started the daemons of OpenFlow switches anew");
            }
            Err(error) => {
                faults.has_failed = ends_too_often || faults.deaths.record_failed_start();
                tracing::error!(%error, "cannot start the daemons of OpenFlow switches anew");
            }
        }
    }

    /// Whether both daemons run.
    fn is_running(&self) -> bool {
        lock(&self.daemons).len() == DAEMONS && !self.has_ended()
    }

    /// Starts both daemons, and waits for the database.
    fn run_daemons(&self) -> Result<(), ApiError> {
        let server = ["db".to_owned(), format!("--remote=p{DATABASE}")];
        self.spawn("ovsdb-server", "./db.ctl", &server)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.files.path.join(DATABASE_SOCKET).exists() {
            if self.has_ended() || Instant::now() > deadline {
                return Err(self.files.failed("ovsdb-server does not start"));
            }
            std::thread::sleep(PAUSE);
        }
        let database = [DATABASE.to_owned()];
        self.spawn("ovs-vswitchd", "./switch.ctl", &database)
    }

    fn spawn(&self, program: &str, control: &str, args: &[String]) -> Result<(), ApiError> {
        let own = [
            format!("--unixctl={control}"),
            format!("--user={USER}"),
            "-vconsole:err".to_owned(),
            "-vsyslog:off".to_owned(),
            "-vfile:off".to_owned(),
        ];
        let files = &self.files;
        // The user of the daemons may have replaced the file by a link or a pipe.
        let mut options = File::options();
        let log = options.append(true).custom_flags(O_NOFOLLOW | O_NONBLOCK);
        let log = log.open(files.log());
        let log = log.map_err(|error| files.failed(error))?;
        let program = Program {
            path: find(program)?,
            args: args.iter().chain(&own).map(Into::into).collect(),
            directory: Some(files.path.clone()),
            env: VARIABLES.map(|name| (name.into(), ".".into())).to_vec(),
            stderr: Some(log.into()),
            ..Program::default()
        };
        let daemon = self.confinement.spawn(program)?;
        lock(&self.daemons).push(daemon);
        Ok(())
    }

    fn has_ended(&self) -> bool {
        let mut daemons = lock(&self.daemons);
        daemons.iter_mut().any(|daemon| daemon.try_wait().is_some())
    }

    /// Returns whether a switch has reached its controller; `None`: it is no OpenFlow switch.
    pub(crate) fn state(&self, switch: &str) -> Option<ControllerState> {
        let (_, relay) = self.relays.iter().find(|(name, _)| name == switch)?;
        Some(if !self.is_running() {
            ControllerState::SwitchEnded
        } else if relay.is_connected() {
            ControllerState::Connected
        } else {
            ControllerState::Silent
        })
    }
}

impl Drop for OpenFlow {
    fn drop(&mut self) {
        for daemon in lock(&self.daemons).iter_mut().rev() {
            daemon.kill();
        }
    }
}

/// The variables with which Open vSwitch keeps all its files in its working directory.
const VARIABLES: [&str; 4] = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];

fn relay_socket(switch: &OpenFlowPorts) -> String {
    format!("{}.controller", bridge(switch))
}

/// The switch's name in Open vSwitch, and of an interface in its namespace.
fn bridge(switch: &OpenFlowPorts) -> String {
    format!("s{}", switch.position + 1)
}

/// The directory of the daemons, and the programs that use it.
struct Files {
    path: PathBuf,
}

impl Files {
    fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Makes the directory, the database and the log. Replaces those of a killed agent.
    fn create(&self) -> Result<(), ApiError> {
        let make = || {
            if self.path.exists() {
                fs::remove_dir_all(&self.path)?;
            }
            DirBuilder::new().mode(0o700).create(&self.path)?;
            File::create(self.log()).map(drop)
        };
        make().map_err(|error| self.failed(error))?;
        self.run(self.tool("ovsdb-tool")?.args(["create", "db"]))
            .map(drop)
    }

    /// Gives the directory to the user of the daemons.
    fn give_away(&self) -> Result<(), ApiError> {
        let user = User::from_name(USER).ok().flatten();
        let user = user.ok_or_else(|| self.failed(format!("there is no user `{USER}`")))?;
        let own = |path: &Path| lchown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()));
        let give = || {
            for entry in fs::read_dir(&self.path)? {
                own(&entry?.path())?;
            }
            own(&self.path)
        };
        give().map_err(|error| self.failed(error))
    }

    /// Makes the switches, and waits until they have all ports.
    fn configure(
        &self,
        switches: &[OpenFlowPorts],
        confinement: &Confinement,
    ) -> Result<(), ApiError> {
        // In the group, it ends with the daemons if the agent is killed.
        let tool = || {
            let mut command = self.tool("ovs-vsctl")?;
            confinement.join(&mut command)?;
            Ok::<_, ApiError>(command)
        };
        let mut command = tool()?;
        command.args([TOOL_TIMEOUT, &format!("--db={DATABASE}"), "init"]);
        command.args(["--", "set", "Open_vSwitch", "."]);
        command.args([
            "other_config:n-handler-threads=1",
            "other_config:n-revalidator-threads=1",
        ]);
        for switch in switches {
            let name = bridge(switch);
            command.args(["--", "add-br", &name, "--", "set", "Bridge", &name]);
            command.args(["datapath_type=netdev", "fail-mode=secure"]);
            // As Mininet numbers its switches.
            let number = switch.position + 1;
            command.arg(format!("other_config:datapath-id={number:016x}"));
            for (port, interface) in (1..).zip(&switch.interfaces) {
                command.args(["--", "add-port", &name, interface]);
                command.args(["--", "set", "Interface", interface]);
                command.arg(format!("ofport_request={port}"));
            }
            let target = format!("unix:{}", relay_socket(switch));
            command.args(["--", "set-controller", &name, &target]);
            command.args(["--", "set", "Controller", &name, "max_backoff=1000"]);
            command.arg("connection_mode=out-of-band");
        }
        self.run(&mut command)?;
        let mut command = tool()?;
        command.args([TOOL_TIMEOUT, &format!("--db={DATABASE}")]);
        let interfaces = switches.iter().flat_map(|switch| &switch.interfaces);
        let interfaces: Vec<&String> = interfaces.collect();
        for interface in &interfaces {
            command.args(["--", "get", "Interface", interface, "ofport", "error"]);
        }
        if interfaces.is_empty() {
            return Ok(());
        }
        let values = self.run(&mut command)?;
        let mut values = values.lines();
        for interface in interfaces {
            let (port, error) = (values.next(), values.next());
            let has_port = port.is_some_and(|port| port.parse().is_ok_and(|port: u32| port > 0));
            if !has_port || error != Some(UNSET) {
                let error = error.unwrap_or_default();
                return Err(self.failed(format!("the port {interface} was refused: {error}")));
            }
        }
        Ok(())
    }

    /// An installed program of Open vSwitch that works in the directory.
    fn tool(&self, program: &str) -> Result<Command, ApiError> {
        let mut command = Command::new(find(program)?);
        command.envs(VARIABLES.map(|name| (name, ".")));
        command.current_dir(&self.path);
        Ok(command)
    }

    /// The output of a tool.
    fn run(&self, command: &mut Command) -> Result<String, ApiError> {
        let program = Path::new(command.get_program()).to_owned();
        let output = command
            .output()
            .map_err(|error| self.failed(format!("cannot run {}: {error}", program.display())))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let messages = String::from_utf8_lossy(&output.stderr);
        Err(self.failed(format!(
            "{} failed ({}): {}",
            program.display(),
            output.status,
            messages.trim()
        )))
    }

    /// An error with the last output of the daemons.
    fn failed(&self, cause: impl Display) -> ApiError {
        const LAST_LINES: usize = 5;
        let mut log = String::new();
        let mut options = File::options();
        let opened = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK);
        if let Ok(file) = opened.open(self.log()) {
            let _ = file.take(MAX_LOG).read_to_string(&mut log);
        }
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n  ");
        let last = if last.is_empty() {
            String::new()
        } else {
            format!("; its last output:\n  {last}")
        };
        let path = self.path.display();
        ApiError::failed(format!("Open vSwitch in {path}: {cause}{last}"))
    }
}
