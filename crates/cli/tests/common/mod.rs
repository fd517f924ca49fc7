//! Drives the real binary against an agent of its own, and cleans up after itself, also on failure.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

pub(crate) mod chains;
pub(crate) mod conformance;
pub(crate) mod load;
pub(crate) mod taps;
pub(crate) mod wire;

/// Prints why a test does not run here; `.ci/run` fails on reasons that are not allowed.
pub(crate) fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

/// True, with a printed reason, when the test cannot run because it is not root.
pub(crate) fn skip_unless_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("needs root");
    }
    !root
}

/// True, with a printed reason, when a tool is not installed.
pub(crate) fn skip_without(tool: &str) -> bool {
    let missing = Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| !status.success());
    if missing {
        skip(&format!("{tool} is not installed"));
    }
    missing
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

/// Most tests have the machine to themselves, because they measure or watch all of it. Tests that look at their own instance
/// alone run beside each other.
static TURNS: RwLock<()> = RwLock::new(());

enum Turn {
    Alone(RwLockWriteGuard<'static, ()>),
    BesideOthers(RwLockReadGuard<'static, ()>),
}

/// One run directory with its agent. Chains get a name of their own in each, so that tests can run side by side.
pub(crate) struct Myelin {
    _turn: Turn,
    directory: tempfile::TempDir,
    /// Links that the agents of this instance ever meant to make.
    links: std::cell::RefCell<std::collections::BTreeSet<String>>,
    /// Distinguishes this instance's chains.
    pub(crate) tag: String,
}

impl Myelin {
    /// A fresh run directory; no agent yet. No other instance runs beside it.
    pub(crate) fn new() -> Self {
        let turn = TURNS.write();
        Self::with(Turn::Alone(turn.unwrap_or_else(PoisonError::into_inner)))
    }

    /// The same for a test that neither measures nor watches the whole machine: other such tests run beside it.
    pub(crate) fn beside_others() -> Self {
        let turn = TURNS.read();
        Self::with(Turn::BesideOthers(
            turn.unwrap_or_else(PoisonError::into_inner),
        ))
    }

    fn with(turn: Turn) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!(
            "t{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let directory = tempfile::Builder::new()
            .prefix("myelin-test")
            .tempdir()
            .expect("a directory");
        Self {
            _turn: turn,
            directory,
            links: std::cell::RefCell::default(),
            tag,
        }
    }

    /// The run directory.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// A chain's name in this instance.
    pub(crate) fn chain(&self, name: &str) -> String {
        format!("{name}-{}", self.tag)
    }

    /// Writes a chain file; `@` in front of a name becomes this instance's form of it.
    pub(crate) fn file(&self, text: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = self.directory.path().join(format!(
            "chain{}.yaml",
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        let mut parts = text.split('@');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
                .unwrap_or(part.len());
            text.push_str(&self.chain(&part[..end]));
            text.push_str(&part[end..]);
        }
        std::fs::write(&path, text).expect("a chain file");
        path
    }

    /// Remembers the links in the journal; it is gone when they are.
    fn note_links(&self) {
        let journal = std::fs::read_to_string(self.run_dir().join("journal")).unwrap_or_default();
        for record in journal
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
        {
            let record: serde_json::Value = record;
            if record["intended"]["kind"] == "link" {
                let name = record["intended"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                self.links.borrow_mut().insert(name);
            }
        }
    }

    /// The kinds of what the agent has ever meant to make for a chain. Its own eBPF file system is for none.
    pub(crate) fn ever_made(&self) -> Vec<String> {
        let journal = std::fs::read_to_string(self.run_dir().join("journal")).expect("a journal");
        let kinds = journal.lines().map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("a record");
            record["intended"]["kind"].as_str().unwrap_or("").to_owned()
        });
        kinds
            .filter(|kind| !matches!(&**kind, "" | "bpffs"))
            .collect()
    }

    /// A command of the binary.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.note_links();
        let mut command = Command::new(env!("CARGO_BIN_EXE_myelin"));
        command
            .args(arguments)
            .env("MYELIN_RUN_DIR", self.run_dir())
            .env(
                "MYELIN_CALIBRATION",
                self.directory.path().join("calibration.json"),
            )
            .stdin(Stdio::null());
        command
    }

    /// Runs a command of the binary to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary starts")
    }

