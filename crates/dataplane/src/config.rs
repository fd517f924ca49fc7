//! How a worker is started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use myelin_spec::DpdkDevice;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::idle::Idle;
use crate::launch::Launcher;

/// Name of every worker: the start of its command line, and of its main thread.
pub const WORKER_NAME: &str = "myelin-worker";

/// Largest batch.
pub const MAX_BATCH: u16 = 256;

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// The program, which must call [`worker_main`](crate::worker_main) with its standard input, and with the [`Driver`](crate::Driver) for its ports.
    pub exe: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Stands in the command line, so that a worker that outlived its agent is found.
    pub run_id: String,
    /// The core it is bound to.
    pub core: Option<u32>,
    /// Packets taken at once, 1 to [`MAX_BATCH`].
    pub batch: u16,
    /// What it does while no packet is there.
    pub idle: Idle,
    /// Frames of its packet memory, where that is ours.
    pub frames: u32,
    /// Size of a frame, 2048 or 4096 bytes.
    pub frame_size: u32,
    /// Where its process starts; `None` makes it a child of this one.
    pub launcher: Option<Arc<dyn Launcher>>,
    /// Its ports are these devices and no sockets.
    pub devices: Option<DevicePair>,
}

/// Two devices that a worker drives past the kernel, with packet memory of the driver's own. They are its ports 0 and 1 ([`SocketId::of_port`](crate::SocketId::of_port));
/// what no chain takes passes from each to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePair {
    /// The devices.
    pub devices: [DpdkDevice; 2],
    /// Tells the driver's files of this worker from those of other processes.
    pub prefix: String,
    /// Packet memory in hugepages.
    pub hugepages: bool,
}

impl WorkerConfig {
    /// A worker with one packet a batch, 50 us of spinning, any core, and 8 MiB of packet memory.
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
            launcher: None,
            devices: None,
        }
    }

    /// The first word of its command line, by which it is found.
    pub fn process_name(&self) -> String {
        format!("{WORKER_NAME}@{}", self.run_id)
    }

    /// Refuses what no worker can do.
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
