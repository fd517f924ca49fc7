//! Cores whose workers hand them over to each other (`worker.sharing`).
//!
//! All workers of such a core have one table ([`CoreTable`]). The table describes their rings,
//! so the agent makes another one whenever a worker gets or closes a ring. Each worker that has
//! a table keeps the sockets of all others open. So [`Cores::without_turns`] takes the table
//! away while a worker closes something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use myelin_dataplane::{CoreStats, CoreTable, Deaths, Member};
use myelin_policy::sharing::Parameters;
use myelin_spec::{SharingMechanism, SharingPolicy, SharingSpec};

use crate::api::ApiError;
use crate::node::preemptor::{Preemptor, Preemptors};
use crate::pool::lock;

/// A task of a core.
pub(crate) struct TurnMember {
    pub(crate) name: String,
    /// The longest time of a packet on the core, ns, if a contract has one.
    pub(crate) budget_ns: Option<u64>,
    pub(crate) kind: MemberKind,
}

pub(crate) enum MemberKind {
    /// A worker or pipeline stage.
    Worker {
        member: Member,
        pid: u32,
    },
    BlackBox(BlackBoxTask),
}

/// A black box as a task.
pub(crate) struct BlackBoxTask {
    /// The control group of its processes.
    pub(crate) group: String,
    /// SPI, generation and position.
    pub(crate) place: (u32, u16, u8),
    /// The counter of the packets that enter.
    pub(crate) entered: u32,
    /// The counters of those that leave on either side.
    pub(crate) left: [u32; 2],
    /// Packets for which the program has room.
    pub(crate) capacity: u32,
    /// Whether the group has a CPU quota.
    pub(crate) has_quota: bool,
}

/// A worker that may take turns on its core, with its pipeline stages, or a black box.
pub(crate) trait TakesTurns: Send + Sync {
    /// The worker's owner.
    fn owner(&self) -> &str;
    /// The worker's core.
    fn core(&self) -> Option<u32>;
    /// How the workers of the core share it.
    fn sharing(&self) -> &SharingSpec;
    /// The policy of the turns; `None` if the operating system shares the core.
    fn policy(&self) -> Option<Parameters>;
    /// The processes that read rings, in the order of the chain.
    fn members(&self) -> Vec<TurnMember>;
    /// Lets these processes take turns, as the tasks of the table from `first` on.
    fn start_turns(&self, _table: &Arc<CoreTable>, _first: usize) -> Result<(), ApiError> {
        Ok(())
    }
    /// Takes the turns from all processes.
    fn stop_turns(&self) -> Result<(), ApiError> {
        Ok(())
    }
}

/// All cores with workers or shared by black boxes, by number.
pub(crate) struct Cores {
    cores: Mutex<BTreeMap<u32, Core>>,
    preemptors: Preemptors,
}

/// The turns of a core stand still until the drop of this value, because a program starts.
pub(crate) struct Pause<'c> {
    cores: &'c Cores,
    core: u32,
    is_over: bool,
}

#[derive(Default)]
struct Core {
    workers: Vec<Weak<dyn TakesTurns>>,
    table: Option<Arc<CoreTable>>,
    preemptor: Option<Preemptor>,
    /// Ends of preemptors.
    deaths: Deaths,
    /// The number of [`Pause`]s.
    pauses: u32,
    /// The names of the tasks.
    tasks: Vec<String>,
}

