//! Nothing is made for a chain that is refused: no link, namespace, group, process or eBPF object.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use myelin_api::{Client, RunDir, UpRequest};

use crate::common::chains::KERNEL;
use crate::common::{Myelin, sh, skip_unless_root, skip_without, wait_for};
use crate::forms::source;
use crate::steps::Agent;

/// Calls of an agent that refuses a chain: they open, ask and read.
const LOOKS: [&str; 8] = [
    "open",
    "open64",
    "socket",
    "bind",
    "setsockopt",
    "send",
    "recv",
    "ioctl",
];

/// What it takes to ask runc for its version.
const ASK_RUNC: [&str; 4] = ["fork", "socketpair", "recvmsg", "posix_spawnp"];

/// What an agent has, and what has its instance's mark.
#[derive(Debug, PartialEq)]
struct Seen {
    marked: BTreeSet<String>,
    children: BTreeSet<String>,
    /// Numbers of the eBPF objects that the agent holds.
    ebpf: BTreeSet<String>,
    journal: String,
}

impl Seen {
    fn now(myelin: &Myelin, agent: &Agent) -> Self {
        let pid = agent.pid();
        let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the agent");
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
            marked: myelin.leftovers().into_iter().collect(),
            children: children.lines().map(str::to_owned).collect(),
            ebpf: lines.filter(is_number).collect(),
            journal: std::fs::read_to_string(myelin.run_dir().join("journal")).expect("it"),
        }
    }
}

/// What happens to the links of an agent's network namespace.
struct Monitor {
    process: Child,
    file: PathBuf,
    pid: u32,
    marks: usize,
    _directory: tempfile::TempDir,
}

