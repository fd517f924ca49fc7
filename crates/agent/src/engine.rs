//! What the agent can do: bring chains up and down, show them, and keep their workers alive.
//!
//! One lock guards the node. Deploying takes milliseconds, with DPDK up to seconds, with black boxes as long as their programs take to
//! come up: up to `startup` for each chain. Everybody else waits meanwhile, so that wait ends early when the client goes away, the
//! agent is told to stop, or everything is to be removed. Measuring takes seconds and holds no lock.
//! Workers have a lock each, so that nobody's work holds up those who look after them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

use myelin_linux::{affinity, procfs};
use myelin_packet::sojourn::Histogram;
use myelin_planner::{Costs, Plan};
use myelin_spec::ServiceChain;

use crate::api::{
    AgentInfo, ApiError, ChainSource, ChainStatus, ChainUp, DownReply, Event, FunctionFlows,
    ProbeRequest, RunRequest, SlaEvent, SlaSecond,
};
use crate::api::{RunDir, calibration_file};
use crate::chains::{Order, State};
use crate::cpu_latency::CpuLatencies;
use crate::node::Node;
use crate::roster::{Watched, lock};
use crate::workers::{Death, Entry, Key};
use crate::{Monitor, dpdk, external, flows, sla, status, workers};

/// How often workers are looked after: a dead one is back within 100 ms.
const SUPERVISION: Duration = Duration::from_millis(20);

/// `None` when the agent is stopping.
type Guarded = Mutex<Option<State>>;

/// The agent's work, without its socket. Also what experiments drive directly.
pub struct Engine {
    state: Arc<Guarded>,
    sla: sla::Shared,
    run_dir: RunDir,
    /// Streams under way; the agent does not go idle meanwhile.
    pub(crate) busy: AtomicUsize,
    /// How often all that was under way was called off.
    called_off: AtomicU64,
}

