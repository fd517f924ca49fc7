//! Pipelines whose processes share one core or have cores of their own, fed and drained without a
//! device, so that cores and no link decide.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use myelin_dataplane::replay_port::Replay;
use myelin_dataplane::{
    CoreStats, CoreTable, Idle, Pipeline, UserChain, UserExit, UserSegment, WorkerConfig,
    WorkerHandle,
};
use myelin_linux::sched::{self, Policy as Class};
use myelin_linux::{affinity, procfs};
use myelin_packet::sojourn::Histogram;
use myelin_policy::sharing::{DeadlineParameters, Parameters, UnisParameters};
use myelin_spec::{FunctionConfig, ReplayTimes, WorkConfig};

use crate::{Error, Findings, Session, frames};

/// Packets of a batch, and descriptors of a ring, as published (Anthony et al. 2020, 5.1).
pub(crate) const BATCH: u16 = 64;
const RING: u32 = 2048;
/// Frames of a pipeline: each of its rings may be full.
const FRAMES: u32 = 1 << 15;
/// The processes run before a window for this time, so that costs are known.
const WARM_UP: Duration = Duration::from_millis(60);
/// The chain.
const SPI: u32 = 1;

/// UNiS as published.
pub(crate) fn unis() -> UnisParameters {
    UnisParameters::for_batch(BATCH.into())
}

/// Turns by deadline.
pub(crate) fn deadline() -> Parameters {
    Parameters::Deadline(DeadlineParameters {
        batch: BATCH.into(),
        ..DeadlineParameters::default()
    })
}

/// Returns the length of a window, one of these by effort, and adds the settings of a pipeline.
pub(crate) fn window(session: Session<'_>, ms: [u64; 3], findings: &mut Findings) -> Duration {
    let [quick, normal, thorough] = ms;
    let ms = session.effort.choose(quick, normal, thorough);
    findings.set("ring_entries", RING);
    findings.set("batch", BATCH);
    findings.set("window_ms", ms);
    Duration::from_millis(ms)
}

/// The work of `functions` functions, which have these cycles in turn.
pub(crate) fn chain_of(cycles: &[u32], functions: usize) -> Vec<u32> {
    cycles.iter().copied().cycle().take(functions).collect()
}

/// What a pipeline consists of.
#[derive(Debug, Clone)]
pub(crate) struct LiveSetup {
    /// The work on a packet in each function, cycles.
    cycles: Vec<u32>,
    /// The core of each function.
    cores: Vec<u32>,
    policy: Option<Parameters>,
    class: Class,
    feed: Feed,
}

/// Where packets come from.
#[derive(Debug, Clone, Copy)]
enum Feed {
    /// From the memory of the first function, as fast as it takes them.
    First,
    /// From a process on the first core, at this rate, or as fast as the first function takes them.
    Own(Option<u64>),
}

impl LiveSetup {
    /// All functions on the last core. Without `policy`, the kernel shares it.
    pub(crate) fn shared(cycles: Vec<u32>, policy: Option<Parameters>) -> Result<Self, Error> {
        let last = affinity::get(0)?.pop().unwrap_or_default() as u32;
        Ok(Self {
            cores: vec![last; cycles.len()],
            cycles,
            policy,
            class: Class::Other,
            feed: Feed::First,
        })
    }

    /// Starts the pipeline and counts its packets for this time.
    pub(crate) fn observe(&self, program: &Path, window: Duration) -> Result<LiveWindow, Error> {
        LivePipeline::start(program, self).map(|live| live.observe(window))
    }

    /// With a core for each function, as far as there are cores.
    pub(crate) fn on_own_cores(mut self) -> Result<Self, Error> {
        let cores = affinity::get(0)?;
        let cores = cores.iter().rev().cycle();
        self.cores = cores
            .take(self.cycles.len())
            .map(|core| *core as u32)
            .collect();
        Ok(self)
    }

    /// With all functions in this class of the kernel's scheduler.
    pub(crate) fn in_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// With packets from a process on the first core, at this rate.
    pub(crate) fn fed_at(mut self, rate_pps: Option<u64>) -> Result<Self, Error> {
        let first = affinity::get(0)?.first().copied().unwrap_or_default() as u32;
        self.feed = Feed::Own(rate_pps);
        self.cycles.insert(0, 0);
        self.cores.insert(0, first);
        Ok(self)
    }
}

/// Functions in a pipeline, each in its own process. Dropping it ends them.
struct LivePipeline {
    // The stages end before the first process.
    pipeline: Pipeline,
    head: WorkerHandle,
    table: Option<Arc<CoreTable>>,
}

