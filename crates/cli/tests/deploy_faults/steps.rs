//! Counts the steps of an agent, and kills or stops the agent or makes a call fail at a chosen
//! step. A step is a system call that makes, changes or opens an object, in a thread that works on
//! a request. `steps.c` lists the calls.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Myelin, kill, sh, wait_for};

/// Values of `steps.c` instead of an error.
const KILL: u32 = 0;
const STOP: u32 = u32::MAX;

/// A fault that `steps.c` injects at a step.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// Kills the agent before this step.
    Kill(u32),
    /// Makes the call of this step fail with this error.
    Fail(u32, nix::errno::Errno),
}

/// An agent with `steps.c` preloaded. Dropping it kills the process.
pub(crate) struct SteppedAgent {
    process: Child,
    directory: tempfile::TempDir,
    control: File,
    run_dir: PathBuf,
}

/// Compiles `steps.c` once; returns the path of the library.
fn build_library() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy_faults/steps.c");
        let directory = env!("CARGO_TARGET_TMPDIR");
        let name = format!("{directory}/steps-{}.so", std::process::id());
        let path = format!("{directory}/steps.so");
        sh(&format!(
            "cc -shared -fPIC -O2 -Wall -Wextra -Werror -o {name} {source} -ldl && mv {name} {path}"
        ));
        path.into()
    });
    built.clone()
}

impl SteppedAgent {
    /// Starts the agent and waits until it serves.
    pub(crate) fn start(myelin: &Myelin) -> Self {
        Self::start_with(myelin, &[], &[])
    }

    /// Starts the agent with the command `wrapper` (such as `unshare -n`) and the environment
    /// variables `KEY=VALUE`, and waits until it serves.
    pub(crate) fn start_with(myelin: &Myelin, wrapper: &[&str], variables: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let path = |name: &str| directory.path().join(name);
        let control = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path("control"))
            .expect("the control file is made");
        control
            .write_all_at(&[0; 16], 0)
            .expect("the control file is writable");
        let agent = myelin.command(&["agent"]);
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(build_library());
        let mut words: Vec<&OsStr> = wrapper.iter().map(AsRef::as_ref).collect();
        words.extend([OsStr::new("env"), &preload]);
        words.extend(variables.iter().map(OsStr::new));
        words.push(agent.get_program());
        words.extend(agent.get_args());
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .envs(
                agent
                    .get_envs()
                    .filter_map(|(key, value)| Some((key, value?))),
            )
            .env("MYELIN_TEST_STEPS", path("control"))
            .env("MYELIN_TEST_STEPS_LOG", path("steps"))
            .stdin(Stdio::null());
        let log = File::create(path("log")).expect("the log is made");
        let process = command.stderr(log).spawn().expect("the agent starts");
        let run_dir = myelin.run_dir();
        wait_for("the agent", || run_dir.join("agent.sock").exists());
        Self {
            process,
            directory,
            control,
            run_dir,
        }
    }

    /// Counts the steps of the agent during `work`; returns the count and the result.
    pub(crate) fn count_steps<T>(&self, work: impl FnOnce() -> T) -> (u32, T) {
        self.arm(0, 0);
        let result = work();
        self.disarm();
        (self.read_word(1), result)
    }

    /// Counts the steps of two commands.
    pub(crate) fn count_steps_of_both(
        &self,
        myelin: &Myelin,
        up: &[&str],
        down: &[&str],
    ) -> (u32, u32) {
        let [up, down] = [up, down].map(|command| self.count_steps(|| myelin.run_ok(command)).0);
        println!("{up} steps up, {down} down");
        (up, down)
    }

    /// Runs `work` with a fault at one step of the agent.
    pub(crate) fn run_with_fault<T>(&self, fault: Fault, work: impl FnOnce() -> T) -> T {
        match fault {
            Fault::Kill(step) => self.arm(step, KILL),
            Fault::Fail(step, error) => self.arm(step, error as u32),
        }
        let result = work();
        self.disarm();
        result
    }

    /// Runs a command, and `meanwhile` while the agent is stopped at one of its steps. If the
    /// command ends before that step, `meanwhile` runs then.
    pub(crate) fn run_with_stop(
        &self,
        step: u32,
        mut command: Command,
        meanwhile: impl FnOnce(),
    ) -> Output {
        self.arm(step, STOP);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = command.spawn().expect("the client starts");
        let stat = format!("/proc/{}/stat", self.pid());
        let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
        wait_for("the step", || {
            is_stopped() || matches!(client.try_wait(), Ok(Some(_)))
        });
        meanwhile();
        sh(&format!("kill -CONT {}", self.pid()));
        let output = client.wait_with_output().expect("the client ends");
        self.disarm();
        output
    }

    /// Reads the last counted steps, one a line: name of the call, a number, path or name of the
    /// object.
    pub(crate) fn read_step_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("steps")).unwrap_or_default()
    }

    /// Reads the standard error of the agent.
    pub(crate) fn read_log(&self) -> String {
        let log = std::fs::read(self.directory.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns whether the process has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills the agent if it still runs, and waits for its end.
    pub(crate) fn kill(mut self) {
        self.kill_and_wait();
    }

    /// Sends SIGTERM and waits until the agent has removed everything and ended.
    pub(crate) fn stop(mut self) {
        sh(&format!("kill -TERM {}", self.process.id()));
        let status = self.process.wait().expect("the agent ends");
        let log = self.read_log();
        assert!(status.success(), "{status}: {log}");
        assert!(!log.contains("panicked"), "{log}");
        assert!(!self.run_dir.join("journal").exists(), "{log}");
    }

    fn arm(&self, step: u32, error: u32) {
        let _ = File::create(self.directory.path().join("steps"));
        let words = [0, 0, step, error].map(u32::to_ne_bytes).concat();
        self.control
            .write_all_at(&words, 0)
            .expect("the control file is accessible");
        self.set_armed(true);
    }

    fn disarm(&self) {
        self.set_armed(false);
    }

    fn set_armed(&self, armed: bool) {
        let word = u32::from(armed).to_ne_bytes();
        self.control
            .write_all_at(&word, 0)
            .expect("the control file is accessible");
    }

    fn read_word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.control
            .read_exact_at(&mut word, at * 4)
            .expect("the control file is accessible");
        u32::from_ne_bytes(word)
    }

    fn kill_and_wait(&mut self) {
        if self.is_alive() {
            kill(&self.process.id().into());
        }
        let _ = self.process.wait();
    }
}

impl Drop for SteppedAgent {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

/// Defines a test for each fixture: `$test` with the fixture, unless `$skip` is true.
macro_rules! for_each_fixture {
    ($test:ident: $($name:ident: $fixture:expr, $skip:expr;)*) => { $(
        #[test]
        fn $name() {
            use crate::common::{skip_unless_root, skip_without};
            if skip_unless_root() || skip_without("cc") || $skip {
                return;
            }
            $test(&$fixture);
        }
    )* };
}
pub(crate) use for_each_fixture;

/// Chooses at most `max_steps` of `count` steps, evenly spaced; with MYELIN_EXHAUSTIVE=1 all steps.
pub(crate) fn choose_steps(count: u32, max_steps: u32) -> Vec<u32> {
    assert!(count > 0, "no step was counted");
    let is_exhaustive = std::env::var_os("MYELIN_EXHAUSTIVE").is_some_and(|value| value == "1");
    if is_exhaustive || count <= max_steps {
        return (1..=count).collect();
    }
    (0..max_steps)
        .map(|at| 1 + at * (count - 1) / (max_steps - 1))
        .collect()
}