impl Engine {
    /// Prepares the node. `program` is the executable that becomes a worker when it is called with `worker`.
    ///
    /// # Errors
    /// No privileges, or the kernel lacks what eBPF maps need.
    pub fn open(run_dir: &RunDir, program: PathBuf) -> Result<Self, ApiError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(ApiError::failed("the agent needs root: use sudo"));
        }
        let node = Node::open(run_dir, program)?;
        let (workers, devices) = (node.workers.watched(), node.devices.watched());
        let black_boxes = node.black_boxes.watched();
        let state = Arc::new(Mutex::new(Some(State {
            node,
            chains: BTreeMap::new(),
            latencies: CpuLatencies::default(),
        })));
        supervise(Arc::downgrade(&state), workers);
        supervise_devices(Arc::downgrade(&state), devices);
        supervise_black_boxes(Arc::downgrade(&state), black_boxes);
        let sla = sla::start(Arc::downgrade(&state));
        Ok(Self {
            state,
            sla,
            run_dir: run_dir.clone(),
            busy: AtomicUsize::new(0),
            called_off: AtomicU64::new(0),
        })
    }

    /// Whether chains run or long work is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
            || lock(&self.state)
                .as_ref()
                .is_some_and(|state| !state.names().is_empty())
    }

    /// Who this is.
    pub fn info(&self) -> AgentInfo {
        let pid = std::process::id();
        AgentInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid,
            run_dir: self.run_dir.path().display().to_string(),
            orphans: lock(&self.state)
                .as_ref()
                .map_or_else(Vec::new, |state| state.node.orphans()),
            resident_kib: procfs::memory(pid).map_or(0, |memory| memory.resident_bytes / 1024),
        }
    }

    /// Brings all chains of a file into the form that it gives them, or none: those that do not run come up, those that
    /// run in another form are changed under their traffic.
    ///
    /// # Errors
    /// A bad file, a chain that is not admitted, a change that cannot be made live, or what the system refused.
    pub fn up(&self, source: &ChainSource) -> Result<Vec<ChainUp>, ApiError> {
        self.up_unless(source, false, &AtomicBool::new(false))
    }

    /// As [`up`](Self::up); what admission refuses is deployed as best effort.
    ///
    /// # Errors
    /// As those of `up`, but for admission.
    pub fn up_by_force(&self, source: &ChainSource) -> Result<Vec<ChainUp>, ApiError> {
        self.up_unless(source, true, &AtomicBool::new(false))
    }

    /// As [`up`](Self::up). What waits for a program to come up gives up when `cancelled` is set. With `force` what admission refuses is deployed
    /// as best effort.
    ///
    /// # Errors
    /// Also when it gave up.
    pub(crate) fn up_unless(
        &self,
        source: &ChainSource,
        force: bool,
        cancelled: &AtomicBool,
    ) -> Result<Vec<ChainUp>, ApiError> {
        self.bring_up(source, force, cancelled, |_, _| Ok(()))
    }

    /// Makes deployments that wait for a program to come up give up.
    pub(crate) fn call_off(&self) {
        self.called_off.fetch_add(1, Ordering::Relaxed);
    }

    /// `check` sees what runs just before.
    fn bring_up(
        &self,
        source: &ChainSource,
        force: bool,
        cancelled: &AtomicBool,
        check: impl FnOnce(&State, &[ServiceChain]) -> Result<(), ApiError>,
    ) -> Result<Vec<ChainUp>, ApiError> {
        let start = Instant::now();
        let called_off = self.called_off.load(Ordering::Relaxed);
        let is_called_off = || {
            cancelled.load(Ordering::Relaxed)
                || self.called_off.load(Ordering::Relaxed) != called_off
        };
        let chains = source.parse()?;
        let costs = load_costs()?;
        let source = Arc::new(source.clone());
        self.with_state(|state| {
            check(state, &chains)?;
            let order = Order {
                source: &source,
                costs: &costs,
                force,
                start,
                is_called_off: &is_called_off,
            };
            state.up_all(chains, order)
        })
    }

    /// Removes one chain.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn down(&self, name: &str) -> Result<DownReply, ApiError> {
        self.with_state(|state| {
            if !state.down_any(name) {
                let hint = if state.node.orphans().is_empty() {
                    "`myelin ps` lists those that do"
                } else {
                    "an agent that was killed left things behind; `myelin down --all` removes them"
                };
                return Err(ApiError::failed(format!("no chain `{name}` runs; {hint}")));
            }
            Ok(DownReply {
                removed: vec![name.to_owned()],
                recovered: Vec::new(),
            })
        })
    }

    /// Removes every chain, and what a killed agent left behind.
    ///
    /// # Errors
    /// What could not be removed; the rest is.
    pub fn down_all(&self) -> Result<DownReply, ApiError> {
        self.call_off();
        self.with_state(|state| {
            let removed = state.names();
            for name in &removed {
                state.down_any(name);
            }
            Ok(DownReply {
                removed,
                recovered: state.node.recover()?,
            })
        })
    }

    /// The running chains.
    ///
    /// # Errors
    /// The agent is stopping; what it still has is not a list of what runs.
    pub fn list(&self) -> Result<Vec<ChainStatus>, ApiError> {
        let mut all: Vec<ChainStatus> = self.with_state(|state| {
            let between_devices = state.node.devices.list();
            let node = &state.node;
            let chains = state.chains.values();
            Ok(chains
                .map(|deployed| status::of(deployed, node))
                .chain(between_devices)
                .collect())
        })?;
        let monitor = lock(&self.sla);
        for status in &mut all {
            let told = monitor.status(&status.chain, status.spi);
            let lost = told
                .as_ref()
                .is_some_and(|told| !told.lost_cores.is_empty());
            status.best_effort |= lost;
            status.sla = told.map(Box::new);
        }
        Ok(all)
    }

    /// Violations of contracts whose numbers are above `after`, of one running chain or of all of them.
    ///
    /// # Errors
    /// There is no chain of that name.
    pub fn events(&self, chain: Option<&str>, after: u64) -> Result<Vec<SlaEvent>, ApiError> {
        if let Some(name) = chain {
            self.expect(name)?;
        }
        Ok(lock(&self.sla).events(chain, after))
    }

    /// The last seconds of a running chain, at most so many, the oldest first.
    ///
    /// # Errors
    /// There is no chain of that name.
    pub fn seconds(&self, chain: &str, most: usize) -> Result<Vec<SlaSecond>, ApiError> {
        self.expect(chain)?;
        Ok(lock(&self.sla).seconds(chain, most))
    }

    /// Says so when no chain of that name runs.
    fn expect(&self, name: &str) -> Result<(), ApiError> {
        self.with_state(|state| {
            if state.names().iter().any(|running| running == name) {
                return Ok(());
            }
            Err(ApiError::failed(format!(
                "no chain `{name}` runs; `myelin ps` lists those that do"
            )))
        })
    }

    /// The in-band sojourn of all packets of a chain since it came up, by section: one, unless black boxes cut its way.
    ///
    /// # Errors
    /// There is no chain of that name.
    pub fn sojourn(&self, chain: &str) -> Result<Vec<Histogram>, ApiError> {
        crate::measure::sojourn(self, chain)
    }

    /// The flows that the functions of one chain know, or of all of them.
    ///
    /// # Errors
    /// There is no chain of that name; a table or a worker that could not be read.
    pub fn flows(&self, chain: Option<&str>) -> Result<Vec<FunctionFlows>, ApiError> {
        self.with_state(|state| {
            let devices = &state.node.devices;
            let runs = |name: &str| state.chains.contains_key(name) || devices.runs(name);
            if let Some(name) = chain.filter(|name| !runs(name)) {
                return Err(ApiError::failed(format!(
                    "no chain `{name}` runs; `myelin ps` lists those that do"
                )));
            }
            let mut all = Vec::new();
            for (name, deployed) in &state.chains {
                if chain.is_none_or(|wanted| wanted == name) {
                    all.extend(flows::of(deployed, &state.node)?);
                }
            }
            all.extend(devices.flows(chain)?);
            Ok(all)
        })
    }

    /// Measures a running chain.
    ///
    /// # Errors
    /// No such chain, or one without end hosts; bad options; a socket that failed.
    pub fn probe(&self, request: &ProbeRequest, monitor: &Monitor<'_>) -> Result<(), ApiError> {
        let _busy = Busy::new(&self.busy);
        let report = crate::measure::chain(self, &request.chain, &request.options, &[], monitor)?;
        (monitor.emit)(Event::Report(Box::new(report)));
        Ok(())
    }

    /// The main job: deploys, measures every chain of the file that a probe can measure and that is not to be flooded, tears down.
    ///
    /// # Errors
    /// As [`up`](Self::up) and [`probe`](Self::probe).
    pub fn run(&self, request: &RunRequest, monitor: &Monitor<'_>) -> Result<(), ApiError> {
        let _busy = Busy::new(&self.busy);
        monitor.progress("deploying", 0, 1);
        let may_run = |state: &State, chains: &[ServiceChain]| {
            crate::api::check_floods(&request.floods, chains)?;
            state.none_may_run(chains)
        };
        let up = self.bring_up(&request.source, request.force, monitor.cancelled, may_run)?;
        let measured = self.measure_all(&up, request, monitor);
        for one in up.iter().rev() {
            // Somebody else may have taken it down meanwhile.
            let _ = self.down(&one.chain);
        }
        measured
    }

    fn measure_all(
        &self,
        up: &[ChainUp],
        request: &RunRequest,
        monitor: &Monitor<'_>,
    ) -> Result<(), ApiError> {
        let mut reports = 0;
        for one in up {
            (monitor.emit)(Event::Up(Box::new(one.clone())));
            // A reverse chain is measured with the one whose replies it takes.
            let is_reverse_of_another = one.hosts.is_empty()
                || up
                    .iter()
                    .take_while(|other| other.chain != one.chain)
                    .any(|other| other.hosts == one.hosts);
            let is_flooded = request.floods.iter().any(|flood| flood.chain == one.chain);
            if is_reverse_of_another || is_flooded || monitor.is_cancelled() {
                continue;
            }
            let (options, floods) = (&request.options, &request.floods);
            let report = crate::measure::chain(self, &one.chain, options, floods, monitor)?;
            (monitor.emit)(Event::Report(Box::new(report)));
            reports += 1;
        }
        if reports == 0 && !monitor.is_cancelled() {
            return Err(ApiError::usage(
                "`run` measures chains on emulated end hosts, and every chain of this file names interfaces \
                 (spec.ports): use `up`, and send your own traffic",
            ));
        }
        Ok(())
    }

    /// Ends everything; the object is of no use afterwards.
    pub fn close(&self) {
        self.call_off();
        if let Some(mut state) = lock(&self.state).take() {
            for name in state.names() {
                state.down_any(&name);
            }
            state.node.close();
        }
    }

    pub(crate) fn with_state<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        match lock(&self.state).as_mut() {
            Some(state) => work(state),
            None => Err(ApiError::failed("the agent is stopping")),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// Passes the admitted plan of a chain, and one that is not when `force` says so: as best effort.
///
/// # Errors
/// The chain is refused.
pub fn admit(chain: &ServiceChain, mut plan: Plan, force: bool) -> Result<Plan, ApiError> {
    if plan.admitted {
        return Ok(plan);
    }
    let reason = plan
        .refusal
        .as_deref()
        .unwrap_or("its contract cannot be kept");
    if force {
        tracing::info!(chain = plan.chain, reason, "deployed as best effort");
        plan.best_effort = true;
        return Ok(plan);
    }
    let instead = if plan.remedies.is_empty() {
        String::new()
    } else {
        format!(
            "; it would be admitted with {}",
            plan.remedies.join(", or ")
        )
    };
    Err(ApiError::refused(format!(
        "{}: chain `{}` is refused: {reason}{instead}; `--force` deploys it as best effort",
        chain.places.sla, chain.name
    )))
}

/// The costs measured on this machine, or the built-in ones when none were.
///
/// # Errors
/// The calibration file is there but not usable.
pub fn load_costs() -> Result<Costs, ApiError> {
    let path = calibration_file();
    match std::fs::read_to_string(&path) {
        Ok(text) => Costs::from_json(&text)
            .map_err(|error| ApiError::failed(format!("{}: {error}", path.display()))),
        Err(_) => Ok(Costs::default()),
    }
}

/// The last core: the first ones are where interrupts and other work usually are.
pub(crate) fn default_core() -> u32 {
    affinity::cores() - 1
}

/// Counts long work.
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Looks after the workers until the engine is gone, whoever works with the node meanwhile.
fn supervise(state: Weak<Guarded>, workers: Watched<Key, Entry>) {
    std::thread::spawn(move || {
        let mut given_up = Vec::new();
        while let Some(state) = state.upgrade() {
            workers::supervise(&workers, |key, death| match death {
                Death::Restarted => {
                    tracing::warn!(owner = key.owner, "a worker died and was started again");
                }
                death => {
                    tracing::error!(owner = key.owner, "a worker keeps dying and is given up");
                    given_up.push((key.clone(), death));
                }
            });
            if !given_up.is_empty()
                && let Some(mut state) = try_lock(&state)
            {
                for (key, death) in given_up.drain(..) {
                    if let Some(state) = state.as_mut() {
                        state.give_up(&key, &death);
                    }
                }
            }
            drop(state);
            std::thread::sleep(SUPERVISION);
        }
    });
}

/// The same for workers over DPDK, whose start takes a fraction of a second.
fn supervise_devices(state: Weak<Guarded>, devices: Watched<u32, dpdk::Pair>) {
    std::thread::spawn(move || {
        while state.strong_count() > 0 {
            dpdk::supervise(&devices);
            std::thread::sleep(SUPERVISION);
        }
    });
}

/// The same for black boxes, which may be containers.
fn supervise_black_boxes(state: Weak<Guarded>, boxes: Watched<external::Key, external::BlackBox>) {
    std::thread::spawn(move || {
        let mut given_up = Vec::new();
        while let Some(state) = state.upgrade() {
            external::supervise(&boxes, |key| given_up.push(key));
            if !given_up.is_empty()
                && let Some(mut state) = try_lock(&state)
            {
                for key in given_up.drain(..) {
                    if let Some(state) = state.as_mut() {
                        state.give_up_black_box(key);
                    }
                }
            }
            drop(state);
            std::thread::sleep(SUPERVISION);
        }
    });
}

fn try_lock(state: &Guarded) -> Option<MutexGuard<'_, Option<State>>> {
    match state.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
