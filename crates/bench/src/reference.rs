//! The C reference programs: the least code that forwards frames with a given technology, measured beside Myelin.
//!
//! Their sources are in `reference/`. Each is embedded as an executable, so a figure needs no second installation and is
//! always of the program that belongs to this build. A program runs in the network namespace of the calling thread, polls
//! on one CPU until its guard is dropped, and looks at no packet.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod fed;
mod ring;
mod runner;

pub(crate) use fed::FeedResult;
pub(crate) use ring::RingThroughput;
use runner::Runner;

/// From start to `ready`; DPDK takes about a second, most of it for its drivers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// From SIGTERM to exit.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const STOP_POLL: Duration = Duration::from_millis(2);

const AFXDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/afxdp_forward"));
const PACKET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/packet_forward"));
const CENTRALIZED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/centralized_forward"));
#[cfg(has_dpdk)]
const DPDK: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/dpdk_forward")));
#[cfg(not(has_dpdk))]
const DPDK: Option<&[u8]> = None;

/// Which reference program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Plain C over AF_XDP, without libxdp; copy mode, one UMEM for both interfaces.
    AfXdp,
    /// DPDK over its net_af_xdp driver, without hugepages.
    Dpdk,
    /// Plain C over `AF_PACKET` sockets, a system call a frame.
    Packet,
    /// Packet sockets and TAP devices with the kernel's routing in between: the centralized approach. Makes `central0`, where
    /// packets to be routed come in, and `central1`, where they are to be routed to.
    Centralized,
}

/// What a reference program forwards.
#[derive(Clone, Debug)]
pub struct Forwarding<'a> {
    /// Interface whose frames are taken (receive queue 0).
    pub ingress: &'a str,
    /// Interface they leave by.
    pub egress: &'a str,
    /// Most frames taken from a ring at once, 1 to 256.
    pub batch: u16,
    /// CPU that polls; without one, where the program happens to start.
    pub core: Option<usize>,
    /// Forward from egress to ingress too; otherwise what arrives at the egress stays the kernel's.
    pub both: bool,
    /// Poll. Only the centralized approach can do without: it sleeps then.
    pub poll: bool,
}

/// Why a reference program could not run. The text of a program that failed holds its own last words.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It was not built.
    #[error(
        "{name} was not built: {reason}; install DPDK's development files (libdpdk-dev) and build again"
    )]
    Absent {
        /// The program.
        name: &'static str,
        /// What the build found missing.
        reason: &'static str,
    },
    /// The operating system refused a step.
    #[error("{name}: {step}: {source}")]
    System {
        /// The program.
        name: &'static str,
        /// What was being done.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// It ended, or stayed silent, before it forwarded anything.
    #[error("{name} did not start ({what}): {words}")]
    NotReady {
        /// The program.
        name: &'static str,
        /// Exit status, or how long it was waited for.
        what: String,
        /// Its standard error.
        words: String,
    },
    /// It ended on its own while it should have been forwarding.
    #[error("{name} ended early ({status}): {words}")]
    Ended {
        /// The program.
        name: &'static str,
        /// How.
        status: ExitStatus,
        /// Its standard error.
        words: String,
    },
}

impl Reference {
    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AfXdp => "afxdp_forward",
            Self::Dpdk => "dpdk_forward",
            Self::Packet => "packet_forward",
            Self::Centralized => "centralized_forward",
        }
    }

    fn image(self) -> Result<&'static [u8], Error> {
        match self {
            Self::AfXdp => Ok(AFXDP),
            Self::Packet => Ok(PACKET),
            Self::Centralized => Ok(CENTRALIZED),
            Self::Dpdk => DPDK.ok_or(Error::Absent {
                name: self.name(),
                reason: env!("MYELIN_NO_DPDK"),
            }),
        }
    }

    /// Says whether the program was built; if not, the error is the reason to print beside the skipped row.
    pub fn available(self) -> Result<(), Error> {
        self.image().map(|_| ())
    }

    /// Starts the program in the calling thread's network namespace and waits until it forwards. Needs root.
    pub fn start(self, forwarding: &Forwarding) -> Result<Running, Error> {
        let name = self.name();
        let (mut command, _program) = embedded(name, self.image()?)?;
        command.args(["--ingress", forwarding.ingress]);
        command.args(["--egress", forwarding.egress]);
        command.args(["--batch", &forwarding.batch.to_string()]);
        if let Some(core) = forwarding.core {
            command.args(["--core", &core.to_string()]);
        }
        if forwarding.both {
            command.arg("--both");
        }
        if forwarding.poll {
            command.arg("--poll");
        }
        let (mut child, words) = spawn(name, command.stdin(Stdio::null()))?;
        let lines = follow(&mut child);
        let mut running = Running {
            name,
            child,
            lines,
            words,
            mode: String::new(),
        };
        running.wait_until_ready()?;
        Ok(running)
    }
}