    /// Runs a command that must succeed, and gives its standard output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "myelin {arguments:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must succeed and print JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(arguments)).expect("JSON")
    }

    /// Runs a command that must fail with this exit status. Returns its standard error, with wrapped
    /// lines joined.
    pub(crate) fn fails(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(status),
            "myelin {arguments:?}: {text}"
        );
        assert!(!text.contains("panicked"), "{text}");
        text.replace("\n       ", " ")
    }

    /// The agent's process.
    pub(crate) fn agent_pid(&self) -> i32 {
        let read = || {
            let text = std::fs::read_to_string(self.run_dir().join("agent.lock")).ok()?;
            text.trim().parse().ok()
        };
        // One that starts just now has not written it yet.
        wait_for("the agent's number", || read().is_some());
        read().expect("the agent's process number")
    }

    /// Kills the agent, and waits for its end: one that is just ending would still take a connection.
    pub(crate) fn kill_agent(&self) {
        let pid = self.agent_pid().into();
        kill(&pid);
        wait_for("the agent's end", || !is_alive(&pid));
    }

    /// What the agent said last, where a client started it.
    pub(crate) fn agent_log(&self) -> String {
        std::fs::read_to_string(self.run_dir().join("agent.log")).unwrap_or_default()
    }

    /// The chains that run, so many.
    pub(crate) fn chains(&self, count: usize) -> Vec<serde_json::Value> {
        let list = self.json(&["ps", "--json"]);
        let list = list.as_array().expect("a list").clone();
        assert_eq!(
            list.len(),
            count,
            "{list:?}\nthe agent {} said: {}",
            self.agent_pid(),
            self.agent_log()
        );
        list
    }

    /// What `ps` says of the chain of that name.
    pub(crate) fn status(&self, name: &str) -> serde_json::Value {
        let list = self.json(&["ps", "--json"]);
        let name = self.chain(name);
        let mut chains = list.as_array().expect("a list").iter();
        let found = chains.find(|one| one["chain"] == name.as_str());
        found.expect("the chain").clone()
    }

    /// Sends probe packets of so many bytes through a chain, one after the other; returns the result.
    pub(crate) fn probe(&self, name: &str, payload: u32, count: u32) -> serde_json::Value {
        let report = self.json(&[
            "probe",
            &self.chain(name),
            "--mode",
            "inline",
            "--payload",
            &payload.to_string(),
            "--count",
            &count.to_string(),
            "--repeats",
            "1",
            "--interval",
            "0us",
            "--json",
        ]);
        report["rows"][0].clone()
    }

    /// Kills the process that `member` of the chain's status names, until it is given up and the chain has failed.
    pub(crate) fn kill_until_failed(
        &self,
        name: &str,
        member: impl Fn(&serde_json::Value) -> serde_json::Value,
    ) {
        // Deaths count together within 10 s, so on a busy machine it may take more than four.
        wait_for("the end of it", || {
            let status = self.status(name);
            if let Some(pid) = member(&status)["pid"].as_i64().filter(|pid| *pid > 0) {
                // It may have ended meanwhile.
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
            }
            status["state"] == "failed"
        });
        assert_eq!(self.status(name)["state"], "failed");
    }

    /// Starts an agent and has it bring the file's chains up; kills it so long after. Then `down --all` must leave nothing.
    pub(crate) fn kill_agent_in_up(&self, file: &Path, delay: Duration) {
        // The agent first, so that the delay falls into the deployment.
        let mut agent = self
            .command(&["agent"])
            .stderr(Stdio::null())
            .spawn()
            .expect("an agent");
        wait_for("the agent", || self.run_dir().join("agent.sock").exists());
        let mut up = self
            .command(&["up", file.to_str().expect("a path")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a client");
        std::thread::sleep(delay);
        // The client too, which might start another agent.
        up.kill().expect("kill -9");
        agent.kill().expect("kill -9");
        // Without waiting for their end.
        self.ok(&["down", "--all"]);
        let _ = agent.wait();
        let _ = up.wait();
        self.assert_clean();
    }

    /// Everything that carries this instance's mark: namespaces, links, processes, files.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/run/netns")
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains(&self.tag) {
                found.push(format!("namespace {name}"));
            }
        }
        let id = myelin_api::RunDir::resolve(Some(&self.run_dir())).id();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains("myelin")
                && (line.contains(&id) || line.contains(&*self.run_dir().to_string_lossy()))
            {
                found.push(format!("process {line}"));
            }
        }
        for kind in ["cgroup", "cgroup2"] {
            let hierarchies = myelin_linux::procfs::mounts(kind).unwrap_or_default();
            let groups = hierarchies.iter().map(|at| at.join(format!("myelin-{id}")));
            let left = groups.filter(|group| group.exists());
            found.extend(left.map(|group| format!("control group {}", group.display())));
        }
        for directory in ["containers", "runc"] {
            if self.run_dir().join(directory).exists() {
                found.push(format!("the directory {directory}"));
            }
        }
        for link in &*self.links.borrow() {
            if Path::new("/sys/class/net").join(link).exists() {
                found.push(format!("link {link}"));
            }
        }
        if mounts().contains(&*self.run_dir().to_string_lossy()) {
            found.push("a mount in the run directory".to_owned());
        }
        found
    }

    /// Asserts that nothing of this instance is left on the machine.
    pub(crate) fn assert_clean(&self) {
        wait_for("a clean machine", || self.leftovers().is_empty());
        assert_eq!(self.leftovers(), Vec::<String>::new());
    }
}

