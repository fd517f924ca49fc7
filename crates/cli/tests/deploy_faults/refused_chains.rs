//! The agent makes nothing for a refused chain: no link, namespace, control group, process or eBPF
//! object.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use myelin_api::{Client, RunDir, UpRequest};

use crate::common::chains::KERNEL;
use crate::common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use crate::fixtures::chain_source;
use crate::steps::SteppedAgent;

/// Calls that read the state of the machine. An agent that refuses a chain makes no other calls.
const READ_CALLS: [&str; 8] = [
    "open",
    "open64",
    "socket",
    "bind",
    "setsockopt",
    "send",
    "recv",
    "ioctl",
];

/// Calls that run `runc --version`.
const RUNC_VERSION_CALLS: [&str; 4] = ["fork", "socketpair", "recvmsg", "posix_spawnp"];

/// Objects of an agent and of its instance.
#[derive(Debug, PartialEq)]
struct AgentSnapshot {
    objects: BTreeSet<String>,
    children: BTreeSet<String>,
    /// Identifiers of the eBPF objects that the agent holds.
    ebpf: BTreeSet<String>,
    journal: String,
}

impl AgentSnapshot {
    fn take(myelin: &Myelin, agent: &SteppedAgent) -> Self {
        let pid = agent.pid();
        let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the agent runs");
        let infos = infos
            .flatten()
            .map(|info| std::fs::read_to_string(info.path()));
        let lines = infos.flatten().flat_map(|info| {
            let lines = info.lines().map(str::to_owned);
            lines.collect::<Vec<_>>()
        });
        let is_number = |line: &String| {
            ["prog_id", "map_id", "link_id", "btf_id"]
                .iter()
                .any(|key| line.starts_with(key))
        };
        let children = sh(&format!("pgrep -P {pid} || true"));
        Self {
            objects: myelin.list_leftovers().into_iter().collect(),
            children: children.lines().map(str::to_owned).collect(),
            ebpf: lines.filter(is_number).collect(),
            journal: std::fs::read_to_string(myelin.run_dir().join("journal"))
                .expect("the journal is readable"),
        }
    }
}

/// Records the link events of an agent's network namespace (`ip monitor link`).
struct LinkMonitor {
    process: Child,
    file: PathBuf,
    pid: u32,
    marks: usize,
    _directory: tempfile::TempDir,
}

impl LinkMonitor {
    fn start(pid: u32) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let file = directory.path().join("events");
        let process = Command::new("nsenter")
            .args(["-t", &pid.to_string(), "-n", "ip", "-o", "monitor", "link"])
            .stdout(File::create(&file).expect("the file is made"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the monitor starts");
        let mut monitor = Self {
            process,
            file,
            pid,
            marks: 0,
            _directory: directory,
        };
        // `ip monitor` prints nothing at its start, so an event shows that it runs.
        wait_for("the monitor", || {
            monitor.add_marker_link();
            !monitor.read_events().is_empty()
        });
        monitor.take_events();
        monitor
    }

    fn read_events(&self) -> String {
        std::fs::read_to_string(&self.file).expect("the events are readable")
    }

    /// Makes a link in the namespace; returns its name. The event of the link marks a point in the
    /// record.
    fn add_marker_link(&mut self) -> String {
        self.marks += 1;
        let name = format!("mark{}", self.marks);
        sh(&format!(
            "nsenter -t {} -n ip link add {name} type veth peer name {name}b",
            self.pid
        ));
        name
    }

    /// Removes and returns the events up to now, without those of marker links.
    fn take_events(&mut self) -> Vec<String> {
        let mark = self.add_marker_link();
        let has_mark = || self.read_events().contains(&format!("{mark}@"));
        wait_for("the event of the marker link", has_mark);
        assert!(
            has_mark(),
            "no event of the marker link: {}",
            self.read_events()
        );
        let text = self.read_events();
        File::create(&self.file).expect("the file is emptied");
        let others = text.lines().filter(|line| !line.contains(": mark"));
        others
            .map(|line| line.trim_start_matches('\0').to_owned())
            .collect()
    }
}

impl Drop for LinkMonitor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An agent in its own network namespace, with records of its calls, links and objects.
struct WatchedAgent {
    myelin: Myelin,
    agent: SteppedAgent,
    monitor: LinkMonitor,
    client: Client,
}

impl WatchedAgent {
    fn start(variables: &[&str]) -> Self {
        let myelin = Myelin::new();
        let agent = SteppedAgent::start_with(&myelin, &["unshare", "-n"], variables);
        let monitor = LinkMonitor::start(agent.pid());
        let run_dir = RunDir::resolve(Some(&myelin.run_dir()));
        let client = Client::connect(&run_dir).expect("the agent answers");
        Self {
            client: client.expect("the agent serves"),
            myelin,
            agent,
            monitor,
        }
    }