impl Core {
    fn live(&mut self) -> Vec<Arc<dyn TakesTurns>> {
        self.workers.retain(|worker| worker.strong_count() > 0);
        self.workers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes the table from all workers, or ends the preemptor.
    fn stop(&mut self) {
        self.tasks.clear();
        self.preemptor = None;
        if self.table.take().is_none() {
            return;
        }
        for worker in self.live() {
            if let Err(error) = worker.stop_turns() {
                tracing::warn!(owner = worker.owner(), %error, "a worker does not answer; it keeps its turns");
            }
        }
    }

    /// Lets all tasks take turns, with their present rings.
    fn start(&mut self, number: u32, preemptors: &Preemptors) -> Result<(), ApiError> {
        self.tasks.clear();
        // It has the rings of another time, and may look at one that is closed.
        self.preemptor = None;
        if self.pauses > 0 {
            return Ok(());
        }
        let workers = self.live();
        let mut members = Vec::new();
        let mut counts = Vec::new();
        for worker in &workers {
            let own = worker.members();
            counts.push(own.len());
            members.extend(own);
        }
        self.tasks = members.iter().map(|member| member.name.clone()).collect();
        let Some(first) = workers.first() else {
            return Ok(());
        };
        let mechanism = first.sharing().mechanism;
        let Some(policy) = first.policy().filter(|_| members.len() > 1) else {
            self.stop();
            return Ok(());
        };
        let is_box = |member: &TurnMember| matches!(member.kind, MemberKind::BlackBox(_));
        if members.iter().any(is_box) || mechanism != SharingMechanism::Auto {
            let tasks = std::mem::take(&mut self.tasks);
            self.stop();
            let started = preemptors.start(number, &members, (policy, mechanism))?;
            tracing::info!(core = number, mechanism = %started.mechanism, "a preemptor gives turns");
            self.preemptor = Some(started);
            self.tasks = tasks;
            return Ok(());
        }
        let members = members.into_iter().filter_map(|task| match task.kind {
            MemberKind::Worker { member, .. } => Some((member, task.budget_ns)),
            MemberKind::BlackBox(_) => None,
        });
        self.start_hand_over(&workers, (&members.collect::<Vec<_>>(), &counts), policy)
    }

    /// Gives all workers a table of their present rings.
    fn start_hand_over(
        &mut self,
        workers: &[Arc<dyn TakesTurns>],
        (members, counts): (&[(Member, Option<u64>)], &[usize]),
        policy: Parameters,
    ) -> Result<(), ApiError> {
        let least_ns = members.iter().filter_map(|(_, budget_ns)| *budget_ns).min();
        let policy = least_ns.map_or(policy, |least_ns| policy.for_hand_over(least_ns));
        let table = CoreTable::create(members, policy).map_err(ApiError::failed)?;
        let table = Arc::new(table);
        let mut first = 0;
        for (worker, count) in workers.iter().zip(counts) {
            if *count > 0 {
                worker.start_turns(&table, first)?;
            }
            first += count;
        }
        self.table = Some(table);
        Ok(())
    }
}

impl Cores {
    pub(crate) fn new(preemptors: Preemptors) -> Self {
        Self {
            cores: Mutex::default(),
            preemptors,
        }
    }

    /// Adds a worker to its core.
    ///
    /// # Errors
    /// Another worker of the core has another scheduler.
    pub(crate) fn join(&self, worker: &Arc<dyn TakesTurns>) -> Result<(), ApiError> {
        let Some(number) = worker.core() else {
            return Ok(());
        };
        let mut cores = lock(&self.cores);
        let core = cores.entry(number).or_default();
        let live = core.live();
        if live.iter().any(|other| Arc::ptr_eq(other, worker)) {
            return Ok(());
        }
        let spec = worker.sharing();
        if let Some(other) = live.iter().find(|other| other.sharing() != spec) {
            return Err(ApiError::failed(format!(
                "core {number} has a worker of owner {} with `sharing: {}`, and the chain's worker has \
                 `sharing: {}`: all workers of a core need the same spec.worker.sharing; make both equal, or write \
                 another `worker: {{ core }}`",
                other.owner(),
                describe(other.sharing()),
                describe(spec),
            )));
        }
        core.workers.push(Arc::downgrade(worker));
        Ok(())
    }

    /// Lets the workers of a core take turns, with their present rings.
    ///
    /// # Errors
    /// A worker refuses its turns.
    pub(crate) fn refresh(&self, worker: &dyn TakesTurns) -> Result<(), ApiError> {
        if !worker.sharing().hands_over() {
            return Ok(());
        }
        let mut cores = lock(&self.cores);
        let Some((number, core)) = worker
            .core()
            .and_then(|number| Some((number, cores.get_mut(&number)?)))
        else {
            return Ok(());
        };
        core.deaths = Deaths::default();
        core.start(number, &self.preemptors)
    }

    /// Tells the preemptor of the worker's core, if there is one, that the worker has a new process.
    pub(crate) fn replace_process(&self, worker: &dyn TakesTurns) -> Result<(), ApiError> {
        let mut cores = lock(&self.cores);
        let core = worker
            .core()
            .and_then(|number| Some((number, cores.get_mut(&number)?)));
        match core {
            Some((number, core)) if core.preemptor.is_some() => {
                core.start(number, &self.preemptors)
            }
            _ => Ok(()),
        }
    }

