//! The C reference programs: minimal programs that forward frames with one technology.
//!
//! Their sources are in `reference/`. Each is embedded as an executable, so a measurement needs no
//! installation and uses the program of this build. A program runs in the network namespace of the
//! calling thread, forwards until its guard is dropped, and inspects no packet. All but
//! [`Reference::VnetHeader`] poll on one CPU.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use myelin_linux::process::{PidFd, Signal};

use crate::owned_child::{OwnedChild, create_memory_file};

mod runner;

pub(crate) use runner::Runner;

/// Longest time from start to `ready`. DPDK takes about a second, mostly for its drivers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest time from SIGTERM to exit.
const STOP_LIMIT: Duration = Duration::from_secs(5);

const AFXDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/afxdp_forward"));
const PACKET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/packet_forward"));
const VNET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vnet_forward"));
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
    /// Plain C over `AF_PACKET` sockets with virtio-net headers, so super-packets pass whole. It
    /// sleeps while no frame waits, and forwards both ways.
    VnetHeader,
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
    /// Whether to poll. The centralized approach can sleep instead, [`Reference::VnetHeader`]
    /// always sleeps.
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
    /// The program did not start, or ended early.
    #[error("{name} {problem}: {messages}")]
    Failed {
        /// The program.
        name: &'static str,
        /// The failure, with the exit status or the waiting time.
        problem: String,
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
            Self::VnetHeader => "vnet_forward",
            Self::Centralized => "centralized_forward",
        }
    }

    fn image(self) -> Result<&'static [u8], Error> {
        match self {
            Self::AfXdp => Ok(AFXDP),
            Self::Packet => Ok(PACKET),
            Self::VnetHeader => Ok(VNET),
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
        command.args(forwarding.core.map(|core| format!("--core={core}")));
        command.args(forwarding.swap.then_some("--swap"));
        command.args(forwarding.poll.then_some("--poll"));
        let mut running = RunningReference(spawn(name, command.stdin(Stdio::null()))?);
        running.wait_until_ready().map_err(|reason| Error::Failed {
            name,
            problem: format!("did not start ({reason})"),
            messages: running.0.last_messages(),
        })?;
        Ok(running)
    }
}

/// A running reference program. A drop ends it.
#[derive(Debug)]
pub struct RunningReference(OwnedChild);

impl RunningReference {
    /// Its process, to read its CPU time.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Waits for the line `ready`. Fails with the exit status or the waiting time.
    fn wait_until_ready(&mut self) -> Result<(), String> {
        let (sender, ready) = channel();
        if let Some(output) = self.0.process.stdout.take() {
            // Reads on, so that the program can always write.
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if line.starts_with("ready ") {
                        let _ = sender.send(());
                    }
                }
            });
        }
        match ready.recv_timeout(START_LIMIT) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(format!("not ready after {START_LIMIT:?}")),
            Err(RecvTimeoutError::Disconnected) => match self.0.process.wait() {
                Ok(status) => Err(status.to_string()),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

impl Drop for RunningReference {
    fn drop(&mut self) {
        // After the end, another process may have its process id.
        if !matches!(self.0.process.try_wait(), Ok(None)) {
            return;
        }
        // After SIGTERM, the program detaches XDP. A drop cannot report errors, and the guard of
        // the process kills a program that hangs.
        let _ = PidFd::open(self.pid()).and_then(|process| {
            process.signal(Signal::TERM)?;
            process.wait(STOP_LIMIT)
        });
    }
}

/// The command of an embedded program. It can start while the returned file is open.
///
/// The file is in memory. Unlike a file on disk, it is executable while it is open for writing. A
/// process that another thread forks may keep it open, and the start still succeeds.
fn create_command(name: &'static str, image: &[u8]) -> Result<(Command, File), Error> {
    let store = || {
        let mut file = create_memory_file(name)?;
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
fn spawn(name: &'static str, command: &mut Command) -> Result<OwnedChild, Error> {
    OwnedChild::start(command.stdout(Stdio::piped())).map_err(|source| Error::System {
        name,
        step: "starting it",
        source,
    })
}
