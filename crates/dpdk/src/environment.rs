//! DPDK's environment (EAL): one per process, with the pool that all its ports share.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_dataplane::umem::FrameMemory;
use myelin_spec::DpdkDevice;

use crate::error::Error;
use crate::library::load_shim;
use crate::sys::{Device, Shim};

/// Bytes of a frame: a headroom of 128, then the longest packet of MTU 1500 and what functions
/// append. Drivers of real devices require 2048 after the headroom (`RTE_MBUF_DEFAULT_BUF_SIZE`).
const FRAME_BYTES: u32 = 2048 + 128;
/// Frames in the mempool cache of the core that runs the loop.
const CACHE_FRAMES: u32 = 250;
/// Memory for rings and for DPDK itself, MiB.
const OTHER_MIB: u32 = 32;
/// Bytes of a frame in memory, with the mbuf header.
const FRAME_AND_HEADER_BYTES: u32 = FRAME_BYTES + 320;

/// The configuration of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentConfig {
    /// Prefix of this process' files and hugepages (`--file-prefix`).
    pub prefix: String,
    /// The core to which [`Environment::start`] pins the calling thread. `None` selects the first
    /// core that the thread may use.
    pub core: Option<u32>,
    /// Frames of the pool, at least 512.
    pub frames: u32,
    /// Use hugepages instead of plain pages. Some hardware requires them.
    pub hugepages: bool,
    /// The hardware to open. DPDK opens no other devices.
    pub hardware: Vec<DpdkDevice>,
}

impl EnvironmentConfig {
    /// Returns a configuration with plain pages, 8191 frames and no hardware. A pool is most
    /// compact at one less than a power of two.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            core: None,
            frames: 8191,
            hugepages: false,
            hardware: Vec::new(),
        }
    }

    /// Returns the command line of the environment.
    fn arguments(&self) -> Vec<String> {
        let core = self.core.unwrap_or_else(first_core);
        let mut arguments = vec![
            "myelin".to_owned(),
            // DPDK's thread numbers end at 127, but core numbers do not. So thread 0 runs on the
            // selected core, whatever its number.
            format!("--lcores=0@{core}"),
            format!("--file-prefix={}", self.prefix),
            "--no-telemetry".to_owned(),
        ];
        if !self.hugepages {
            let mib = (u64::from(self.frames) * u64::from(FRAME_AND_HEADER_BYTES)).div_ceil(1 << 20)
                as u32;
            arguments.extend(["--no-huge".to_owned(), format!("-m{}", mib + OTHER_MIB)]);
        } else if self.hardware.is_empty() {
            // The kernel then frees the pages when the process ends, even after a kill.
            arguments.push("--huge-unlink".to_owned());
        }
        if self.hardware.is_empty() {
            arguments.push("--no-pci".to_owned());
        }
        for device in &self.hardware {
            arguments.push(format!("--allow={device}"));
        }
        arguments
    }
}

/// Returns the directory in which DPDK, as root, keeps the files of a running process with this
/// prefix.
pub fn runtime_directory(prefix: &str) -> PathBuf {
    PathBuf::from("/var/run/dpdk").join(prefix)
}

/// The running environment of this process.
#[derive(Debug)]
pub struct Environment {
    shim: &'static Shim,
    memory: &'static FrameMemory,
    prefix: String,
}

static STARTED: AtomicBool = AtomicBool::new(false);

impl Environment {
    /// Starts DPDK in this process. Pins the calling thread to the configured core. Drive the ports
    /// from that thread, because only its allocations use the pool's cache.
    ///
    /// # Errors
    /// DPDK, hugepages, memory or rights are missing. Another process uses the prefix. This process
    /// has already started DPDK.
    pub fn start(config: &EnvironmentConfig) -> Result<Self, Error> {
        let shim = load_shim()?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(Error::Running);
        }
        let arguments: Vec<CString> = config
            .arguments()
            .into_iter()
            .map(|argument| c_string(&argument))
            .collect::<Result<_, _>>()?;
        shim.start(&arguments)
            .map_err(|error| Error::environment(&config.prefix, error))?;
        let pool_error = |cause: String| Error::Pool {
            prefix: config.prefix.clone(),
            frames: config.frames,
            cause,
        };
        let memory = shim
            .make_pool(config.frames, CACHE_FRAMES, FRAME_BYTES)
            .map_err(|error| pool_error(error.cause.to_string()))
            .and_then(|memory| memory.map_err(|error| pool_error(error.to_string())));
        match memory {
            Ok(memory) => Ok(Self {
                shim,
                // The pool exists until the process ends, because DPDK starts once per process.
                memory: Box::leak(Box::new(memory)),
                prefix: config.prefix.clone(),
            }),
            Err(error) => {
                shim.stop();
                remove_files(&config.prefix);
                Err(error)
            }
        }
    }

    /// Returns the frames of the pool. DPDK holds each of them until a port takes it.
    pub fn memory(&self) -> &'static FrameMemory {
        self.memory
    }

    pub(crate) fn shim(&self) -> &'static Shim {
        self.shim
    }

    /// Opens a device. `ring` is the requested size of its rings. The driver may choose another
    /// size.
    pub(crate) fn open(&self, device: &DpdkDevice, ring: u16) -> Result<Device, Error> {
        let failed = |step| move |error| Error::device(device.as_str(), step, error);
        if !device.is_pci() {
            self.shim
                .probe(&c_string(device.as_str())?)
                .map_err(failed("start the driver"))?;
        }
        self.shim
            .open_port(&c_string(device.name())?, ring)
            .map_err(failed("open the device"))
    }

    /// Stops the environment and removes its files. Close all ports first.
    pub fn stop(self) {
        self.shim.stop();
        remove_files(&self.prefix);
    }
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Name {
        device: text.to_owned(),
        problem: "the name contains a null character",
    })
}

/// Removes the directory and files that DPDK leaves behind.
fn remove_files(prefix: &str) {
    // A failed start leaves no directory, so an error is normal.
    let _ = std::fs::remove_dir_all(runtime_directory(prefix));
}

/// Returns the first core that this thread may use.
fn first_core() -> u32 {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0));
    set.ok()
        .and_then(|set| {
            (0..nix::sched::CpuSet::count()).find(|&core| set.is_set(core).unwrap_or(false))
        })
        .map_or(0, |core| core as u32)
}