    /// Stops the turns of a core while a program starts on it: a program that starts needs the core
    /// before it has packets.
    pub(crate) fn pause(&self, core: u32) -> Pause<'_> {
        let mut cores = lock(&self.cores);
        let paused = cores.entry(core).or_default();
        paused.pauses += 1;
        paused.stop();
        Pause {
            cores: self,
            core,
            is_over: false,
        }
    }

    fn end_pause(&self, number: u32) -> Result<(), ApiError> {
        let mut cores = lock(&self.cores);
        let Some(core) = cores.get_mut(&number) else {
            return Ok(());
        };
        core.pauses = core.pauses.saturating_sub(1);
        core.start(number, &self.preemptors)
    }

    /// Starts preemptors again that have ended. Their guardians have given the tasks back to the
    /// kernel.
    pub(crate) fn restart_preemptors(&self) {
        // A request starts the preemptor of each core that it changes.
        let Ok(mut cores) = self.cores.try_lock() else {
            return;
        };
        for (number, core) in cores.iter_mut() {
            if !core.preemptor.as_mut().is_some_and(Preemptor::has_ended) {
                continue;
            }
            core.stop();
            if core.deaths.record_death(Instant::now()) {
                tracing::error!(
                    core = number,
                    "the preemptor ended too often and is no longer restarted: the kernel shares the core until a chain on it changes"
                );
            } else if let Err(error) = core.start(*number, &self.preemptors) {
                tracing::error!(core = number, %error, "cannot restart a preemptor: the kernel shares the core");
            } else {
                tracing::warn!(core = number, "a preemptor died and was restarted");
            }
        }
    }

    /// Calls `close` while the workers of the core take no turns, because `close` closes rings.
    pub(crate) fn without_turns<T>(&self, worker: &dyn TakesTurns, close: impl FnOnce() -> T) -> T {
        if !worker.sharing().hands_over() {
            return close();
        }
        let mut cores = lock(&self.cores);
        let core = worker
            .core()
            .and_then(|number| Some((number, cores.get_mut(&number)?)));
        let Some((number, core)) = core else {
            return close();
        };
        core.stop();
        let closed = close();
        if let Err(error) = core.start(number, &self.preemptors) {
            tracing::warn!(owner = worker.owner(), %error, "the workers of a core no longer take turns");
        }
        closed
    }

    /// The counters of each core whose workers take turns; of none while turns change, which may
    /// take as long as a request of a worker.
    pub(crate) fn stats(&self) -> Vec<SharedCoreStats> {
        let Ok(mut cores) = self.cores.try_lock() else {
            return Vec::new();
        };
        let cores = cores.iter_mut().filter_map(|(number, core)| {
            let preemptor = core.preemptor.as_ref();
            let stats = preemptor.map(|preemptor| (preemptor.stats(), Some(preemptor.mechanism)));
            let hand_over = core.table.as_ref().map(|table| (table.stats(), None));
            let (stats, mechanism) = stats.or(hand_over)?;
            Some(SharedCoreStats {
                core: *number,
                policy: core.live().first()?.sharing().policy,
                mechanism,
                tasks: core.tasks.clone(),
                stats,
            })
        });
        cores.collect()
    }
}

impl Pause<'_> {
    /// Ends the pause: the tasks take turns.
    ///
    /// # Errors
    /// The kernel or a task refuses them.
    pub(crate) fn end(mut self) -> Result<(), ApiError> {
        self.is_over = true;
        self.cores.end_pause(self.core)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.cores.end_pause(self.core)
        {
            tracing::warn!(core = self.core, %error, "the tasks of a core no longer take turns");
        }
    }
}

/// A core whose tasks take turns.
pub(crate) struct SharedCoreStats {
    pub(crate) core: u32,
    pub(crate) policy: SharingPolicy,
    /// The mechanism of the preemptor; `None` if the workers hand over.
    pub(crate) mechanism: Option<SharingMechanism>,
    /// The names of the tasks.
    pub(crate) tasks: Vec<String>,
    pub(crate) stats: CoreStats,
}

/// A policy with its parameters, as in a chain file.
fn describe(spec: &SharingSpec) -> String {
    let default = SharingSpec {
        policy: spec.policy,
        ..SharingSpec::default()
    };
    if *spec == default {
        spec.policy.to_string()
    } else {
        format!("{} with other parameters", spec.policy)
    }
}
