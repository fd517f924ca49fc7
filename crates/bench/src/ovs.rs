//! Open vSwitch with its user-space datapath, as the distribution packages it, private to an experiment.
//!
//! The daemons run in a network namespace without a name, with their database, sockets and logs in memory, and end with
//! this process: no service of the machine is touched, and a switch of its user's own is never seen.

pub(crate) mod variant;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use myelin_linux::{affinity, process};
use serde_json::Value;

use crate::Error;
use crate::daemon::Daemon;
use crate::scratch::Scratch;

/// From the start of the daemons to a switch with all its ports; DPDK takes a second or two.
const START_LIMIT: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(10);
/// Seconds after which a tool gives up.
const TOOL_LIMIT: &str = "--timeout=10";
/// Where packages put programs that a user's PATH may lack.
const DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Debian and Ubuntu have the daemon in two builds, and `ovs-vswitchd` may be either of them.
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

    /// The switch's own name of the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::AfXdp => "afxdp",
            Self::Dpdk => "dpdk",
        }
    }

    /// What an error and a row call it.
    fn peer(self) -> String {
        format!("Open vSwitch with {} ports", self.name())
    }

    fn daemon(self) -> Result<PathBuf, Error> {
        if self != Self::Dpdk {
            return find("ovs-vswitchd").ok_or_else(|| self.missing("openvswitch-switch"));
        }
        let debian = PathBuf::from(DPDK_DAEMON);
        let has_dpdk = |daemon: &PathBuf| {
            let output = Command::new(daemon).arg("--version").output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("DPDK"))
        };
        [Some(debian), find("ovs-vswitchd")]
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
            peer: self.peer(),
            reason: reason.into(),
        }
    }

    /// What `ovs-vsctl` is told of a link, the `number`th.
    fn port(self, link: &str, number: usize) -> Vec<String> {
        let name = self.port_name(link);
        let mut words: Vec<String> = ["--", "add-port", BRIDGE, &name].map(String::from).to_vec();
        words.extend(["--", "set", "Interface", &name].map(String::from));
        words.push(format!("ofport_request={number}"));
        match self {
            Self::System => {}
            Self::AfXdp => {
                words.push("type=afxdp".to_owned());
                words.push("options:xdp-mode=native".to_owned());
            }
            Self::Dpdk => {
                words.push("type=dpdk".to_owned());
                words.push(format!(
                    "options:dpdk-devargs=\"net_af_xdp{number},iface={link},busy_budget=0\""
                ));
            }
        }
        words
    }

    /// A device of DPDK is not the link itself, and has a name of its own.
    fn port_name(self, link: &str) -> String {
        match self {
            Self::System | Self::AfXdp => link.to_owned(),
            Self::Dpdk => format!("dpdk-{link}"),
        }
    }

    /// Settings of the switch.
    fn settings(self, core: usize) -> Vec<String> {
        let mut settings = vec![
            // Stopped while others are measured, it would take flows for unused.
            "max-idle=3600000".to_owned(),
            // Each flow into the fastest cache at once, not one packet in a hundred.
            "emc-insert-inv-prob=1".to_owned(),
        ];
        match self {
            Self::System => {}
            Self::AfXdp => settings.push(polling_mask(core)),
            Self::Dpdk => {
                settings.push(polling_mask(core));
                settings.push("dpdk-init=true".to_owned());
                // Ports over AF_XDP need no hugepages. `--legacy-mem` is there to be found: otherwise the switch adds
                // `--in-memory`, which DPDK does not take together with `--no-huge`. Without `--no-pci` it would reach for
                // the machine's own devices.
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

/// A program as a user has it.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(std::env::split_paths(DIRECTORIES))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// A switch with one bridge; ended when dropped.
#[derive(Debug)]
pub(crate) struct Switch {
    ports: Ports,
    names: Vec<String>,
    // Ended in this order.
    daemon: Daemon,
    database: Daemon,
    directory: Scratch,
}

impl Switch {
    /// Starts a switch whose ports are these links of the namespace, numbered from 1. It polls on `core`, or, where it
    /// does not poll, works there. Several come up side by side until [`Switch::wait_until_ready`].
    pub(crate) fn start(
        ports: Ports,
        netns: &Netns,
        links: &[&str],
        core: usize,
    ) -> Result<Self, Error> {
        let program = ports.daemon()?;
        let directory = Scratch::new()?;
        let files = Files(directory.path());
        files.tool(ports, "ovsdb-tool", &["create".to_owned(), files.at("db")])?;
        let mut command =
            Command::new(find("ovsdb-server").ok_or_else(|| ports.missing("openvswitch-switch"))?);
        command
            .arg(files.at("db"))
            .arg(format!("--remote=p{}", files.database()))
            .arg(format!("--unixctl={}", files.at("db.ctl")));
        let database = Daemon::start(files.quiet(command))?;
        files.configure(ports, links, core)?;

        // An AF_XDP library would leave its dispatcher in the machine's eBPF file system: in there it finds none.
        let mut command = process::command_in(netns, program)?;
        command
            .arg(files.database())
            .arg(format!("--unixctl={}", files.at("switch.ctl")));
        let daemon = Daemon::start(files.quiet(command))?;
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

    /// Waits until all ports are there.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            if let Some(why) = self
                .daemon
                .has_ended()
                .or_else(|| self.database.has_ended())
            {
                return Err(self.ports.unavailable(why));
            }
            if self.has_all_ports()? {
                return Ok(());
            }
            if start.elapsed() > START_LIMIT {
                let words = self.daemon.last_words();
                return Err(self.ports.unavailable(format!(
                    "its ports are not there after {START_LIMIT:?}: {words}"
                )));
            }
            std::thread::sleep(START_POLL);
        }
    }

    /// Says where packets go: a rule a line, as `ovs-ofctl` takes them.
    pub(crate) fn steer(&self, rules: &str) -> Result<(), Error> {
        let files = Files(self.directory.path());
        let file = files.at("rules");
        std::fs::write(&file, rules)
            .map_err(|cause| Error::system("write the rules of a switch", cause))?;
        let arguments = [
            TOOL_LIMIT.to_owned(),
            "add-flows".to_owned(),
            format!("unix:{}", files.at(&format!("{BRIDGE}.mgmt"))),
            file,
        ];
        files.tool(self.ports, "ovs-ofctl", &arguments).map(drop)
    }

    /// Its process that handles packets.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// All its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        vec![self.daemon.pid(), self.database.pid()]
    }

    fn has_all_ports(&self) -> Result<bool, Error> {
        let files = Files(self.directory.path());
        let list = |columns: &str, table: &str| {
            let arguments = files.query(&["--format=json", columns, "list", table]);
            let text = files.tool(self.ports, "ovs-vsctl", &arguments)?;
            Ok::<_, Error>(table_rows(&text))
        };
        // Empty until the switch has looked at the database for the first time.
        let types = list("--columns=iface_types", "Open_vSwitch")?;
        let types: Vec<&str> = types.iter().flatten().flat_map(set_of).collect();
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
                let words = self.daemon.last_words();
                return Err(self.ports.unavailable(format!("{error}; {words}")));
            }
            numbered += usize::from(number.as_i64().is_some_and(|number| number > 0));
        }
        Ok(!types.is_empty() && numbered == self.names.len())
    }
}

