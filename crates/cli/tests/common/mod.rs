//! Runs the `myelin` binary with a separate agent, and removes everything at the end, also after a
//! failure.

#![allow(dead_code, reason = "each test file uses some of these")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) mod chains;
pub(crate) mod conformance;
pub(crate) mod delay;
pub(crate) mod load;
pub(crate) mod port_chains;
pub(crate) mod port_pair;
pub(crate) mod streams;
pub(crate) mod taps;

/// Prints why a test is skipped; with `CI=true`, `scripts/test` refuses reasons that are not in
/// `scripts/allowed-skips.txt`.
pub(crate) fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

/// Returns true, and prints a reason, if the test does not run as root.
pub(crate) fn skip_unless_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("needs root");
    }
    !root
}

/// Returns true, and prints a reason, if a tool is not installed.
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

/// Returns the top directory of the repository.
pub(crate) fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository exists")
}

/// Locks the file that all test processes share. A test that measures or watches the whole machine
/// runs alone, because its lock is exclusive. Tests that watch only their own instance share the
/// lock and run side by side.
fn lock_machine(lock: impl FnOnce(&File) -> std::io::Result<()>) -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine.lock");
    std::fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).expect("the directory is made");
    // Another user may own the file; a lock needs no right to write.
    let file = File::open(&path).or_else(|_| File::create(&path));
    let file = file.expect("the lock file opens");
    lock(&file).expect("the file is locked");
    file
}

/// A run directory with its agent. Chain names carry the tag of the instance, so that tests can run
/// side by side.
pub(crate) struct Myelin {
    _machine_lock: File,
    directory: tempfile::TempDir,
    /// Links that the journal of this instance has named.
    links: std::cell::RefCell<std::collections::BTreeSet<String>>,
    /// Suffix of the names of this instance's chains.
    pub(crate) tag: String,
}

impl Myelin {
    /// Makes a run directory without an agent, for a test that runs alone.
    pub(crate) fn new() -> Self {
        Self::with_lock(lock_machine(File::lock))
    }

    /// Makes a run directory for a test that neither measures nor watches the whole machine. Other
    /// such tests run at the same time.
    pub(crate) fn new_shared() -> Self {
        Self::with_lock(lock_machine(File::lock_shared))
    }

    fn with_lock(machine_lock: File) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!(
            "t{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let directory = tempfile::Builder::new()
            .prefix("myelin-test")
            .tempdir()
            .expect("a temporary directory is made");
        Self {
            _machine_lock: machine_lock,
            directory,
            links: std::cell::RefCell::default(),
            tag,
        }
    }

    /// Returns the run directory.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Returns a chain's name in this instance.
    pub(crate) fn chain_name(&self, name: &str) -> String {
        format!("{name}-{}", self.tag)
    }