impl Monitor {
    fn start(pid: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("events");
        let process = Command::new("nsenter")
            .args(["-t", &pid.to_string(), "-n", "ip", "-o", "monitor", "link"])
            .stdout(File::create(&file).expect("a file"))
            .stderr(Stdio::null())
            .spawn()
            .expect("a monitor");
        let mut monitor = Self {
            process,
            file,
            pid,
            marks: 0,
            _directory: directory,
        };
        // It says nothing when it begins.
        wait_for("the monitor", || {
            monitor.mark();
            !monitor.text().is_empty()
        });
        monitor.events();
        monitor
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).expect("the events")
    }

    /// Makes a link of its own in the namespace, whose name it returns.
    fn mark(&mut self) -> String {
        self.marks += 1;
        let name = format!("mark{}", self.marks);
        sh(&format!(
            "nsenter -t {} -n ip link add {name} type veth peer name {name}b",
            self.pid
        ));
        name
    }

    /// The events since it was asked last, but those of its own links.
    fn events(&mut self) -> Vec<String> {
        let mark = self.mark();
        let is_there = || self.text().contains(&format!("{mark}@"));
        wait_for("the mark", is_there);
        assert!(is_there(), "no mark: {}", self.text());
        let text = self.text();
        File::create(&self.file).expect("an empty file");
        let others = text.lines().filter(|line| !line.contains(": mark"));
        others
            .map(|line| line.trim_start_matches('\0').to_owned())
            .collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An agent in a network namespace of its own, which is looked at from all sides.
struct Watched {
    myelin: Myelin,
    agent: Agent,
    monitor: Monitor,
    client: Client,
}

impl Watched {
    fn new(variables: &[&str]) -> Self {
        let myelin = Myelin::new();
        let agent = Agent::start_by(&myelin, &["unshare", "-n"], variables);
        let monitor = Monitor::start(agent.pid());
        let run_dir = RunDir::resolve(Some(&myelin.run_dir()));
        let client = Client::connect(&run_dir).expect("an agent");
        Self {
            client: client.expect("it serves"),
            myelin,
            agent,
            monitor,
        }
    }

    /// The file's text as a client sends it, and without what a client checks.
    fn request(&self, text: &str) -> UpRequest {
        UpRequest {
            source: source(&self.myelin, text),
            force: false,
        }
    }

    /// The file is refused with these words, and nothing was made meanwhile, not for a moment
    /// either.
    fn refuses(&mut self, text: &str, words: &str) {
        self.refuses_after(&[], text, words);
    }

    /// The same with further calls that the agent may make, to ask something.
    fn refuses_after(&mut self, calls: &[&str], text: &str, words: &str) {
        let request = self.request(text);
        let before = Seen::now(&self.myelin, &self.agent);
        let (_, result) = self.agent.count(|| self.client.up(&request));
        let error = result.expect_err(words).message;
        assert!(error.contains(words), "{words}: {error}");
        for step in self.agent.steps().lines() {
            let parts: Vec<_> = step.split(' ').collect();
            let is_look = LOOKS.contains(&parts[0]) || calls.contains(&parts[0]);
            // Opened for more than reading.
            let changes = parts[0].starts_with("open") && parts[2] != "/dev/null" && {
                let flags: u32 = parts[1].parse().expect("flags");
                flags & 3 != 0
            };
            assert!(is_look && !changes, "{words}: {step}");
        }
        assert_eq!(self.monitor.events(), Vec::<String>::new(), "{words}");
        assert_eq!(Seen::now(&self.myelin, &self.agent), before, "{words}");
    }

    /// Deploys something after all, which everybody who watches must notice, and ends.
    fn end(mut self, text: &str) {
        let before = Seen::now(&self.myelin, &self.agent);
        let request = self.request(text);
        let (steps, result) = self.agent.count(|| self.client.up(&request));
        result.expect("a good chain");
        assert!(steps > 50, "{steps}");
        assert!(!self.monitor.events().is_empty());
        let after = Seen::now(&self.myelin, &self.agent);
        assert_ne!(after.ebpf, before.ebpf);
        assert_ne!(after.marked, before.marked);
        assert_ne!(after.journal, before.journal);
        drop(self.monitor);
        self.agent.stop();
        self.myelin.assert_clean();
    }
}

/// Of the user's functions, with a promise: so much at once, within so many microseconds.
fn promised(name: &str, burst: u32, latency_us: u32) -> String {
    KERNEL
        .replace("@k", &format!("@{name}"))
        .replace("kind: forward }", "kind: forward, space: user }")
        .replace(
            "sla: { latency: 50ms }",
            &format!("sla: {{ rate: 1kpps, burst: {burst}, latency: {latency_us}us }}"),
        )
}

fn between(text: &str, ports: [&str; 2]) -> String {
    let [ingress, egress] = ports;
    text.replace(
        "  functions:",
        &format!("  ports: {{ ingress: {ingress}, egress: {egress} }}\n  functions:"),
    )
}

/// A chain of one black box, with more keys of the function and a command.
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

fn skip() -> bool {
    skip_unless_root() || skip_without("cc") || skip_without("nsenter") || skip_without("pgrep")
}

#[test]
fn a_new_chain_that_is_refused_makes_nothing() {
    if skip() {
        return;
    }
    let mut watched = Watched::new(&[]);
    watched.monitor.mark();
    let down = format!("mark{}", watched.monitor.marks);
    watched.monitor.events();
    let good = KERNEL.replace("@k", "@good");
    for (text, words) in [
        ("metadata: [".to_owned(), "chain"),
        (KERNEL.replace("kind: forward", "kind: fowrard"), "forward"),
        (
            black_box("  mapping: compact", "", "sleep"),
            "mapping: distributed",
        ),
        (promised("h", 1000, 900), "is refused: the worst-case bound"),
        (between(KERNEL, ["nosuchif0", "lo"]), "nosuchif0"),
        (between(KERNEL, [&down, "lo"]), "is down"),
        (
            black_box("", "", "no-such-program"),
            "program `no-such-program`",
        ),
        (black_box("", "", "/etc/passwd"), "not an executable file"),
    ] {
        watched.refuses(&text, words);
        // Nor for another chain of the same file.
        if text.contains("spec:") {
            watched.refuses(&format!("{good}---{text}"), words);
        }
    }
    if Path::new("/usr/sbin/runc").exists() || Path::new("/usr/bin/runc").exists() {
        let more = "isolation: container, rootfs: /nowhere/root,";
        let text = black_box("", more, "/bin/sleep");
        watched.refuses_after(&ASK_RUNC, &text, "/nowhere/root");
        let file = format!("{good}---{text}");
        watched.refuses_after(&ASK_RUNC, &file, "/nowhere/root");
    }
    watched.end(&good);
}

#[test]
fn a_chain_in_a_container_makes_nothing_without_runc() {
    if skip() {
        return;
    }
    let mut watched = Watched::new(&["PATH=/nowhere"]);
    let text = black_box("", "isolation: container,", "/bin/sleep");
    watched.refuses_after(&ASK_RUNC, &text, "cannot run `runc`");
    watched.end(KERNEL);
}

#[test]
fn a_change_that_is_refused_makes_nothing() {
    if skip() {
        return;
    }
    let mut watched = Watched::new(&[]);
    let running = promised("r", 8, 900_000);
    watched
        .client
        .up(&watched.request(&running))
        .expect("a good chain");
    watched.monitor.events();
    let with = |from: &str, to: &str| running.replace(from, to);
    let other = format!("---{}", KERNEL.replace("@k", "@other"));
    for (text, words) in [
        (promised("r", 1000, 900), "is refused: the worst-case bound"),
        (
            between(&running, ["lo", "nosuchif0"]),
            "spec.ports cannot be changed",
        ),
        (
            with("spec:\n", "spec:\n  reverse: @other\n") + &other,
            "spec.reverse cannot be changed",
        ),
        (
            with("name: @r }", "name: @r, namespace: other }"),
            "belongs to owner",
        ),
        (
            with("10.0.0.2/32", "10.0.9.2/32"),
            "its end hosts have addresses that",
        ),
        (
            with("  sla:", "  worker: { batch: 7 }\n  sla:"),
            "spec.worker cannot be changed",
        ),
    ] {
        watched.refuses(&text, words);
    }
    // One that could be changed, in a file with a chain that is refused.
    let changed = with("192.0.2.0/24", "198.51.100.0/24");
    let file = format!("{changed}---{}", between(KERNEL, ["nosuchif0", "lo"]));
    watched.refuses(&file, "nosuchif0");
    watched.end(&KERNEL.replace("@k", "@other"));
}
