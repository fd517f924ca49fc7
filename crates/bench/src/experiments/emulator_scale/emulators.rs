//! Stars of hosts, made by the agent, the command line, the Python package and Mininet.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use myelin_api::{ExecEvent, ExecRequest};

use crate::agents::AgentProcess;
use crate::installed::find_packaged;
use crate::machine::MemoryMib;
use crate::owned_child::{OwnedChild, read_all};
use crate::python_package::prepend_to_search_path;
use crate::sampling::quantile;
use crate::scratch::ScratchDirectory;
use crate::{Error, Session};

/// Longest time of a star that a script makes.
const SCRIPT_TIME: Duration = Duration::from_secs(120);
/// Imports that are compared. The package loads its classes when they are first named.
pub(super) const IMPORTS: [(&str, &str); 2] = [
    ("myelin", "import myelin; myelin.Network, myelin.Chain"),
    ("json, ssl, http.client", "import json, ssl, http.client"),
];
/// Pause after a star: the kernel removes namespaces in the background.
const PAUSE: Duration = Duration::from_millis(500);
/// Commands that a star's first host runs.
const COMMANDS: usize = 20;
const SHELL_COMMAND: [&str; 3] = ["sh", "-c", "true"];
const PROGRAM: &str = "/bin/true";
const SCRIPT: &str = include_str!("../../../reference/star.py");

/// A star that came up, ran commands and went down.
#[derive(Debug, Clone, Copy)]
pub(super) struct Star {
    pub(super) up_ms: f64,
    pub(super) down_ms: f64,
    /// Memory of the emulator's processes.
    pub(super) memory_mib: f64,
    /// Median time of `true`, a command of the shell itself, on a host.
    pub(super) cmd_ms: f64,
    /// Median time of `/bin/true`, a program, on a host.
    pub(super) program_ms: f64,
}

/// Makes stars.
#[derive(Debug)]
pub(super) enum Emulator {
    /// Requests to an agent that runs already.
    Agent,
    /// The program `myelin`, beside such an agent.
    CommandLine,
    /// The Python package, beside such an agent.
    Python(Python),
    /// Debian's Mininet. The value is its interpreter.
    Mininet(PathBuf),
}

/// A Python interpreter that finds the package `myelin`.
#[derive(Debug)]
pub(super) struct Python {
    interpreter: PathBuf,
    package: PathBuf,
    /// The compiled modules, as an installed package has them.
    compiled: ScratchDirectory,
}

impl Emulator {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Agent => "myelin",
            Self::CommandLine => "command line",
            Self::Python(_) => "python",
            Self::Mininet(_) => "mininet",
        }
    }

    /// Makes a star and removes it.
    pub(super) fn make(&self, session: Session<'_>, hosts: usize) -> Result<Star, Error> {
        let star = match self {
            Self::Agent => make_by_agent(session, hosts),
            Self::CommandLine => make_by_command_line(session, hosts),
            Self::Python(python) => python.make(session, hosts),
            Self::Mininet(interpreter) => make_by_mininet(session, interpreter, hosts),
        };
        std::thread::sleep(PAUSE);
        star
    }

    /// Finds Mininet and the programs that it needs.
    pub(super) fn find_mininet() -> Result<Self, Error> {
        let program = find_packaged("mn", "mininet")?;
        find_packaged("brctl", "bridge-utils")?;
        find_packaged("unshare", "util-linux")?;
        let text = std::fs::read_to_string(&program).unwrap_or_default();
        let first = text.lines().next().and_then(|line| line.strip_prefix("#!"));
        let interpreter = first.map(str::trim).filter(|path| !path.contains(' '));
        interpreter
            .map(|path| Self::Mininet(path.into()))
            .ok_or_else(|| {
                failed(
                    "mininet",
                    format!("{} names no interpreter", program.display()),
                )
            })
    }
}

impl Python {
    /// Finds the interpreter, and the package that belongs to this program.
    pub(super) fn find(session: Session<'_>) -> Result<Self, Error> {
        let interpreter = find_packaged("python3", "python3")?;
        let package = crate::find_python_package(session.program).ok_or_else(|| {
            let program = session.program.display();
            failed(
                "python",
                format!("{program} has no package `myelin`: run `make install`"),
            )
        })?;
        let python = Self {
            interpreter,
            package,
            compiled: ScratchDirectory::new()?,
        };
        let mut compile = python.command();
        compile
            .args(["-m", "compileall", "-q"])
            .arg(&python.package);
        run_program(compile)?;
        // The modules of Python itself.
        for statement in [IMPORTS[0].1, IMPORTS[1].1] {
            python.import(session, statement)?;
        }
        Ok(python)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .env("PYTHONPATH", prepend_to_search_path(&self.package))
            .env("PYTHONPYCACHEPREFIX", self.compiled.path())
            .env_remove("PYTHONDONTWRITEBYTECODE");
        command
    }