    /// Writes a chain file. Each `@NAME` becomes [`Self::chain_name`]`(NAME)`.
    pub(crate) fn write_file(&self, text: &str) -> PathBuf {
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
            text.push_str(&self.chain_name(&part[..end]));
            text.push_str(&part[end..]);
        }
        std::fs::write(&path, text).expect("the chain file is written");
        path
    }

    /// Records the links that the journal names. The agent removes the journal with the links.
    fn record_links(&self) {
        let journal = std::fs::read_to_string(self.run_dir().join("journal")).unwrap_or_default();
        for line in journal.lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            if let Some(name) = link_name(&record["intended"]) {
                self.links.borrow_mut().insert(name);
            }
        }
    }

    /// Lists the links that the journal names and that exist.
    pub(crate) fn list_journaled_links(&self) -> Vec<String> {
        self.record_links();
        let links = self.links.borrow();
        let exists = |link: &&String| Path::new("/sys/class/net").join(link).exists();
        links.iter().filter(exists).cloned().collect()
    }

    /// Lists the kinds of all objects in the journal, except the eBPF file system, which belongs to
    /// no chain.
    pub(crate) fn list_journaled_kinds(&self) -> Vec<String> {
        let journal = std::fs::read_to_string(self.run_dir().join("journal"))
            .expect("the journal is readable");
        let kinds = journal.lines().map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("the record is JSON");
            record["intended"]["kind"].as_str().unwrap_or("").to_owned()
        });
        kinds
            .filter(|kind| !matches!(&**kind, "" | "bpffs"))
            .collect()
    }

    /// Prepares a `myelin` command for this instance.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.record_links();
        let mut command = Command::new(env!("CARGO_BIN_EXE_myelin"));
        command
            .args(arguments)
            .env("MYELIN_RUN_DIR", self.run_dir())
            .env(
                "MYELIN_CALIBRATION",
                self.directory.path().join("calibration.json"),
            )
            .env("MYELIN_IMAGES", self.directory.path().join("images"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command until it ends.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary starts")
    }

    /// Runs a command that must succeed; returns its standard output.
    pub(crate) fn run_ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "myelin {arguments:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("the output is UTF-8")
    }

    /// Runs a command that must succeed; returns the JSON that it prints.
    pub(crate) fn run_json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.run_ok(arguments)).expect("the output is JSON")
    }

    /// Runs a command that must fail with this exit status. Returns its standard error, with
    /// wrapped lines joined.
    pub(crate) fn run_failing(&self, status: i32, arguments: &[&str]) -> String {
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

    /// Reads the process number of the agent.
    pub(crate) fn read_agent_pid(&self) -> i32 {
        let read = || {
            let text = std::fs::read_to_string(self.run_dir().join("agent.lock")).ok()?;
            text.trim().parse().ok()
        };
        // A starting agent has not written its number yet.
        wait_for("the agent's process number", || read().is_some());
        read().expect("the lock file has the agent's process number")
    }

    /// Kills the agent and waits for its end, because until then the agent accepts connections.
    pub(crate) fn kill_agent(&self) {
        let pid = self.read_agent_pid().into();
        kill(&pid);
        wait_for("the agent's end", || !is_alive(&pid));
    }

    /// Reads the log of an agent that a client started.
    pub(crate) fn read_agent_log(&self) -> String {
        std::fs::read_to_string(self.run_dir().join("agent.log")).unwrap_or_default()
    }

    /// Asserts that `count` chains run; returns their status.
    pub(crate) fn expect_chains(&self, count: usize) -> Vec<serde_json::Value> {
        let list = self.run_json(&["ps", "--json"]);
        let list = list.as_array().expect("the JSON is a list").clone();
        assert_eq!(
            list.len(),
            count,
            "{list:?}\nlog of agent {}: {}",
            self.read_agent_pid(),
            self.read_agent_log()
        );
        list
    }

    /// Reads the status of the chain of this name from `ps --json`.
    pub(crate) fn read_status(&self, name: &str) -> serde_json::Value {
        let list = self.run_json(&["ps", "--json"]);
        let name = self.chain_name(name);
        let mut chains = list.as_array().expect("the JSON is a list").iter();
        let found = chains.find(|chain| chain["chain"] == name.as_str());
        found.expect("the chain runs").clone()
    }

    /// Probes a chain with `count` packets of `payload` bytes without pause; returns the row of the
    /// report. `lost` there are packets that never came back: on a busy machine answers are late,
    /// and the chain may miss its SLA.
    pub(crate) fn probe(&self, name: &str, payload: u32, count: u32) -> serde_json::Value {
        let name = self.chain_name(name);
        let (payload, count) = (payload.to_string(), count.to_string());
        let measured = ["--payload", &payload, "--count", &count, "--repeats", "1"];
        let options = ["--mode", "inline", "--interval", "0us", "--json"];
        let output = self.run(&[&["probe", &name], &measured[..], &options].concat());
        assert!(
            matches!(output.status.code(), Some(0 | 5)),
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("the output is JSON");
        let mut row = report["rows"][0].clone();
        row["lost"] = load::count_never_answered(&row).into();
        row
    }

    /// Repeatedly kills the process that `find_process` finds in the status, until the supervisor
    /// stops restarting the process and the chain has failed.
    pub(crate) fn kill_until_failed(
        &self,
        name: &str,
        find_process: impl Fn(&serde_json::Value) -> serde_json::Value,
    ) {
        // The supervisor stops restarting a process after four deaths within 10 s. On a busy
        // machine more deaths may be necessary, because the time between two deaths is longer.
        wait_for("the chain to fail", || {
            let status = self.read_status(name);
            if let Some(pid) = find_process(&status)["pid"].as_i64().filter(|pid| *pid > 0) {
                // The process may have ended already.
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
            }
            status["state"] == "failed"
        });
        assert_eq!(self.read_status(name)["state"], "failed");
    }

    /// Kills an agent `delay` after the beginning of `up`; asserts that `down --all` removes all.
    pub(crate) fn kill_agent_during_up(&self, file: &Path, delay: Duration) {
        // Starts the agent first, so that the delay counts from the beginning of the deployment.
        let mut agent = self
            .command(&["agent"])
            .stderr(Stdio::null())
            .spawn()
            .expect("the agent starts");
        wait_for("the agent", || self.run_dir().join("agent.sock").exists());
        let mut up = self
            .command(&["up", file.to_str().expect("the path is UTF-8")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the client starts");
        std::thread::sleep(delay);
        // Kills the client too, because it might start another agent.
        up.kill().expect("the process is killed");
        agent.kill().expect("the process is killed");
        // `down --all` must cope with processes that are still ending.
        self.run_ok(&["down", "--all"]);
        let _ = agent.wait();
        let _ = up.wait();
        self.assert_clean();
    }

    /// Lists objects on the machine that belong to this instance: namespaces, links, processes,
    /// files.
    pub(crate) fn list_leftovers(&self) -> Vec<String> {
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
            let hierarchies = myelin_linux::procfs::find_mounts(kind).unwrap_or_default();
            let groups = hierarchies.iter().map(|at| at.join(format!("myelin-{id}")));
            let existing = groups.filter(|group| group.exists());
            found.extend(existing.map(|group| format!("control group {}", group.display())));
        }
        for directory in ["containers", "runc", "nodes"] {
            if self.run_dir().join(directory).exists() {
                found.push(format!("the directory {directory}"));
            }
        }
        for link in &*self.links.borrow() {
            if link_exists(link) {
                found.push(format!("link {link}"));
            }
        }
        if read_mounts().contains(&*self.run_dir().to_string_lossy()) {
            found.push("a mount in the run directory".to_owned());
        }
        found
    }

    /// Asserts that no object of this instance is left on the machine.
    pub(crate) fn assert_clean(&self) {
        wait_for("a clean machine", || self.list_leftovers().is_empty());
        assert_eq!(self.list_leftovers(), Vec::<String>::new());
    }
}

impl Drop for Myelin {
    fn drop(&mut self) {
        let output = self.run(&["down", "--all"]);
        if !output.status.success() {
            println!("down --all: {}", String::from_utf8_lossy(&output.stderr));
        }
        // A mount would keep the temporary directory from being removed.
        let mount = self.run_dir().join("bpf");
        if read_mounts().contains(&*mount.to_string_lossy()) {
            println!("`down --all` left a mount at {}", mount.display());
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
    }
}

/// The name of a link in the journal; `None` for another kind of object.
/// Returns the name of a journaled link, or the beginning of the names of a group of links.
fn link_name(resource: &serde_json::Value) -> Option<String> {
    let key = match resource["kind"].as_str()? {
        "link" => "name",
        "links" => "prefix",
        _ => return None,
    };
    resource[key].as_str().map(str::to_owned)
}

/// Whether a link has that name, or a name that begins with it.
fn link_exists(prefix: &str) -> bool {
    let links = std::fs::read_dir("/sys/class/net");
    let mut links = links.into_iter().flatten().flatten();
    links.any(|link| link.file_name().to_string_lossy().starts_with(prefix))
}

fn read_mounts() -> String {
    std::fs::read_to_string("/proc/mounts").unwrap_or_default()
}

/// Longest time that [`wait_for`] waits. Long, because other programs use the machine too.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Longest time on a machine with an emulated processor.
const WAIT_LIMIT_EMULATED: Duration = Duration::from_secs(300);

/// Returns whether only the tests use this machine: the emulated machine of
/// `scripts/test-old-kernel`.
pub(crate) fn is_dedicated_machine() -> bool {
    std::env::var_os("MYELIN_TEST_MACHINE").is_some_and(|value| value == "1")
}

/// Polls until `condition` holds. Fails after the time limit.
pub(crate) fn wait_for(event: &str, condition: impl FnMut() -> bool) {
    assert!(becomes_true(condition), "timeout: waited for {event}");
}

/// Polls until `condition` holds or the time limit passes. Returns whether it holds.
pub(crate) fn becomes_true(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let limit = if is_dedicated_machine() {
        WAIT_LIMIT_EMULATED
    } else {
        WAIT_LIMIT
    };
    while !condition() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Runs a shell command that must succeed.
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("sh")
        .args(["-ec", command])
        .output()
        .expect("sh runs");
    assert!(
        output.status.success(),
        "{command}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns whether the process with this number runs. The number comes from a status.
pub(crate) fn is_alive(pid: &serde_json::Value) -> bool {
    let pid = pid.as_u64().expect("the status has a process number");
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Kills the process with this number. The number comes from a status.
pub(crate) fn kill(pid: &serde_json::Value) {
    // 0 would kill the process group of this test.
    let pid = pid
        .as_i64()
        .filter(|pid| *pid > 0)
        .expect("the status has a process number");
    sh(&format!("kill -9 {pid}"));
}
