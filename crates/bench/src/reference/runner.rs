//! A process that measures on request: each input line starts a run, and its output is a line of
//! figures.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use myelin_dataplane::feed::FeedConfig;

use super::{Error, create_command, spawn};
use crate::owned_child::OwnedChild;

const FEED: &str = "myelin feed";
const PLAIN_AES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aes_ctr"));
const CORE_SWITCH: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/core_switch"));
const RING: &str = "ring_throughput";
#[cfg(has_dpdk)]
const RING_IMAGE: Option<&[u8]> =
    Some(include_bytes!(concat!(env!("OUT_DIR"), "/ring_throughput")));
#[cfg(not(has_dpdk))]
const RING_IMAGE: Option<&[u8]> = None;

/// The process, idle between runs. A drop kills it; it has nothing to clean up.
pub(crate) struct Runner {
    name: &'static str,
    child: OwnedChild,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Runner {
    /// One of Myelin's functions, in a process of `program`. It runs on packets in its memory, so
    /// it does not wait for them. A run has a number of packets, and returns the time of each, ns.
    pub(crate) fn function(program: &Path, config: &FeedConfig) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.arg("feed");
        let mut runner = Self::start(FEED, command)?;
        let config = serde_json::to_string(config).map_err(|error| Error::System {
            name: FEED,
            step: "sending its configuration",
            source: error.into(),
        })?;
        runner.begin(config)?;
        Ok(runner)
    }

    /// AES-128 in counter mode, byte by byte in plain C, with `packets` payloads in each run.
    pub(crate) fn plain_aes(payload_bytes: usize, packets: u32) -> Result<Self, Error> {
        let arguments = [payload_bytes, packets as usize, 1];
        Self::start_image("aes_ctr", PLAIN_AES, &arguments)
    }

    /// Two processes that poll on the first of these cores, switched by mechanisms of the kernel. A
    /// run is a mechanism, a number of switches and a longer time of each hand-over, ns. It returns
    /// medians, ns: the time in which neither runs, and the time until the next one runs.
    pub(crate) fn core_switch(cores: [usize; 2]) -> Result<Self, Error> {
        Self::start_image("core_switch", CORE_SWITCH, &cores)
    }

    /// DPDK's ring between two cores, of producer and consumer. A run has `windows` windows of
    /// `batches` batches, and returns the time of each window, ns.
    pub(crate) fn ring(cores: [usize; 2], windows: usize, batches: usize) -> Result<Self, Error> {
        let image = RING_IMAGE.ok_or(Error::Absent {
            name: RING,
            reason: env!("MYELIN_NO_DPDK"),
        })?;
        Self::start_image(RING, image, &[cores[0], cores[1], windows, batches])
    }

    fn start_image(name: &'static str, image: &[u8], arguments: &[usize]) -> Result<Self, Error> {
        let (mut command, _program) = create_command(name, image)?;
        command.args(arguments.iter().map(usize::to_string));
        Self::start(name, command)
    }

    fn start(name: &'static str, mut command: Command) -> Result<Self, Error> {
        let mut child = spawn(name, command.stdin(Stdio::piped()))?;
        let pipes = (child.process.stdin.take(), child.process.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            unreachable!("both are piped");
        };
        Ok(Self {
            name,
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Makes a run. Returns its figures.
    pub(crate) fn run(&mut self, run: impl Display) -> Result<Vec<f64>, Error> {
        self.begin(run)?;
        self.end()
    }

    /// Starts a run.
    pub(crate) fn begin(&mut self, run: impl Display) -> Result<(), Error> {
        writeln!(self.input, "{run}").map_err(|_| self.end_error())
    }

    /// Waits for the end of a run. Returns its figures.
    pub(crate) fn end(&mut self) -> Result<Vec<f64>, Error> {
        let mut answer = String::new();
        let read = self.output.read_line(&mut answer);
        let figures: Vec<f64> = answer
            .split_whitespace()
            .map_while(|figure| figure.parse().ok())
            .collect();
        match read {
            Ok(_) if !figures.is_empty() => Ok(figures),
            _ => Err(self.end_error()),
        }
    }

    fn end_error(&mut self) -> Error {
        let _ = self.child.process.kill();
        let status = match self.child.process.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Error::Failed {
            name: self.name,
            problem: format!("ended early ({status})"),
            messages: self.child.last_messages(),
        }
    }
}
