//! Open vSwitch with its user-space datapath, from the distribution's package, private to an
//! experiment.
//!
//! The daemons run in an unnamed network namespace, with database, sockets and logs in memory, and
//! end with this process. They do not affect the machine's services or a user's switch.

pub(crate) mod variant;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use myelin_linux::{affinity, process};

use crate::Error;
use crate::installed::find_program;
use crate::owned_child::OwnedChild;
use crate::scratch::ScratchDirectory;

/// Longest time from the start of the daemons to a switch with all ports. DPDK takes a second or
/// two.
const START_LIMIT: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(10);
/// Timeout of a tool, seconds.
const TOOL_LIMIT: &str = "--timeout=10";
/// Debian and Ubuntu package two builds of the daemon, and `ovs-vswitchd` may be either.
const DPDK_DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const BRIDGE: &str = "bridge";
/// The value of an optional column without a value.
const UNSET: &str = "[]";

/// How the switch drives its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Packet sockets, in a thread that sleeps.
    System,
    /// AF_XDP sockets, in a thread that polls.
    AfXdp,
    /// DPDK's net_af_xdp driver, in a thread that polls.
    Dpdk,
}

impl Ports {
    pub(crate) const ALL: [Self; 3] = [Self::System, Self::AfXdp, Self::Dpdk];

    /// The switch's name of the port type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::AfXdp => "afxdp",
            Self::Dpdk => "dpdk",
        }
    }

    /// Its name in errors and rows.
    fn peer_name(self) -> String {
        format!("Open vSwitch with {} ports", self.name())
    }

    fn daemon(self) -> Result<PathBuf, Error> {
        if self != Self::Dpdk {
            return find_program("ovs-vswitchd").ok_or_else(|| self.missing("openvswitch-switch"));
        }
        let debian = PathBuf::from(DPDK_DAEMON);
        let has_dpdk = |daemon: &PathBuf| {
            let output = Command::new(daemon).arg("--version").output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("DPDK"))
        };
        [Some(debian), find_program("ovs-vswitchd")]
            .into_iter()
            .flatten()
            .find(has_dpdk)
            .ok_or_else(|| self.missing("openvswitch-switch-dpdk"))
    }

    fn missing(self, package: &str) -> Error {
        self.unavailable(format!(
            "it is not installed; Debian's and Ubuntu's package is {package}"
        ))
    }

    fn unavailable(self, reason: impl Into<String>) -> Error {
        Error::Peer {
            peer: self.peer_name(),
            reason: reason.into(),
        }
    }

    /// Makes `ovs-vsctl` add a link as port `number`.
    fn add_port(self, command: &mut Command, link: &str, number: usize) {
        let name = self.port_name(link);
        command.args(["--", "add-port", BRIDGE, &name]);
        command.args(["--", "set", "Interface", &name]);
        command.arg(format!("ofport_request={number}"));
        match self {
            Self::System => {}
            Self::AfXdp => {
                command.args(["type=afxdp", "options:xdp-mode=native"]);
            }
            Self::Dpdk => {
                command.arg("type=dpdk").arg(format!(
                    "options:dpdk-devargs=\"net_af_xdp{number},iface={link},busy_budget=0\""
                ));
            }
        }
    }

    /// A DPDK device has another name than its link.
    fn port_name(self, link: &str) -> String {
        match self {
            Self::System | Self::AfXdp => link.to_owned(),
            Self::Dpdk => format!("dpdk-{link}"),
        }
    }

    /// Makes `ovs-vsctl` change settings of the switch.
    fn set(self, command: &mut Command, core: usize) {
        // The switch is stopped while others are measured, and flows must not expire meanwhile.
        command.arg("other_config:max-idle=3600000");
        // Each flow enters the exact-match cache with its first packet, not with one in a hundred.
        command.arg("other_config:emc-insert-inv-prob=1");
        if self != Self::System {
            let mask = 1_u128 << (core % 128);
            command.arg(format!("other_config:pmd-cpu-mask=\"{mask:#x}\""));
        }
        if self == Self::Dpdk {
            // Ports over AF_XDP need no hugepages. Without `--legacy-mem` the switch would add
            // `--in-memory`, which DPDK refuses together with `--no-huge`. Without `--no-pci` it
            // would probe the machine's devices.
            command.args([
                "other_config:dpdk-init=true",
                "other_config:dpdk-extra=\"--no-huge --legacy-mem --no-pci --no-shconf \
                 --no-telemetry -m 256\"",
            ]);
        }
    }
}

/// A switch with one bridge. A drop ends it.
#[derive(Debug)]
pub(crate) struct Switch {
    names: Vec<String>,
    // Fields drop in this order.
    daemon: OwnedChild,
    database: OwnedChild,
    files: SwitchFiles,
}

impl Switch {
    /// Starts a switch with these links of the namespace as ports, numbered from 1. It runs on
    /// `core`. Several switches may start at the same time, until [`Switch::wait_until_ready`].
    pub(crate) fn start(
        ports: Ports,
        netns: &Netns,
        links: &[&str],
        core: usize,
    ) -> Result<Self, Error> {
        let program = ports.daemon()?;
        let files = SwitchFiles {
            ports,
            directory: ScratchDirectory::new()?,
        };
        let mut command = files.tool("ovsdb-tool")?;
        files.run(command.arg("create").arg(files.at("db")))?;
        let mut command = files.tool("ovsdb-server")?;
        command
            .arg(files.at("db"))
            .arg(format!("--remote=p{}", files.database()))
            .arg(format!("--unixctl={}", files.at("db.ctl")));
        let database = files.start(command)?;
        files.configure(links, core)?;

        // In the mount namespace of this command, an AF_XDP library finds no eBPF file system, so
        // it leaves no dispatcher behind.
        let mut command = process::command_in(netns, program)?;
        command
            .arg(files.database())
            .arg(format!("--unixctl={}", files.at("switch.ctl")));
        let daemon = files.start(command)?;
        if ports == Ports::System {
            affinity::set(daemon.pid(), &[core])?;
        }
        Ok(Self {
            names: links.iter().map(|link| ports.port_name(link)).collect(),
            daemon,
            database,
            files,
        })
    }