/// A reference program at work; dropping it ends the program.
#[derive(Debug)]
pub struct Running {
    name: &'static str,
    child: Child,
    lines: Receiver<String>,
    words: File,
    mode: String,
}

impl Running {
    /// How the XDP program is attached: `native` or `generic`, which is also said where there is none.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// Its process, to account its CPU time.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program and gives the number of frames it forwarded, both directions together.
    pub fn stop(mut self) -> Result<u64, Error> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(Error::Ended {
                name: self.name,
                status,
                words: words_of(&mut self.words),
            });
        }
        let status = self.end().map_err(|source| Error::System {
            name: self.name,
            step: "ending it",
            source,
        })?;
        let counted = self
            .lines
            .iter()
            .find_map(|line| line.strip_prefix("forwarded ")?.parse().ok());
        counted.ok_or_else(|| Error::Ended {
            name: self.name,
            status,
            words: words_of(&mut self.words),
        })
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let what = match self
                .lines
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(line) => match line.strip_prefix("ready ") {
                    Some(mode) => {
                        mode.clone_into(&mut self.mode);
                        return Ok(());
                    }
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => format!("nothing after {START_LIMIT:?}"),
                Err(RecvTimeoutError::Disconnected) => match self.child.wait() {
                    Ok(status) => status.to_string(),
                    Err(error) => error.to_string(),
                },
            };
            return Err(Error::NotReady {
                name: self.name,
                what,
                words: words_of(&mut self.words),
            });
        }
    }

    /// SIGTERM lets it detach its XDP program; SIGKILL is for one that hangs.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        // Once it has been waited for, its number may be another process's.
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        kill(
            Pid::from_raw(self.child.id().cast_signed()),
            Signal::SIGTERM,
        )?;
        let deadline = Instant::now() + STOP_LIMIT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(STOP_POLL);
        }
        self.child.kill()?;
        self.child.wait()
    }
}

/// What a program said on standard error, without the chatter of the libraries that always comes.
fn words_of(file: &mut File) -> String {
    let mut words = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut words));
    if let Err(error) = read {
        return format!("(its messages could not be read: {error})");
    }
    let words = String::from_utf8_lossy(&words);
    let telling =
        |line: &&str| !line.starts_with("EAL: ") && !line.starts_with("libbpf: elf: skipping");
    words.lines().filter(telling).collect::<Vec<_>>().join("; ")
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody is left to be told; the program also ends when this process does.
        let _ = self.end();
    }
}

/// A program that is part of this one, as a command that can be started as long as the file with it is there.
///
/// The file is in memory. It stays executable while it is open for writing, unlike a file on disk, so another thread's fork at the wrong
/// moment cannot make the start fail.
fn embedded(name: &'static str, image: &[u8]) -> Result<(Command, File), Error> {
    let store = || {
        let mut file = File::from(memory_file(name)?);
        file.write_all(image)?;
        Ok(file)
    };
    let program = store().map_err(|source| Error::System {
        name,
        step: "storing the program in memory",
        source,
    })?;
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.arg0(name);
    Ok((command, program))
}

/// Starts a command whose output is read here and whose messages go to a file.
fn spawn(name: &'static str, command: &mut Command) -> Result<(Child, File), Error> {
    let system = |step| move |source| Error::System { name, step, source };
    let words = File::from(memory_file("stderr").map_err(system("memory for its messages"))?);
    let errors = words.try_clone();
    let errors = errors.map_err(system("sharing the file of its messages"))?;
    command.stdout(Stdio::piped()).stderr(errors);
    let child = command.spawn().map_err(system("starting it"))?;
    Ok((child, words))
}

pub(crate) fn memory_file(name: &str) -> std::io::Result<OwnedFd> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC)?)
}

/// Hands over the lines of the program's standard output until it closes.
fn follow(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}
