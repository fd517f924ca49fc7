//! An agent whose steps are counted, and that is killed or fails at a step of choice. A step is a
//! system call of a thread that works on a request, as far as it makes, changes or opens something:
//! `steps.c` has the list.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::{Myelin, kill, sh, wait_for};

/// What happens at a step.
#[derive(Clone, Copy)]
pub(crate) enum At {
    /// The agent is killed before it.
    Kill(u32),
    /// Its call fails with this error.
    Fail(u32, nix::errno::Errno),
}

/// An agent of an instance. Dropping it ends the process.
pub(crate) struct Agent {
    process: Child,
    directory: tempfile::TempDir,
    control: File,
    run_dir: PathBuf,
}

/// The library that counts steps, compiled for this run of the tests.
fn library() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/road/steps.c");
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

impl Agent {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(myelin: &Myelin) -> Self {
        Self::start_by(myelin, &[], &[])
    }

    /// The same by a program that becomes the agent, such as `unshare`, with its arguments; and
    /// with more variables, as `KEY=VALUE`.
    pub(crate) fn start_by(myelin: &Myelin, by: &[&str], variables: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let control = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path("control"))
            .expect("a file");
        control.write_all_at(&[0; 16], 0).expect("its content");
        let agent = myelin.command(&["agent"]);
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(library());
        let mut words: Vec<&OsStr> = by.iter().map(AsRef::as_ref).collect();
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
        let said = File::create(path("said")).expect("a file");
        let process = command.stderr(said).spawn().expect("an agent");
        let run_dir = myelin.run_dir();
        wait_for("the agent", || run_dir.join("agent.sock").exists());
        Self {
            process,
            directory,
            control,
            run_dir,
        }
    }

    /// Does something with the agent's steps counted; returns their number, and the result.
    pub(crate) fn count<T>(&self, work: impl FnOnce() -> T) -> (u32, T) {
        self.arm(0, 0);
        let done = work();
        self.disarm();
        (self.word(1), done)
    }

    /// How many steps it takes for these two commands.
    pub(crate) fn count_both(&self, myelin: &Myelin, up: &[&str], down: &[&str]) -> (u32, u32) {
        let [up, down] = [up, down].map(|command| self.count(|| myelin.ok(command)).0);
        println!("{up} steps up, {down} down");
        (up, down)
    }

    /// Does something that meets this at one of the agent's steps.
    pub(crate) fn with<T>(&self, at: At, work: impl FnOnce() -> T) -> T {
        match at {
            At::Kill(step) => self.arm(step, 0),
            At::Fail(step, error) => self.arm(step, error as u32),
        }
        let done = work();
        self.disarm();
        done
    }

    /// The calls that were counted last, one a line: name, number, name of what it is about.
    pub(crate) fn steps(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("steps")).unwrap_or_default()
    }

    /// What it wrote to its standard error.
    pub(crate) fn said(&self) -> String {
        let said = std::fs::read(self.directory.path().join("said")).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills it, if it has not been killed, and waits for its end.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Asks it to stop, and waits until it has removed everything.
    pub(crate) fn stop(mut self) {
        sh(&format!("kill -TERM {}", self.process.id()));
        let status = self.process.wait().expect("its end");
        let said = self.said();
        assert!(status.success(), "{status}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(!self.run_dir.join("journal").exists(), "{said}");
    }

    fn arm(&self, step: u32, error: u32) {
        let _ = File::create(self.directory.path().join("steps"));
        let words = [0, 0, step, error].map(u32::to_ne_bytes).concat();
        self.control.write_all_at(&words, 0).expect("the control");
        self.set_armed(true);
    }

    fn disarm(&self) {
        self.set_armed(false);
    }

    fn set_armed(&self, armed: bool) {
        let word = u32::from(armed).to_ne_bytes();
        self.control.write_all_at(&word, 0).expect("the control");
    }

    fn word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.control
            .read_exact_at(&mut word, at * 4)
            .expect("the control");
        u32::from_ne_bytes(word)
    }

    fn end(&mut self) {
        if self.is_alive() {
            kill(&self.process.id().into());
        }
        let _ = self.process.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// A test for each form, unless it is to be skipped, that `$test` makes of it.
macro_rules! for_forms {
    ($test:ident: $($name:ident: $form:expr, $skip:expr;)*) => { $(
        #[test]
        fn $name() {
            use crate::common::{skip_unless_root, skip_without};
            if skip_unless_root() || skip_without("cc") || $skip {
                return;
            }
            $test(&$form);
        }
    )* };
}
pub(crate) use for_forms;

/// So many of the steps, evenly over all of them; all of them where MYELIN_EXHAUSTIVE is set.
pub(crate) fn chosen(count: u32, most: u32) -> Vec<u32> {
    assert!(count > 0, "no step was counted");
    let is_exhaustive = std::env::var_os("MYELIN_EXHAUSTIVE").is_some_and(|value| value == "1");
    if is_exhaustive || count <= most {
        return (1..=count).collect();
    }
    (0..most)
        .map(|at| 1 + at * (count - 1) / (most - 1))
        .collect()
}