    /// Makes a request without the checks of a client.
    fn request(&self, text: &str) -> UpRequest {
        UpRequest {
            source: chain_source(&self.myelin, text),
            force: false,
            lease: None,
        }
    }

    /// Asserts that the agent refuses a file with these words and makes nothing, not even for a
    /// moment.
    fn assert_refused(&mut self, text: &str, words: &str) {
        self.assert_refused_with_calls(&[], text, words);
    }

    /// Asserts the same as `assert_refused`, but allows the agent to make `calls` too.
    fn assert_refused_with_calls(&mut self, calls: &[&str], text: &str, words: &str) {
        let request = self.request(text);
        let before = AgentSnapshot::take(&self.myelin, &self.agent);
        let (_, result) = self.agent.count_steps(|| self.client.up(&request));
        let error = result.expect_err(words).message;
        assert!(error.contains(words), "{words}: {error}");
        for step in self.agent.read_step_log().lines() {
            let parts: Vec<_> = step.split(' ').collect();
            let is_read = READ_CALLS.contains(&parts[0]) || calls.contains(&parts[0]);
            let writes = parts[0].starts_with("open") && parts[2] != "/dev/null" && {
                let flags: u32 = parts[1].parse().expect("the flags are a number");
                // O_ACCMODE is 3, O_RDONLY 0.
                flags & 3 != 0
            };
            assert!(is_read && !writes, "{words}: {step}");
        }
        assert_eq!(self.monitor.take_events(), Vec::<String>::new(), "{words}");
        assert_eq!(
            AgentSnapshot::take(&self.myelin, &self.agent),
            before,
            "{words}"
        );
    }

    /// Deploys a valid chain, asserts that each record shows it, and stops the agent.
    fn deploy_and_stop(mut self, text: &str) {
        let before = AgentSnapshot::take(&self.myelin, &self.agent);
        let request = self.request(text);
        let (steps, result) = self.agent.count_steps(|| self.client.up(&request));
        result.expect("the agent deploys the valid chain");
        assert!(steps > 50, "{steps}");
        assert!(!self.monitor.take_events().is_empty());
        let after = AgentSnapshot::take(&self.myelin, &self.agent);
        assert_ne!(after.ebpf, before.ebpf);
        assert_ne!(after.objects, before.objects);
        assert_ne!(after.journal, before.journal);
        drop(self.monitor);
        self.agent.stop();
        self.myelin.assert_clean();
    }
}

/// Formats a chain with a user function and a contract. `burst` is in packets, `latency_us` in us.
fn format_chain_with_contract(name: &str, burst: u32, latency_us: u32) -> String {
    KERNEL
        .replace("@k", &format!("@{name}"))
        .replace("kind: forward }", "kind: forward, space: user }")
        .replace(
            "sla: { latency: 50ms }",
            &format!("sla: {{ rate: 1kpps, burst: {burst}, latency: {latency_us}us }}"),
        )
}

fn add_ports(text: &str, ports: [&str; 2]) -> String {
    let [ingress, egress] = ports;
    text.replace(
        "  functions:",
        &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions:"),
    )
}

/// Formats a chain of one black box. `spec` holds keys of the chain, `more` keys of the function.
fn black_box(spec: &str, more: &str, command: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @b }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9001 }}
{spec}
  functions: [ {{ name: box, kind: external, {more} config: {{ command: [ {command} ] }} }} ]
"
    )
}