    /// The time of an import in a new interpreter, ms.
    pub(super) fn import(&self, session: Session<'_>, what: &str) -> Result<f64, Error> {
        let script = format!(
            "import time; start = time.monotonic(); {what}; print((time.monotonic() - start) * 1e3)"
        );
        let mut command = self.command();
        command.args(["-c", &script]);
        let text = run_script(session, "python", command)?;
        let time = text.trim().parse();
        time.map_err(|_| failed("python", format!("`{what}` printed {text:?}")))
    }

    fn make(&self, session: Session<'_>, hosts: usize) -> Result<Star, Error> {
        let agent = AgentProcess::start(session.program)?;
        let name = agent.dir.chain_name("star");
        let mut command = self.command();
        command
            .args(["-c", SCRIPT, &hosts.to_string()])
            .args([&COMMANDS.to_string(), &name])
            .env("MYELIN_RUN_DIR", agent.dir.run_dir.path())
            .env("MYELIN", session.program);
        let text = run_script(session, "python", command)?;
        let star = parse_star("python", &text)?;
        Ok(Star {
            memory_mib: star.memory_mib + memory_of(&agent)?,
            ..star
        })
    }
}

fn make_by_agent(session: Session<'_>, hosts: usize) -> Result<Star, Error> {
    let agent = AgentProcess::start(session.program)?;
    let name = agent.dir.chain_name("star");
    let text = star_text(&name, hosts);
    let (up_ms, ()) = time_ms(|| agent.up(text))?;
    let memory_mib = memory_of(&agent)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = null.map_err(|cause| Error::system("open /dev/null", cause))?;
    let exec = |command: &[&str]| {
        let request = ExecRequest {
            host: format!("{name}/h1"),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            env: std::iter::once(("PATH".to_owned(), "/usr/bin:/bin".to_owned())).collect(),
            directory: "/".to_owned(),
            ..ExecRequest::default()
        };
        let mut stream = agent.client.exec(&request, [null.as_fd(); 3])?;
        loop {
            match stream.next_event()? {
                ExecEvent::Ended { code: Some(0), .. } => return Ok(()),
                ExecEvent::Ended { code, .. } => {
                    return Err(failed("myelin", format!("{command:?} ended with {code:?}")));
                }
                _ => {}
            }
        }
    };
    let [cmd_ms, program_ms] = median_times(exec)?;
    let (down_ms, _) = time_ms(|| Ok(agent.client.down(&name)?))?;
    Ok(Star {
        up_ms,
        down_ms,
        memory_mib,
        cmd_ms,
        program_ms,
    })
}

/// Each step is a program `myelin` from its start to its end.
fn make_by_command_line(session: Session<'_>, hosts: usize) -> Result<Star, Error> {
    let agent = AgentProcess::start(session.program)?;
    let name = agent.dir.chain_name("star");
    let file = agent.dir.run_dir.path().join("star.yaml");
    std::fs::write(&file, star_text(&name, hosts))
        .map_err(|cause| Error::system(format!("write {}", file.display()), cause))?;
    let run = |words: &[&str]| {
        let mut command = Command::new(session.program);
        command
            .args(words)
            .env("MYELIN_RUN_DIR", agent.dir.run_dir.path());
        run_program(command)
    };
    let (up_ms, ()) = time_ms(|| run(&["up", &file.to_string_lossy()]))?;
    let memory_mib = memory_of(&agent)?;
    let host = format!("{name}/h1");
    let exec = |command: &[&str]| run(&[&["exec", &host, "--"], command].concat());
    let [cmd_ms, program_ms] = median_times(exec)?;
    let (down_ms, ()) = time_ms(|| run(&["down", &name]))?;
    Ok(Star {
        up_ms,
        down_ms,
        memory_mib,
        cmd_ms,
        program_ms,
    })
}

