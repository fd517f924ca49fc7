//! The configuration of a worker process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use myelin_spec::DpdkDevice;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::idle::Idle;
use crate::launch::Launcher;

/// Name of every worker: the start of its command line, and the name of its main thread.
pub const WORKER_NAME: &str = "myelin-worker";

/// Default number of descriptors of a ring between processes.
const DEFAULT_RING: u32 = 1024;

/// Largest batch.
pub const MAX_BATCH: u16 = 256;

/// The configuration of a worker process.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// The program. It must call [`worker_main`](crate::worker_main) with its standard input and
    /// the [`Driver`](crate::Driver) of its ports.
    pub exe: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// A part of the command line. The next agent finds the worker by this text.
    pub run_id: String,
    /// The core of the worker; `None` for any core.
    pub core: Option<u32>,
    /// Largest number of packets in a batch, 1 to [`MAX_BATCH`].
    pub batch: u16,
    /// The behaviour of the worker without packets.
    pub idle: Idle,
    /// Number of frames. Unused with `devices` and `packet_sockets`.
    pub frames: u32,
    /// Descriptors of each ring between the processes of a pipeline, a power of two.
    pub ring: u32,
    /// Size of a frame, 2048 or 4096 bytes.
    pub frame_size: u32,
    /// Starts the process; `None` makes it a child of this process.
    pub launcher: Option<Arc<dyn Launcher>>,
    /// The devices of a worker without sockets; `None` for a worker with sockets.
    pub devices: Option<DevicePair>,
    /// Whether the ports of the worker are packet sockets.
    pub packet_sockets: bool,
}

/// Two devices that a worker drives without the kernel. The driver allocates the packet buffers.
/// The devices are ports 0 and 1 ([`SocketId::of_port`](crate::SocketId::of_port)). Packets that no
/// chain matches pass from each device to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePair {
    /// The devices.
    pub devices: [DpdkDevice; 2],
    /// Prefix of the driver's files, different for each process.
    pub prefix: String,
    /// Whether the packet buffers are in hugepages.
    pub hugepages: bool,
}

impl WorkerConfig {
    /// Returns the defaults: batches of 1 packet, 50 us of spinning, any core, a UMEM of 8 MiB.
    pub fn new(exe: impl Into<PathBuf>, run_id: impl Into<String>) -> Self {
        Self {
            exe: exe.into(),
            args: Vec::new(),
            run_id: run_id.into(),
            core: None,
            batch: 1,
            idle: Idle::Adaptive {
                spin: Duration::from_micros(50),
            },
            frames: 4096,
            frame_size: 2048,
            ring: DEFAULT_RING,
            launcher: None,
            devices: None,
            packet_sockets: false,
        }
    }

    /// Returns the first word of the command line, which identifies the worker.
    pub fn process_name(&self) -> String {
        format!("{WORKER_NAME}@{}", self.run_id)
    }

    /// Refuses values that no worker supports.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if (1..=MAX_BATCH).contains(&self.batch) {
            return Ok(());
        }
        Err(Error::Parameter {
            what: "batch size",
            value: self.batch.into(),
            expected: "1 to 256 packets",
        })
    }
}