fn skip_without_tools() -> bool {
    skip_unless_root() || skip_without("cc") || skip_without("nsenter") || skip_without("pgrep")
}

#[test]
fn the_agent_makes_nothing_for_a_refused_chain() {
    if skip_without_tools() {
        return;
    }
    let mut watched = WatchedAgent::start(&[]);
    watched.monitor.add_marker_link();
    let down = format!("mark{}", watched.monitor.marks);
    watched.monitor.take_events();
    let good = KERNEL.replace("@k", "@good");
    for (text, words) in [
        ("metadata: [".to_owned(), "chain"),
        (KERNEL.replace("kind: forward", "kind: fowrard"), "forward"),
        (
            black_box("  mapping: compact", "", "sleep"),
            "mapping: distributed",
        ),
        (
            format_chain_with_contract("h", 1000, 900),
            "is refused: the worst-case bound",
        ),
        (add_ports(KERNEL, ["nosuchif0", "lo"]), "nosuchif0"),
        (add_ports(KERNEL, [&down, "lo"]), "is down"),
        (
            black_box("", "", "no-such-program"),
            "program `no-such-program`",
        ),
        (black_box("", "", "/etc/passwd"), "not an executable file"),
    ] {
        watched.assert_refused(&text, words);
        // The agent also makes nothing for a valid chain in a file with a refused chain.
        if text.contains("spec:") {
            watched.assert_refused(&format!("{good}---{text}"), words);
        }
    }
    if Path::new("/usr/sbin/runc").exists() || Path::new("/usr/bin/runc").exists() {
        let more = "isolation: container, rootfs: /nowhere/root,";
        let text = black_box("", more, "/bin/sleep");
        watched.assert_refused_with_calls(&RUNC_VERSION_CALLS, &text, "/nowhere/root");
        let file = format!("{good}---{text}");
        watched.assert_refused_with_calls(&RUNC_VERSION_CALLS, &file, "/nowhere/root");
    }
    watched.deploy_and_stop(&good);
}

#[test]
fn the_agent_makes_nothing_for_a_container_without_runc() {
    if skip_without_tools() {
        return;
    }
    let mut watched = WatchedAgent::start(&["PATH=/nowhere"]);
    let text = black_box("", "isolation: container,", "/bin/sleep");
    watched.assert_refused_with_calls(&RUNC_VERSION_CALLS, &text, "cannot run `runc`");
    watched.deploy_and_stop(KERNEL);
}

#[test]
fn the_agent_makes_nothing_for_a_refused_live_change() {
    if skip_without_tools() {
        return;
    }
    let mut watched = WatchedAgent::start(&[]);
    let running = format_chain_with_contract("r", 8, 900_000);
    watched
        .client
        .up(&watched.request(&running))
        .expect("the agent deploys the valid chain");
    watched.monitor.take_events();
    let running_with = |from: &str, to: &str| running.replace(from, to);
    let other = format!("---{}", KERNEL.replace("@k", "@other"));
    for (text, words) in [
        (
            format_chain_with_contract("r", 1000, 900),
            "is refused: the worst-case bound",
        ),
        (
            add_ports(&running, ["lo", "nosuchif0"]),
            "spec.ports cannot be changed",
        ),
        (
            running_with("spec:\n", "spec:\n  reverse: @other\n") + &other,
            "spec.reverse cannot be changed",
        ),
        (
            running_with("name: @r }", "name: @r, namespace: other }"),
            "belongs to owner",
        ),
        (
            running_with("10.0.0.2/32", "10.0.9.2/32"),
            "the chain's end hosts have addresses that",
        ),
        (
            running_with("  sla:", "  worker: { batch: 7 }\n  sla:"),
            "of spec.worker can be changed while the worker runs",
        ),
    ] {
        watched.assert_refused(&text, words);
    }
    // A valid live change in a file with a refused chain.
    let changed = running_with("192.0.2.0/24", "198.51.100.0/24");
    let file = format!("{changed}---{}", add_ports(KERNEL, ["nosuchif0", "lo"]));
    watched.assert_refused(&file, "nosuchif0");
    watched.deploy_and_stop(&KERNEL.replace("@k", "@other"));
}
