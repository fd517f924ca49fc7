//! DPDK's environment (EAL): one a process, with the pool that all its ports share.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_dataplane::umem::FrameMemory;
use myelin_spec::DpdkDevice;

use crate::error::Error;
use crate::library::functions;
use crate::sys::{Device, Functions};

/// Bytes of a frame: 128 in front of a received packet, then the longest packet of an MTU of 1500 and what functions add. Drivers of real
/// devices want 2048 behind the headroom (`RTE_MBUF_DEFAULT_BUF_SIZE`).
const ROOM: u32 = 2048 + 128;
/// Frames that the loop's core keeps at hand.
const CACHE: u32 = 250;
/// Memory beside the frames, for rings and DPDK itself, MiB.
const OTHER_MIB: u32 = 32;
/// Bytes that a frame takes in memory, with the buffer's header.
const FOOTPRINT: u32 = ROOM + 320;

/// How the environment is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentConfig {
    /// Tells this process' files and hugepages from those of others (`--file-prefix`).
    pub prefix: String,
    /// The core that the calling thread is bound to; without one, that on which it may run first.
    pub core: Option<u32>,
    /// Frames of the pool, 512 at least.
    pub frames: u32,
    /// Hugepages; without them plain pages serve, which not every hardware can do with.
    pub hugepages: bool,
    /// The hardware that is going to be opened. No other is touched.
    pub hardware: Vec<DpdkDevice>,
}

impl EnvironmentConfig {
    /// Plain pages, 8191 frames (a pool is smallest at one less than a power of two), no hardware.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            core: None,
            frames: 8191,
            hugepages: false,
            hardware: Vec::new(),
        }
    }

    /// The command line of the environment.
    fn arguments(&self) -> Vec<String> {
        let core = self.core.unwrap_or_else(first_core);
        let mut arguments = vec![
            "myelin".to_owned(),
            // One thread, numbered 0 whatever its core: DPDK's own numbers end at 127.
            format!("--lcores=0@{core}"),
            format!("--file-prefix={}", self.prefix),
            "--no-telemetry".to_owned(),
        ];
        if !self.hugepages {
            let mib = (u64::from(self.frames) * u64::from(FOOTPRINT)).div_ceil(1 << 20) as u32;
            arguments.extend(["--no-huge".to_owned(), format!("-m{}", mib + OTHER_MIB)]);
        } else if self.hardware.is_empty() {
            // The pages go back to the system with the process, also when it is killed.
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

/// Where DPDK keeps the files of a prefix while a process of that prefix runs, as root.
pub fn runtime_directory(prefix: &str) -> PathBuf {
    PathBuf::from("/var/run/dpdk").join(prefix)
}

/// The running environment of this process.
#[derive(Debug)]
pub struct Environment {
    functions: &'static Functions,
    memory: &'static FrameMemory,
    prefix: String,
}

static STARTED: AtomicBool = AtomicBool::new(false);

impl Environment {
    /// Starts DPDK in this process. The calling thread is bound to the core of the configuration and should be the one that drives the
    /// ports: its allocations are the fast ones.
    ///
    /// # Errors
    /// There is no DPDK; another process has the prefix; no hugepages, no memory, no rights; it was started in this process before.
    pub fn start(config: &EnvironmentConfig) -> Result<Self, Error> {
        let functions = functions()?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(Error::Running);
        }
        let arguments: Vec<CString> = config
            .arguments()
            .into_iter()
            .map(|argument| c_string(&argument))
            .collect::<Result<_, _>>()?;
        functions
            .start(&arguments)
            .map_err(|refusal| Error::environment(&config.prefix, refusal))?;
        let pool = |cause: String| Error::Pool {
            prefix: config.prefix.clone(),
            frames: config.frames,
            cause,
        };
        let memory = functions
            .make_pool(config.frames, CACHE, ROOM)
            .map_err(|refusal| pool(refusal.cause.to_string()))
            .and_then(|memory| memory.map_err(|error| pool(error.to_string())));
        match memory {
            Ok(memory) => Ok(Self {
                functions,
                // As long-lived as the pool: DPDK is started once a process.
                memory: Box::leak(Box::new(memory)),
                prefix: config.prefix.clone(),
            }),
            Err(error) => {
                functions.stop();
                remove_files(&config.prefix);
                Err(error)
            }
        }
    }

    /// The frames of the pool. All are DPDK's until a port hands one out.
    pub fn memory(&self) -> &'static FrameMemory {
        self.memory
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Opens a device. `ring` is the size of its rings as wished for; the driver may take another.
    pub(crate) fn open(&self, device: &DpdkDevice, ring: u16) -> Result<Device, Error> {
        let failed = |step| move |refusal| Error::device(device.as_str(), step, refusal);
        if !device.is_pci() {
            self.functions
                .probe(&c_string(device.as_str())?)
                .map_err(failed("start its driver"))?;
        }
        self.functions
            .open_port(&c_string(device.name())?, ring)
            .map_err(failed("open it"))
    }

    /// Ends the environment and removes its files. All ports must be closed.
    pub fn stop(self) {
        self.functions.stop();
        remove_files(&self.prefix);
    }
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Name {
        device: text.to_owned(),
        problem: "holds a null character",
    })
}

/// DPDK leaves the directory and the files in it.
fn remove_files(prefix: &str) {
    // Nothing is there after a failed start.
    let _ = std::fs::remove_dir_all(runtime_directory(prefix));
}

/// The first core that this thread may run on.
fn first_core() -> u32 {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0));
    set.ok()
        .and_then(|set| {
            (0..nix::sched::CpuSet::count()).find(|&core| set.is_set(core).unwrap_or(false))
        })
        .map_or(0, |core| core as u32)
}