/// The files of a switch.
struct Files(PathBuf);

impl Files {
    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn database(&self) -> String {
        format!("unix:{}", self.at("db.sock"))
    }

    /// Writes into the database what the switch will find there when it starts.
    fn configure(&self, ports: Ports, links: &[&str], core: usize) -> Result<(), Error> {
        let mut arguments = self.query(&["init", "--", "set", "Open_vSwitch", "."]);
        arguments.extend(ports.settings(core));
        arguments.extend(["--", "add-br", BRIDGE].map(String::from));
        arguments.extend(["--", "set", "Bridge", BRIDGE].map(String::from));
        arguments.extend(["datapath_type=netdev", "fail-mode=secure"].map(String::from));
        for (number, link) in (1..).zip(links) {
            arguments.extend(ports.port(link, number));
        }
        self.tool(ports, "ovs-vsctl", &arguments).map(drop)
    }

    /// Arguments of `ovs-vsctl` that does not wait for the switch.
    fn query(&self, command: &[&str]) -> Vec<String> {
        let mut arguments: Vec<String> = ["--no-wait", "--retry", TOOL_LIMIT]
            .map(String::from)
            .to_vec();
        arguments.push(format!("--db={}", self.database()));
        arguments.extend(command.iter().map(|word| (*word).to_owned()));
        arguments
    }

    /// A daemon that leaves nothing outside of the directory, and says only what is wrong.
    fn quiet(&self, mut command: Command) -> Command {
        command.args(["-vconsole:err", "-vsyslog:off", "-vfile:off"]);
        self.placed(command)
    }

    fn placed(&self, mut command: Command) -> Command {
        let own: &Path = &self.0;
        let variables = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];
        command.envs(variables.map(|variable| (variable, own)));
        // DPDK's.
        command.env("RUNTIME_DIRECTORY", own);
        command
    }

    /// What a tool says that ends at once.
    fn tool(&self, ports: Ports, program: &str, arguments: &[String]) -> Result<String, Error> {
        use std::os::unix::process::CommandExt;

        let file = find(program).ok_or_else(|| ports.missing("openvswitch-switch"))?;
        let mut command = self.placed(Command::new(file));
        command.args(arguments).process_group(0);
        let output = command
            .output()
            .map_err(|cause| Error::system(format!("run `{program}`"), cause))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(ports.unavailable(format!(
            "`{program}` failed ({}): {}",
            output.status,
            words.trim()
        )))
    }
}

/// The rows of a table in the database's JSON.
fn table_rows(text: &str) -> Vec<Vec<Value>> {
    let table: Value = serde_json::from_str(text).unwrap_or_default();
    let rows = table["data"].as_array().into_iter().flatten();
    rows.filter_map(|row| row.as_array().cloned()).collect()
}

/// The strings of a set (RFC 7047, section 5.1): `["set", [...]]`, or the only one itself.
fn set_of(value: &Value) -> Vec<&str> {
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
