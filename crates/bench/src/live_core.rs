//! Pipelines whose processes share one core, fed and drained without a device, so that one core and
//! no link decides.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use myelin_dataplane::{
    CoreStats, CoreTable, Idle, Pipeline, UserChain, UserExit, UserSegment, WorkerConfig,
    WorkerHandle,
};
use myelin_linux::affinity;
use myelin_policy::sharing::Parameters;
use myelin_spec::{FunctionConfig, WorkConfig};

use crate::{Error, frames};

/// Packets of a batch, and descriptors of a ring, as published (Anthony et al. 2020, 5.1).
pub(crate) const BATCH: u16 = 64;
pub(crate) const RING: u32 = 2048;
/// Frames of a pipeline: each of its rings may be full.
const FRAMES: u32 = 1 << 15;
/// The processes run before a window for this time, so that costs are known.
const WARM_UP: Duration = Duration::from_millis(60);
/// The chain.
const SPI: u32 = 1;

/// Functions in a pipeline on the last core, each in its own process. Dropping it ends them.
pub(crate) struct LivePipeline {
    // The stages end before the first process.
    pipeline: Pipeline,
    head: WorkerHandle,
    table: Option<Arc<CoreTable>>,
}

/// What a window saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveWindow {
    pub(crate) seconds: f64,
    pub(crate) packets: u64,
    /// Packets that the first function took.
    pub(crate) taken: u64,
    pub(crate) switches: u64,
    /// Time of the policy's decisions, s.
    pub(crate) decide_s: f64,
    pub(crate) switch_us: f64,
}

impl LivePipeline {
    /// Starts a process for each function: `cycles` of each packet. Without `policy`, the kernel
    /// shares the core.
    pub(crate) fn start(
        program: &Path,
        cycles: &[u32],
        policy: Option<Parameters>,
    ) -> Result<Self, Error> {
        let core = affinity::get(0)?.last().map(|core| *core as u32);
        let config = |name: &str| WorkerConfig {
            args: vec!["worker".into()],
            core,
            batch: BATCH,
            idle: Idle::Spin,
            frames: FRAMES,
            ring: RING,
            ..WorkerConfig::new(program, run_id(name))
        };
        let mut head = WorkerHandle::spawn(config("first"))?;
        let packet = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 18);
        let port = head.add_replay(packet, (SPI, 0))?;
        let work = |cycles: &u32| {
            FunctionConfig::Work(WorkConfig {
                cycles: *cycles,
                cycles_per_byte: 0,
            })
        };
        let chain = UserChain {
            spi: SPI,
            generation: 0,
            positions: cycles.len() as u8,
            segments: vec![UserSegment {
                first_position: 0,
                functions: cycles.iter().map(|cycles| work(cycles).into()).collect(),
                exit: UserExit::Port(port),
                shaping: None,
            }],
        };
        let pipeline = Pipeline::deploy(&mut head, &chain, |position| {
            config(&format!("stage{position}"))
        })?;
        let mut live = Self {
            pipeline,
            head,
            table: None,
        };
        if let Some(policy) = policy {
            live.share(policy)?;
        }
        thread::sleep(WARM_UP);
        Ok(live)
    }

    fn share(&mut self, policy: Parameters) -> Result<(), Error> {
        let stages = self.pipeline.stages_mut().iter_mut();
        let mut handles = vec![&mut self.head];
        handles.extend(stages.map(|stage| &mut stage.handle));
        let members = handles.iter().map(|handle| (handle.member(), None));
        let table = Arc::new(CoreTable::create(&members.collect::<Vec<_>>(), policy)?);
        for (task, handle) in handles.into_iter().enumerate() {
            handle.share(Some((Arc::clone(&table), task)))?;
        }
        self.table = Some(table);
        Ok(())
    }

    /// Counts packets for this time.
    pub(crate) fn observe(&self, window: Duration) -> LiveWindow {
        let reader = self.pipeline.reader(&self.head);
        let read = || {
            let stats = reader.stats().unwrap_or_default();
            let taken = stats.positions.first().map_or(0, |first| first.packets_in);
            let core = self
                .table
                .as_ref()
                .map_or(CoreStats::default(), |table| table.stats());
            (Instant::now(), stats.transmitted, taken, core)
        };
        let (start, before, taken_before, core_before) = read();
        thread::sleep(window);
        let (end, after, taken, core) = read();
        LiveWindow {
            seconds: (end - start).as_secs_f64(),
            packets: after - before,
            taken: taken - taken_before,
            switches: core.switches - core_before.switches,
            decide_s: (core.decide_ns - core_before.decide_ns) as f64 / 1e9,
            switch_us: core.switch_ns as f64 / 1e3,
        }
    }
}

impl LiveWindow {
    pub(crate) fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds / 1e6
    }

    /// Packets that were lost between the functions, of those that left.
    pub(crate) fn lost_inside(&self) -> f64 {
        let lost = self.taken.saturating_sub(self.packets);
        lost as f64 / (self.packets as f64).max(1.0)
    }
}

/// A run id that no other process has.
fn run_id(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("bench{}-{number}-{name}", std::process::id())
}
