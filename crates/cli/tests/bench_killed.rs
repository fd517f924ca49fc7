//! `myelin bench` that is killed, or whose subject is killed.

mod common;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use common::{Myelin, sh, skip_unless_root, wait_for};

/// An experiment in its own process group. Dropping it kills the group.
struct Experiment(Child);

impl Experiment {
    fn start(myelin: &Myelin, arguments: &[&str]) -> Self {
        use std::os::unix::process::CommandExt;
        let arguments = [&["bench", "hop-cost", "--quick"], arguments].concat();
        let mut command: Command = myelin.command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let experiment = Self(
            command
                .process_group(0)
                .spawn()
                .expect("the experiment starts"),
        );
        wait_for("a chain", || {
            !experiment.list_namespaces().is_empty() && experiment.find_pin().is_some()
        });
        experiment
    }

    fn run_dir(&self) -> PathBuf {
        PathBuf::from(format!("/run/myelin-bench-{}-0", self.0.id()))
    }

    fn list_namespaces(&self) -> String {
        sh(&format!(
            "ip netns list | grep -- '-bench-{}-' || true",
            self.0.id()
        ))
    }

    /// Finds a pinned map or program in the experiment's eBPF file system.
    fn find_pin(&self) -> Option<PathBuf> {
        let mut entries = std::fs::read_dir(self.run_dir().join("bpf")).ok()?;
        Some(entries.next()?.ok()?.path())
    }

    /// Kills the experiment and its children.
    fn kill(&mut self) {
        let group = Pid::from_raw(self.0.id().try_into().expect("the process number fits"));
        // The group may have ended.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }

    /// Lists the objects on this machine whose names contain the experiment's number.
    fn list_leftovers(&self) -> String {
        let pid = self.0.id();
        let run_id = myelin_api::RunDir::resolve(Some(&self.run_dir())).id();
        sh(&format!(
            "ip netns list | grep -- '-bench-{pid}-' || true
             ip -o link | grep {run_id} || true
             grep myelin-bench-{pid}- /proc/mounts || true
             pgrep -a '^myelin' | grep -e {run_id} -e '-bench-{pid}-' || true
             find /sys/fs/cgroup -name '*{run_id}*' || true
             ls -d /run/myelin-bench-{pid}-* 2>/dev/null || true"
        ))
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn down_all_removes_a_killed_experiment_and_keeps_a_running_one() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let mut killed = Experiment::start(&myelin, &[]);
    // The pause between its packets makes the first deployment last for minutes, so its chains and
    // its first run directory exist until the test kills it.
    let mut running = Experiment::start(&myelin, &["--interval", "50ms"]);
    killed.kill();
    let leftovers = killed.list_leftovers();
    let run_dir = killed.run_dir();
    for expected in ["-bench-", &*run_dir.to_string_lossy()] {
        assert!(leftovers.contains(expected), "{leftovers}");
    }
    let text = myelin.run_ok(&["down", "--all"]);
    assert!(
        text.contains(&format!("recovered run directory {}", run_dir.display())),
        "{text}"
    );
    assert_eq!(killed.list_leftovers(), "");
    assert!(
        running
            .0
            .try_wait()
            .expect("the state is readable")
            .is_none()
    );
    let other = running.run_dir();
    assert!(
        Path::new(&other).exists() && !text.contains(&*other.to_string_lossy()),
        "{text}"
    );
    assert_ne!(running.list_namespaces(), "");
    running.kill();
    myelin.run_ok(&["down", "--all"]);
    assert_eq!(running.list_leftovers(), "");
    myelin.assert_clean();
}

#[test]
fn figures_are_kept_without_claims_when_a_subject_dies() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let results = tempfile::tempdir().unwrap();
    let directory = results.path().to_str().unwrap();
    let mut experiment = Experiment::start(&myelin, &["--results", directory]);
    let pid = experiment.0.id();
    // A program that forwards is stopped until its turn. One that dies before it forwards fails its
    // deployment, and there are no figures yet.
    wait_for("a reference program that waits for its turn", || {
        let stopped = format!("pgrep -P {pid} --runstates T -f afxdp_forward || true");
        !sh(&stopped).is_empty()
    });
    sh(&format!("pkill -KILL -P {pid} -f afxdp_forward"));
    let mut error = String::new();
    let mut stderr = experiment.0.stderr.take().unwrap();
    stderr.read_to_string(&mut error).unwrap();
    let status = experiment.0.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{error}");
    assert!(
        error.contains("ended early") && error.contains("no claim is made"),
        "{error}"
    );
    let text = std::fs::read_to_string(results.path().join("hop-cost.json")).unwrap();
    let report = myelin_bench::open_envelope(&text).unwrap();
    assert!(!report.rows.is_empty() && report.claims.is_empty());
    let reason = report.ended_early.unwrap();
    assert!(
        error.replace("\n       ", " ").contains(&reason),
        "{error}: {reason}"
    );
    assert_eq!(experiment.list_leftovers(), "");
    myelin.assert_clean();
}