/// What a window saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveWindow {
    pub(crate) seconds: f64,
    /// Time that each process had a core, s.
    pub(crate) cpu_s: Vec<f64>,
    pub(crate) packets: u64,
    /// Packets that the first function took.
    pub(crate) taken: u64,
    pub(crate) switches: u64,
    /// Time of the policy's decisions, s.
    pub(crate) decide_s: f64,
    pub(crate) switch_us: f64,
    /// The time of packets in the pipeline, if they came at a rate.
    pub(crate) sojourn: Histogram,
}

impl LivePipeline {
    /// Starts a process for each function.
    fn start(program: &Path, setup: &LiveSetup) -> Result<Self, Error> {
        let cycles = &setup.cycles;
        let config = |name: &str, position: usize| WorkerConfig {
            args: vec!["worker".into()],
            core: setup.cores.get(position).copied(),
            batch: BATCH,
            idle: Idle::Spin,
            frames: FRAMES,
            ring: RING,
            ..WorkerConfig::new(program, run_id(name))
        };
        let mut head = WorkerHandle::spawn(config("first", 0))?;
        let packet = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 18);
        let port = head.add_replay(Replay {
            packets: vec![packet],
            chain: Some((SPI, 0)),
            times: setup.times(),
            end: None,
            ring: FRAMES,
        })?;
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
            config(&format!("stage{position}"), position.into())
        })?;
        let mut live = Self {
            pipeline,
            head,
            table: None,
        };
        if let Some(policy) = setup.policy {
            live.share(policy, setup.has_feeder())?;
        }
        if setup.class != Class::Other {
            for pid in live.pids() {
                sched::set(pid, setup.class)?;
            }
        }
        thread::sleep(WARM_UP);
        Ok(live)
    }

    fn pids(&self) -> Vec<u32> {
        let stages = self.pipeline.stages().iter();
        let stages = stages.map(|stage| stage.handle.pid());
        std::iter::once(self.head.pid()).chain(stages).collect()
    }

    /// Lets all processes take turns, or all but the feeder.
    fn share(&mut self, policy: Parameters, has_feeder: bool) -> Result<(), Error> {
        let stages = self.pipeline.stages_mut().iter_mut();
        let head = (!has_feeder).then_some(&mut self.head);
        let mut handles: Vec<_> = head.into_iter().collect();
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
    fn observe(&self, window: Duration) -> LiveWindow {
        let pids = self.pids();
        let cpu = || -> Vec<Duration> {
            let times = pids.iter().map(|pid| procfs::run_time(*pid));
            times.map(Result::unwrap_or_default).collect()
        };
        let reader = self.pipeline.reader(&self.head);
        let read = || {
            let stats = reader.stats().unwrap_or_default();
            let taken = stats.positions.first().map_or(0, |first| first.packets_in);
            let core = self
                .table
                .as_ref()
                .map_or(CoreStats::default(), |table| table.stats());
            let sojourn = stats.sojourn;
            (Instant::now(), stats.transmitted, taken, core, sojourn)
        };
        let (start, before, taken_before, core_before, sojourn_before) = read();
        let cpu_before = cpu();
        thread::sleep(window);
        let cpu = cpu();
        let cpu_s = cpu.iter().zip(&cpu_before);
        let cpu_s = cpu_s.map(|(now, before)| now.saturating_sub(*before).as_secs_f64());
        let (end, after, taken, core, sojourn) = read();
        LiveWindow {
            sojourn: sojourn.since(&sojourn_before),
            cpu_s: cpu_s.collect(),
            seconds: (end - start).as_secs_f64(),
            packets: after - before,
            taken: taken - taken_before,
            switches: core.switches - core_before.switches,
            decide_s: (core.decide_ns - core_before.decide_ns) as f64 / 1e9,
            switch_us: core.switch_ns as f64 / 1e3,
        }
    }
}

impl LiveSetup {
    fn times(&self) -> ReplayTimes {
        match self.feed {
            Feed::First | Feed::Own(None) => ReplayTimes::Endless,
            Feed::Own(Some(rate_pps)) => ReplayTimes::Even(rate_pps),
        }
    }

    fn has_feeder(&self) -> bool {
        matches!(self.feed, Feed::Own(_))
    }
}

impl Drop for LivePipeline {
    fn drop(&mut self) {
        // A process that polls with a real-time priority would delay the end of the others.
        for pid in self.pids() {
            let _ = sched::set(pid, Class::Other);
        }
    }
}

impl LiveWindow {
    pub(crate) fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds / 1e6
    }

    /// Packets in a second of the processes' own time, millions: what other programs took does not
    /// count.
    pub(crate) fn own_mpps(&self) -> f64 {
        self.packets as f64 / self.cpu_s.iter().sum::<f64>().max(1e-9) / 1e6
    }

    pub(crate) fn switches_per_s(&self) -> f64 {
        self.switches as f64 / self.seconds
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