    /// Waits until all ports exist.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            if let Some(why) = self
                .daemon
                .end_reason()
                .or_else(|| self.database.end_reason())
            {
                return Err(self.files.ports.unavailable(why));
            }
            if self.has_all_ports()? {
                return Ok(());
            }
            if start.elapsed() > START_LIMIT {
                let messages = self.daemon.last_messages();
                return Err(self.files.ports.unavailable(format!(
                    "its ports do not exist after {START_LIMIT:?}: {messages}"
                )));
            }
            std::thread::sleep(START_POLL);
        }
    }

    /// Installs forwarding rules, one on each line, in the syntax of `ovs-ofctl`.
    pub(crate) fn install_rules(&self, rules: &str) -> Result<(), Error> {
        let file = self.files.at("rules");
        std::fs::write(&file, rules)
            .map_err(|cause| Error::system("write the rules of a switch", cause))?;
        let bridge = format!("unix:{}", self.files.at(&format!("{BRIDGE}.mgmt")));
        let mut command = self.files.tool("ovs-ofctl")?;
        command.args([TOOL_LIMIT, "add-flows", &bridge, &file]);
        self.files.run(&mut command).map(drop)
    }

    /// Its packet-processing process.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// All its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        vec![self.daemon.pid(), self.database.pid()]
    }

    fn has_all_ports(&self) -> Result<bool, Error> {
        let mut command = self.files.vsctl()?;
        command.args(["get", "Open_vSwitch", ".", "iface_types"]);
        for name in &self.names {
            command.args(["--", "get", "Interface", name, "ofport", "error"]);
        }
        let values = self.files.run(&mut command)?;
        let mut values = values.lines();
        // Empty until the switch has read the database for the first time.
        let types = values.next().unwrap_or_default();
        let types = types.split(|c: char| !c.is_alphanumeric() && c != '-');
        let types: Vec<&str> = types.filter(|name| !name.is_empty()).collect();
        let ports = self.files.ports;
        if !types.is_empty() && !types.contains(&ports.name()) {
            return Err(ports.unavailable("this build of it has no such ports"));
        }
        let mut numbered = 0;
        while let (Some(number), Some(error)) = (values.next(), values.next()) {
            if error != UNSET {
                let messages = self.daemon.last_messages();
                return Err(ports.unavailable(format!("{error}; {messages}")));
            }
            numbered += usize::from(number.parse().is_ok_and(|number: i64| number > 0));
        }
        Ok(!types.is_empty() && numbered == self.names.len())
    }
}

/// The files of a switch, and the programs that use them.
#[derive(Debug)]
struct SwitchFiles {
    ports: Ports,
    directory: ScratchDirectory,
}

impl SwitchFiles {
    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn database(&self) -> String {
        format!("unix:{}", self.at("db.sock"))
    }

    /// Writes the configuration into the database, before the switch starts.
    fn configure(&self, links: &[&str], core: usize) -> Result<(), Error> {
        let mut command = self.vsctl()?;
        command.args(["init", "--", "set", "Open_vSwitch", "."]);
        self.ports.set(&mut command, core);
        command.args(["--", "add-br", BRIDGE, "--", "set", "Bridge", BRIDGE]);
        command.args(["datapath_type=netdev", "fail-mode=secure"]);
        for (number, link) in (1..).zip(links) {
            self.ports.add_port(&mut command, link, number);
        }
        self.run(&mut command).map(drop)
    }

    /// Makes a program keep all its files in the directory.
    fn keep_private(&self, command: &mut Command) {
        let own = self.directory.path();
        let variables = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];
        command.envs(variables.map(|variable| (variable, &own)));
        // For DPDK.
        command.env("RUNTIME_DIRECTORY", own);
    }

    /// An installed program of the switch.
    fn tool(&self, program: &str) -> Result<Command, Error> {
        let file = find_program(program).ok_or_else(|| self.ports.missing("openvswitch-switch"))?;
        let mut command = Command::new(file);
        self.keep_private(&mut command);
        Ok(command)
    }

    /// `ovs-vsctl` without waiting for the switch.
    fn vsctl(&self) -> Result<Command, Error> {
        let mut command = self.tool("ovs-vsctl")?;
        command.args(["--no-wait", "--retry", TOOL_LIMIT]);
        command.arg(format!("--db={}", self.database()));
        Ok(command)
    }

    /// Starts a daemon that prints only errors.
    fn start(&self, mut command: Command) -> Result<OwnedChild, Error> {
        self.keep_private(&mut command);
        command.args(["-vconsole:err", "-vsyslog:off", "-vfile:off"]);
        OwnedChild::start_daemon(command)
    }

    /// The output of a tool.
    fn run(&self, command: &mut Command) -> Result<String, Error> {
        let program = command.get_program().display().to_string();
        let output = command
            .process_group(0)
            .output()
            .map_err(|cause| Error::system(format!("run `{program}`"), cause))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let messages = String::from_utf8_lossy(&output.stderr);
        Err(self.ports.unavailable(format!(
            "`{program}` failed ({}): {}",
            output.status,
            messages.trim()
        )))
    }
}
