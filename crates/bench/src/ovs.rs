//! Open vSwitch with its user-space datapath, from the distribution's package, private to an
//! experiment.
//!
//! The daemons run in an unnamed network namespace, with database, sockets and logs in memory, and
//! end with this process. They do not affect the machine's services or a user's switch.

pub(crate) mod variant;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use myelin_linux::{affinity, process};
use serde_json::Value;

use crate::Error;
use crate::daemon::Daemon;
use crate::scratch::ScratchDirectory;

/// Longest time from the start of the daemons to a switch with all ports. DPDK takes a second or
/// two.
const START_LIMIT: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(10);
/// Timeout of a tool, seconds.
const TOOL_LIMIT: &str = "--timeout=10";
/// Directories of packages' programs that a user's PATH may lack.
const DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Debian and Ubuntu package two builds of the daemon, and `ovs-vswitchd` may be either.
const DPDK_DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const BRIDGE: &str = "bridge";

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

    /// Arguments of `ovs-vsctl` to add a link as port `number`.
    fn port_arguments(self, link: &str, number: usize) -> Vec<String> {
        let name = self.port_name(link);
        let mut arguments: Vec<String> =
            ["--", "add-port", BRIDGE, &name].map(String::from).to_vec();
        arguments.extend(["--", "set", "Interface", &name].map(String::from));
        arguments.push(format!("ofport_request={number}"));
        match self {
            Self::System => {}
            Self::AfXdp => {
                arguments.push("type=afxdp".to_owned());
                arguments.push("options:xdp-mode=native".to_owned());
            }
            Self::Dpdk => {
                arguments.push("type=dpdk".to_owned());
                arguments.push(format!(
                    "options:dpdk-devargs=\"net_af_xdp{number},iface={link},busy_budget=0\""
                ));
            }
        }
        arguments
    }

    /// A DPDK device has another name than its link.
    fn port_name(self, link: &str) -> String {
        match self {
            Self::System | Self::AfXdp => link.to_owned(),
            Self::Dpdk => format!("dpdk-{link}"),
        }
    }

    /// Settings of the switch.
    fn settings(self, core: usize) -> Vec<String> {
        let mut settings = vec![
            // The switch is stopped while others are measured, and flows must not expire meanwhile.
            "max-idle=3600000".to_owned(),
            // Each flow enters the exact-match cache with its first packet, not with one in a
            // hundred.
            "emc-insert-inv-prob=1".to_owned(),
        ];
        match self {
            Self::System => {}
            Self::AfXdp => settings.push(polling_mask(core)),
            Self::Dpdk => {
                settings.push(polling_mask(core));
                settings.push("dpdk-init=true".to_owned());
                // Ports over AF_XDP need no hugepages. Without `--legacy-mem` the switch would add
                // `--in-memory`, which DPDK refuses together with `--no-huge`. Without `--no-pci`
                // it would probe the machine's devices.
                settings.push(
                    "dpdk-extra=\"--no-huge --legacy-mem --no-pci --no-shconf --no-telemetry -m 256\""
                        .to_owned(),
                );
            }
        }
        settings
            .into_iter()
            .map(|setting| format!("other_config:{setting}"))
            .collect()
    }
}

fn polling_mask(core: usize) -> String {
    format!("pmd-cpu-mask=\"{:#x}\"", 1_u128 << (core % 128))
}

/// Finds a program as a shell does.
fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(std::env::split_paths(DIRECTORIES))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// A switch with one bridge. A drop ends it.
#[derive(Debug)]
pub(crate) struct Switch {
    ports: Ports,
    names: Vec<String>,
    // Fields drop in this order.
    daemon: Daemon,
    database: Daemon,
    directory: ScratchDirectory,
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
        let directory = ScratchDirectory::new()?;
        let files = SwitchFiles(directory.path());
        files.run_tool(ports, "ovsdb-tool", &["create".to_owned(), files.at("db")])?;
        let mut command = Command::new(
            find_program("ovsdb-server").ok_or_else(|| ports.missing("openvswitch-switch"))?,
        );
        command
            .arg(files.at("db"))
            .arg(format!("--remote=p{}", files.database()))
            .arg(format!("--unixctl={}", files.at("db.ctl")));
        let database = Daemon::start(files.private_daemon(command))?;
        files.configure(ports, links, core)?;

