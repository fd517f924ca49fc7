//! The C reference programs: minimal programs that forward frames with one technology.
//!
//! Their sources are in `reference/`. Each is embedded as an executable, so a measurement needs no
//! installation and uses the program of this build. A program runs in the network namespace of the
//! calling thread, polls on one CPU until its guard is dropped, and inspects no packet.

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

mod feed_process;
mod ring;
mod runner;

pub(crate) use feed_process::FeedProcess;
pub(crate) use ring::RingThroughput;
use runner::Runner;

/// Longest time from start to `ready`. DPDK takes about a second, mostly for its drivers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest time from SIGTERM to exit.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const STOP_POLL: Duration = Duration::from_millis(2);

const AFXDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/afxdp_forward"));
const PACKET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/packet_forward"));
const CENTRALIZED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/centralized_forward"));
#[cfg(has_dpdk)]
const DPDK: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/dpdk_forward")));
#[cfg(not(has_dpdk))]
const DPDK: Option<&[u8]> = None;

/// A reference program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Plain C over AF_XDP, without libxdp; copy mode, one UMEM for both interfaces.
    AfXdp,
    /// DPDK over its net_af_xdp driver, without hugepages.
    Dpdk,
    /// Plain C over `AF_PACKET` sockets, one system call for each frame.
    Packet,
    /// The centralized approach: packet sockets and TAP devices with the kernel's routing in
    /// between. Makes `central0`, from which the kernel routes packets, and `central1`, to which it
    /// routes them.
    Centralized,
}

/// Options of a reference program.
#[derive(Clone, Debug)]
pub struct ForwardingOptions<'a> {
    /// Interface to receive frames from (receive queue 0).
    pub ingress: &'a str,
    /// Interface to send frames to.
    pub egress: &'a str,
    /// Most frames of one burst, 1 to 256.
    pub batch: u16,
    /// CPU of the program. `None` leaves the choice to the scheduler.
    pub core: Option<usize>,
    /// Whether to forward from egress to ingress too. Otherwise the kernel gets frames of the
    /// egress.
    pub both: bool,
    /// Whether to poll. Only the centralized approach can sleep instead.
    pub poll: bool,
    /// Whether to reorder pairs of frames. Only [`Reference::Packet`] can.
    pub swap: bool,
}

/// A reference program failed. The text contains the program's messages.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program was not built.
    #[error(
        "{name} was not built: {reason}; install DPDK's development files (libdpdk-dev) and build again"
    )]
    Absent {
        /// The program.
        name: &'static str,
        /// The missing dependency.
        reason: &'static str,
    },
    /// The operating system refused a step.
    #[error("{name}: {step}: {source}")]
    System {
        /// The program.
        name: &'static str,
        /// The failed step.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The program ended, or did not report that it is ready.
    #[error("{name} did not start ({reason}): {messages}")]
    NotReady {
        /// The program.
        name: &'static str,
        /// Exit status, or the waiting time.
        reason: String,
        /// Its standard error.
        messages: String,
    },
    /// The program ended during the measurement.
    #[error("{name} ended early ({status}): {messages}")]
    Ended {
        /// The program.
        name: &'static str,
        /// Its exit status.
        status: ExitStatus,
        /// Its standard error.
        messages: String,
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

    /// Checks that the program was built. The error is the reason for the skipped row.
    pub fn check_built(self) -> Result<(), Error> {
        self.image().map(|_| ())
    }

    /// Starts the program in the calling thread's network namespace and waits until it forwards.
    /// Needs root.
    pub fn start(self, forwarding: &ForwardingOptions) -> Result<RunningReference, Error> {
        let name = self.name();
        let (mut command, _program) = create_command(name, self.image()?)?;
        command.args(["--ingress", forwarding.ingress]);
        command.args(["--egress", forwarding.egress]);
        command.args(["--batch", &forwarding.batch.to_string()]);
        if let Some(core) = forwarding.core {
            command.args(["--core", &core.to_string()]);
        }
        if forwarding.both {
            command.arg("--both");
        }
        if forwarding.swap {
            command.arg("--swap");
        }
        if forwarding.poll {
            command.arg("--poll");
        }
        let (mut child, messages) = spawn(name, command.stdin(Stdio::null()))?;
        let lines = read_lines(&mut child);
        let mut running = RunningReference {
            name,
            child,
            lines,
            messages,
            mode: String::new(),
        };
        running.wait_until_ready()?;
        Ok(running)
    }
}

/// A running reference program. A drop ends it.
#[derive(Debug)]
pub struct RunningReference {
    name: &'static str,
    child: Child,
    lines: Receiver<String>,
    messages: File,
    mode: String,
}

impl RunningReference {
    /// How its XDP program is attached: `native` or `generic`. A program without XDP reports
    /// `generic`.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// Its process, to read its CPU time.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program. Returns the number of frames that it forwarded in both directions.
    pub fn stop(mut self) -> Result<u64, Error> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(Error::Ended {
                name: self.name,
                status,
                messages: messages_of(&mut self.messages),
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
            messages: messages_of(&mut self.messages),
        })
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let reason = match self
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
                Err(RecvTimeoutError::Timeout) => format!("not ready after {START_LIMIT:?}"),
                Err(RecvTimeoutError::Disconnected) => match self.child.wait() {
                    Ok(status) => status.to_string(),
                    Err(error) => error.to_string(),
                },
            };
            return Err(Error::NotReady {
                name: self.name,
                reason,
                messages: messages_of(&mut self.messages),
            });
        }
    }

    /// Sends SIGTERM, so that the program detaches XDP, and SIGKILL if it hangs.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        // After the wait, another process may have its process id.
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

/// A program's messages on standard error, without those that the libraries always print.
fn messages_of(file: &mut File) -> String {
    let mut messages = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut messages));
    if let Err(error) = read {
        return format!("(its messages could not be read: {error})");
    }
    let messages = String::from_utf8_lossy(&messages);
    let is_relevant =
        |line: &&str| !line.starts_with("EAL: ") && !line.starts_with("libbpf: elf: skipping");
    messages
        .lines()
        .filter(is_relevant)
        .collect::<Vec<_>>()
        .join("; ")
}

impl Drop for RunningReference {
    fn drop(&mut self) {
        // A drop cannot report errors. The program also ends with this process.
        let _ = self.end();
    }
}

/// The command of an embedded program. It can start while the returned file is open.
///
/// The file is in memory. Unlike a file on disk, it is executable while it is open for writing. A
/// process that another thread forks may keep it open, and the start still succeeds.
fn create_command(name: &'static str, image: &[u8]) -> Result<(Command, File), Error> {
    let store = || {
        let mut file = File::from(create_memory_file(name)?);
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

/// Starts a command with its output in a pipe and its messages in a file.
fn spawn(name: &'static str, command: &mut Command) -> Result<(Child, File), Error> {
    let system = |step| move |source| Error::System { name, step, source };
    let messages = File::from(
        create_memory_file("stderr").map_err(system("creating the file of its messages"))?,
    );
    let errors = messages.try_clone();
    let errors = errors.map_err(system("sharing the file of its messages"))?;
    command.stdout(Stdio::piped()).stderr(errors);
    let child = command.spawn().map_err(system("starting it"))?;
    Ok((child, messages))
}

pub(crate) fn create_memory_file(name: &str) -> std::io::Result<OwnedFd> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC)?)
}

/// Forwards the lines of the program's standard output until it closes.
fn read_lines(child: &mut Child) -> Receiver<String> {
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