/// Makes a star in a network namespace that ends with the process.
fn make_by_mininet(session: Session<'_>, interpreter: &Path, hosts: usize) -> Result<Star, Error> {
    let mut command = Command::new("unshare");
    command.arg("--net").arg(interpreter);
    command.args(["-c", SCRIPT, &hosts.to_string()]);
    command.arg(COMMANDS.to_string());
    parse_star("mininet", &run_script(session, "mininet", command)?)
}

/// The chain file of a star.
fn star_text(name: &str, hosts: usize) -> String {
    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n  \
         switches: [ s1 ]\n"
    );
    // Writing to a string cannot fail.
    let _ = text.write_str("  hosts:\n");
    for host in 1..=hosts {
        let _ = writeln!(text, "    - h{host}");
    }
    let _ = text.write_str("  links:\n");
    for host in 1..=hosts {
        let _ = writeln!(text, "    - {{ ends: [ h{host}, s1 ] }}");
    }
    text
}

fn memory_of(agent: &AgentProcess) -> Result<f64, Error> {
    let memory = MemoryMib::of(&[agent.client.info()?.pid])?;
    Ok(memory.figures()[1])
}

/// Runs a step, and returns its time, ms.
fn time_ms<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<(f64, T), Error> {
    let start = Instant::now();
    let result = step()?;
    Ok((start.elapsed().as_secs_f64() * 1e3, result))
}

/// The median times of a command of the shell itself and of a program, ms.
fn median_times(exec: impl Fn(&[&str]) -> Result<(), Error>) -> Result<[f64; 2], Error> {
    let median = |command: &[&str]| {
        let times = (0..COMMANDS).map(|_| Ok(time_ms(|| exec(command))?.0));
        let mut times = times.collect::<Result<Vec<f64>, Error>>()?;
        times.sort_by(f64::total_cmp);
        Ok::<f64, Error>(quantile(&times, 0.5))
    };
    Ok([median(&SHELL_COMMAND)?, median(&[PROGRAM])?])
}

/// Runs a program to its end.
fn run_program(mut command: Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|cause| Error::system(format!("start `{name}`"), cause))?;
    if output.status.success() {
        return Ok(());
    }
    let words = command.get_args().map(|word| word.to_string_lossy());
    Err(Error::Command {
        command: words.fold(name, |line, word| format!("{line} {word}")),
        status: output.status,
        messages: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs a script to its end, and returns what it printed. The peer's name is for errors.
fn run_script(session: Session<'_>, peer: &str, command: Command) -> Result<String, Error> {
    let (mut child, output) = OwnedChild::start_printing(command)?;
    let start = Instant::now();
    let ended = loop {
        if let Some(reason) = child.end_reason() {
            break reason;
        }
        session.check()?;
        if start.elapsed() > SCRIPT_TIME {
            return Err(failed(
                peer,
                format!("a script took more than {SCRIPT_TIME:?}"),
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = read_all(&output).map_err(|cause| Error::system("read a file in memory", cause))?;
    if text.is_empty() {
        return Err(failed(peer, format!("a script failed: {ended}")));
    }
    Ok(text)
}

/// Parses what a script of a star prints.
fn parse_star(peer: &str, text: &str) -> Result<Star, Error> {
    let mut figures = text.split_whitespace().map(str::parse);
    let mut next = || figures.next()?.ok();
    let mut parse = || {
        Some(Star {
            up_ms: next()?,
            down_ms: next()?,
            memory_mib: next()?,
            cmd_ms: next()?,
            program_ms: next()?,
        })
    };
    parse().ok_or_else(|| failed(peer, format!("its script printed no figures: {text:?}")))
}

fn failed(peer: &str, reason: String) -> Error {
    Error::Peer {
        peer: peer.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_are_valid_and_figures_are_parsed() {
        let text = star_text("star", 3);
        let objects = crate::agents::chain_source(text).parse_objects().unwrap();
        let star = &objects.topologies[0];
        assert_eq!((star.hosts.len(), star.links.len()), (3, 3));
        let parsed = parse_star("mininet", "12.5 3.25 40.0 1.5 2.5\n").unwrap();
        assert_eq!((parsed.up_ms, parsed.memory_mib), (12.5, 40.0));
        assert_eq!((parsed.cmd_ms, parsed.program_ms), (1.5, 2.5));
        let error = parse_star("mininet", "Traceback").unwrap_err().to_string();
        assert!(
            error.contains("mininet") && error.contains("Traceback"),
            "{error}"
        );
    }
}