        // In the mount namespace of this command, an AF_XDP library finds no eBPF file system, so
        // it leaves no dispatcher behind.
        let mut command = process::command_in(netns, program)?;
        command
            .arg(files.database())
            .arg(format!("--unixctl={}", files.at("switch.ctl")));
        let daemon = Daemon::start(files.private_daemon(command))?;
        if ports == Ports::System {
            affinity::set(daemon.pid(), &[core])?;
        }
        Ok(Self {
            ports,
            names: links.iter().map(|link| ports.port_name(link)).collect(),
            daemon,
            database,
            directory,
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
                return Err(self.ports.unavailable(why));
            }
            if self.has_all_ports()? {
                return Ok(());
            }
            if start.elapsed() > START_LIMIT {
                let messages = self.daemon.last_messages();
                return Err(self.ports.unavailable(format!(
                    "its ports do not exist after {START_LIMIT:?}: {messages}"
                )));
            }
            std::thread::sleep(START_POLL);
        }
    }

    /// Installs forwarding rules, one on each line, in the syntax of `ovs-ofctl`.
    pub(crate) fn install_rules(&self, rules: &str) -> Result<(), Error> {
        let files = SwitchFiles(self.directory.path());
        let file = files.at("rules");
        std::fs::write(&file, rules)
            .map_err(|cause| Error::system("write the rules of a switch", cause))?;
        let arguments = [
            TOOL_LIMIT.to_owned(),
            "add-flows".to_owned(),
            format!("unix:{}", files.at(&format!("{BRIDGE}.mgmt"))),
            file,
        ];
        files
            .run_tool(self.ports, "ovs-ofctl", &arguments)
            .map(drop)
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
        let files = SwitchFiles(self.directory.path());
        let list = |columns: &str, table: &str| {
            let arguments = files.vsctl_arguments(&["--format=json", columns, "list", table]);
            let text = files.run_tool(self.ports, "ovs-vsctl", &arguments)?;
            Ok::<_, Error>(table_rows(&text))
        };
        // Empty until the switch has read the database for the first time.
        let types = list("--columns=iface_types", "Open_vSwitch")?;
        let types: Vec<&str> = types.iter().flatten().flat_map(strings_of_set).collect();
        if !types.is_empty() && !types.contains(&self.ports.name()) {
            return Err(self.ports.unavailable("this build of it has no such ports"));
        }
        let mut numbered = 0;
        for row in list("--columns=name,ofport,error", "Interface")? {
            let [name, number, error] = row.as_slice() else {
                continue;
            };
            if !self.names.iter().any(|wanted| name == wanted) {
                continue;
            }
            if let Some(error) = error.as_str() {
                let messages = self.daemon.last_messages();
                return Err(self.ports.unavailable(format!("{error}; {messages}")));
            }
            numbered += usize::from(number.as_i64().is_some_and(|number| number > 0));
        }
        Ok(!types.is_empty() && numbered == self.names.len())
    }
}

/// The files of a switch.
struct SwitchFiles(PathBuf);

impl SwitchFiles {
    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn database(&self) -> String {
        format!("unix:{}", self.at("db.sock"))
    }

    /// Writes the configuration into the database, before the switch starts.
    fn configure(&self, ports: Ports, links: &[&str], core: usize) -> Result<(), Error> {
        let mut arguments = self.vsctl_arguments(&["init", "--", "set", "Open_vSwitch", "."]);
        arguments.extend(ports.settings(core));
        arguments.extend(["--", "add-br", BRIDGE].map(String::from));
        arguments.extend(["--", "set", "Bridge", BRIDGE].map(String::from));
        arguments.extend(["datapath_type=netdev", "fail-mode=secure"].map(String::from));
        for (number, link) in (1..).zip(links) {
            arguments.extend(ports.port_arguments(link, number));
        }
        self.run_tool(ports, "ovs-vsctl", &arguments).map(drop)
    }

    /// Arguments of `ovs-vsctl` without waiting for the switch.
    fn vsctl_arguments(&self, command: &[&str]) -> Vec<String> {
        let mut arguments: Vec<String> = ["--no-wait", "--retry", TOOL_LIMIT]
            .map(String::from)
            .to_vec();
        arguments.push(format!("--db={}", self.database()));
        arguments.extend(command.iter().map(|word| (*word).to_owned()));
        arguments
    }

    /// Makes a daemon keep all files in the directory and print only errors.
    fn private_daemon(&self, mut command: Command) -> Command {
        command.args(["-vconsole:err", "-vsyslog:off", "-vfile:off"]);
        self.private_command(command)
    }

    fn private_command(&self, mut command: Command) -> Command {
        let own: &Path = &self.0;
        let variables = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];
        command.envs(variables.map(|variable| (variable, own)));
        // For DPDK.
        command.env("RUNTIME_DIRECTORY", own);
        command
    }

    /// The output of a tool.
    fn run_tool(&self, ports: Ports, program: &str, arguments: &[String]) -> Result<String, Error> {
        use std::os::unix::process::CommandExt;

        let file = find_program(program).ok_or_else(|| ports.missing("openvswitch-switch"))?;
        let mut command = self.private_command(Command::new(file));
        command.args(arguments).process_group(0);
        let output = command
            .output()
            .map_err(|cause| Error::system(format!("run `{program}`"), cause))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let messages = String::from_utf8_lossy(&output.stderr);
        Err(ports.unavailable(format!(
            "`{program}` failed ({}): {}",
            output.status,
            messages.trim()
        )))
    }
}

/// The rows of a table in the database's JSON.
fn table_rows(text: &str) -> Vec<Vec<Value>> {
    let table: Value = serde_json::from_str(text).unwrap_or_default();
    let rows = table["data"].as_array().into_iter().flatten();
    rows.filter_map(|row| row.as_array().cloned()).collect()
}

/// The strings of a set (RFC 7047, section 5.1): `["set", [...]]`, or a single string.
fn strings_of_set(value: &Value) -> Vec<&str> {
    match value {
        Value::String(only) => vec![only],
        Value::Array(_) => value[1]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect(),
        _ => Vec::new(),
    }
}