impl Drop for Myelin {
    fn drop(&mut self) {
        let output = self.run(&["down", "--all"]);
        if !output.status.success() {
            println!("down --all: {}", String::from_utf8_lossy(&output.stderr));
        }
        // The directory cannot be removed with a mount in it, which would stay as long as the machine.
        let mount = self.run_dir().join("bpf");
        if mounts().contains(&*mount.to_string_lossy()) {
            println!("left by `down --all`: a mount at {}", mount.display());
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
    }
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/mounts").unwrap_or_default()
}

/// How long what must come about soon may take where others use the machine too: a test is no stopwatch.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same where each step of the processor is emulated.
const PATIENCE_WITH_AN_EMULATOR: Duration = Duration::from_secs(300);

/// Whether nobody else uses this machine: the emulated one of `scripts/test-old-kernel`.
pub(crate) fn is_own_machine() -> bool {
    std::env::var_os("MYELIN_TEST_MACHINE").is_some_and(|value| value == "1")
}

/// Polls until `condition` holds or patience is out; the caller asserts what it waited for.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    let patience = if is_own_machine() {
        PATIENCE_WITH_AN_EMULATOR
    } else {
        PATIENCE
    };
    while !condition() {
        if start.elapsed() > patience {
            println!("gave up waiting for {what}");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a shell command that must succeed.
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("sh")
        .args(["-ec", command])
        .output()
        .expect("sh");
    assert!(
        output.status.success(),
        "{command}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a process that a status names has not ended.
pub(crate) fn is_alive(pid: &serde_json::Value) -> bool {
    let pid = pid.as_u64().expect("a process");
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Kills a process that a status names.
pub(crate) fn kill(pid: &serde_json::Value) {
    // 0 would be this test's own group.
    let pid = pid.as_i64().filter(|pid| *pid > 0).expect("a process");
    sh(&format!("kill -9 {pid}"));
}
