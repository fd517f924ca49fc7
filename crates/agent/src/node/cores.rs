//! Cores whose workers hand them over to each other (`worker.sharing`), or whose black boxes and
//! workers get turns from a preemptor ([`crate::control::preemptor`]).
//!
//! All workers that hand over have one table ([`CoreTable`]). The table describes their rings, so
//! the agent makes another one whenever a worker gets or closes a ring. Each worker that has a
//! table keeps the sockets of all others open. So [`Cores::without_turns`] takes the table away
//! while a worker closes something.
//!
//! Beside a black box, and with another `sharing.mechanism` than `auto`, nobody hands over. A
//! preemptor is started anew in the same cases.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use myelin_dataplane::{CoreStats, CoreTable, Deaths, Member};
use myelin_policy::sharing::Parameters;
use myelin_spec::{SharingMechanism, SharingPolicy};

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
    /// Measured cost of a packet, ps.
    pub(crate) cost_ps: Option<u64>,
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
    fn sharing(&self) -> SharingPolicy;
    /// How the core goes from one task to the next.
    fn mechanism(&self) -> SharingMechanism;
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

/// All cores with workers or black boxes that take turns, by number.
pub(crate) struct Cores {
    cores: Mutex<BTreeMap<u32, Arc<Core>>>,
    preemptors: Preemptors,
}

/// The turns of a core stand still until the drop of this value, because a program starts.
pub(crate) struct Pause<'c> {
    cores: &'c Cores,
    core: u32,
    is_over: bool,
}

struct Core {
    number: u32,
    /// The workers and black boxes. Held while their turns change.
    workers: Mutex<Vec<Weak<dyn TakesTurns>>>,
    /// The turns that they take now. Held briefly.
    turns: Mutex<Option<Turns>>,
    /// Ends of preemptors.
    deaths: Mutex<Deaths>,
    /// The number of [`Pause`]s.
    pauses: AtomicU32,
}

struct Turns {
    giver: Giver,
    policy: SharingPolicy,
    /// The names of the tasks.
    tasks: Vec<String>,
}

/// Who gives turns.
enum Giver {
    /// The workers, by this table.
    Workers(Arc<CoreTable>),
    Preemptor(Preemptor),
}

impl Core {
    fn new(number: u32) -> Self {
        Self {
            number,
            workers: Mutex::default(),
            turns: Mutex::default(),
            deaths: Mutex::default(),
            pauses: AtomicU32::new(0),
        }
    }

    /// Takes the table from all workers, or ends the preemptor.
    fn stop(&self, workers: &[Arc<dyn TakesTurns>]) {
        let turns = lock(&self.turns).take();
        if !matches!(
            turns,
            Some(Turns {
                giver: Giver::Workers(_),
                ..
            })
        ) {
            return;
        }
        for worker in workers {
            if let Err(error) = worker.stop_turns() {
                tracing::warn!(owner = worker.owner(), %error, "a worker does not answer; it keeps its turns");
            }
        }
    }

    /// Lets all tasks take turns, with their present rings.
    fn start(
        &self,
        workers: &[Arc<dyn TakesTurns>],
        preemptors: &Preemptors,
    ) -> Result<(), ApiError> {
        if self.has_preemptor() {
            // It has the rings of another time, and keeps workers from answering.
            self.stop(workers);
        }
        if self.pauses.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let mut members = Vec::new();
        let mut counts = Vec::new();
        for worker in workers {
            let own = worker.members();
            counts.push(own.len());
            members.extend(own);
        }
        let Some(first) = workers.first() else {
            return Ok(());
        };
        let Some(policy) = first.policy().filter(|_| members.len() > 1) else {
            self.stop(workers);
            return Ok(());
        };
        let is_box = |member: &TurnMember| matches!(member.kind, MemberKind::BlackBox(_));
        let mechanism = first.mechanism();
        if members.iter().any(is_box) || mechanism != SharingMechanism::Auto {
            self.stop(workers);
            let preemptor = preemptors.start(self.number, &members, (policy, mechanism))?;
            tracing::info!(core = self.number, mechanism = %preemptor.mechanism, "a preemptor gives turns");
            let turns = Turns {
                giver: Giver::Preemptor(preemptor),
                policy: resolve(first.sharing()),
                tasks: members.into_iter().map(|member| member.name).collect(),
            };
            *lock(&self.turns) = Some(turns);
            return Ok(());
        }
        self.start_hand_over(workers, (members, &counts), policy)
    }

    /// Gives all workers a table of their present rings.
    fn start_hand_over(
        &self,
        workers: &[Arc<dyn TakesTurns>],
        (all, counts): (Vec<TurnMember>, &[usize]),
        policy: Parameters,
    ) -> Result<(), ApiError> {
        let mut tasks = Vec::new();
        let mut members = Vec::new();
        for task in all {
            if let MemberKind::Worker { member, .. } = task.kind {
                tasks.push(task.name);
                members.push((member, task.budget_ns));
            }
        }
        let least_ns = members.iter().filter_map(|(_, budget_ns)| *budget_ns).min();
        let policy = least_ns.map_or(policy, |least_ns| policy.for_hand_over(least_ns));
        let table = CoreTable::create(&members, policy).map_err(ApiError::failed)?;
        let table = Arc::new(table);
        // Readers see the new table from its first turn on; a failed start leaves it to `stop`.
        *lock(&self.turns) = workers.first().map(|first| Turns {
            giver: Giver::Workers(Arc::clone(&table)),
            policy: resolve(first.sharing()),
            tasks,
        });
        let mut first = 0;
        for (worker, count) in workers.iter().zip(counts) {
            let started = match *count {
                0 => Ok(()),
                _ => worker.start_turns(&table, first),
            };
            if let Err(error) = started {
                if worker.sharing() != SharingPolicy::Auto {
                    return Err(error);
                }
                tracing::warn!(owner = worker.owner(), %error, "the operating system shares a core with `sharing: auto`");
                self.stop(workers);
                return Ok(());
            }
            first += count;
        }
        Ok(())
    }

    fn has_preemptor(&self) -> bool {
        let turns = lock(&self.turns);
        matches!(
            *turns,
            Some(Turns {
                giver: Giver::Preemptor(_),
                ..
            })
        )
    }

    /// Starts the preemptor again if it has ended. Its guardian has given the tasks back to the
    /// kernel.
    fn restart_preemptor(&self, preemptors: &Preemptors) {
        let has_ended = match &mut *lock(&self.turns) {
            Some(Turns {
                giver: Giver::Preemptor(preemptor),
                ..
            }) => preemptor.has_ended(),
            _ => false,
        };
        // A request that changes the turns starts the preemptor itself.
        let Some(mut workers) = self.workers.try_lock().ok().filter(|_| has_ended) else {
            return;
        };
        let workers = live(&mut workers);
        self.stop(&workers);
        let core = self.number;
        if lock(&self.deaths).record_death(Instant::now()) {
            tracing::error!(
                core,
                "the preemptor ended too often and is no longer restarted: the kernel shares the core until a chain on it changes"
            );
        } else if let Err(error) = self.start(&workers, preemptors) {
            tracing::error!(core, %error, "cannot restart a preemptor: the kernel shares the core");
        } else {
            tracing::warn!(core, "a preemptor died and was restarted");
        }
    }
}

/// Returns the policy of turns that `auto` stands for.
fn resolve(policy: SharingPolicy) -> SharingPolicy {
    match policy {
        SharingPolicy::Auto => SharingPolicy::Deadline,
        policy => policy,
    }
}

fn live(workers: &mut Vec<Weak<dyn TakesTurns>>) -> Vec<Arc<dyn TakesTurns>> {
    workers.retain(|worker| worker.strong_count() > 0);
    workers.iter().filter_map(Weak::upgrade).collect()
}

impl Cores {
    pub(crate) fn new(preemptors: Preemptors) -> Self {
        Self {
            cores: Mutex::default(),
            preemptors,
        }
    }

    fn core(&self, number: u32) -> Arc<Core> {
        let mut cores = lock(&self.cores);
        let core = cores.entry(number);
        Arc::clone(core.or_insert_with(|| Arc::new(Core::new(number))))
    }

    /// Calls `change` with the core of a worker and the workers there, which change no turns
    /// meanwhile; with `None` for a worker without a core.
    fn change<T>(
        &self,
        worker: &dyn TakesTurns,
        change: impl FnOnce(Option<(&Core, &mut Vec<Weak<dyn TakesTurns>>)>) -> T,
    ) -> T {
        while let Some(number) = worker.core() {
            let core = self.core(number);
            let mut workers = lock(&core.workers);
            // The worker may have moved before the lock.
            if worker.core() == Some(number) {
                return change(Some((&core, &mut workers)));
            }
        }
        change(None)
    }

    /// Adds a worker to its core. Admission has checked that all workers there share it alike.
    pub(crate) fn join(&self, worker: &Arc<dyn TakesTurns>) {
        self.change(&**worker, |core| {
            let Some((_, workers)) = core else { return };
            let mut others = live(workers).into_iter();
            if !others.any(|other| Arc::ptr_eq(&other, worker)) {
                workers.push(Arc::downgrade(worker));
            }
        });
    }

    /// Lets the workers of a core take turns, with their present rings.
    ///
    /// # Errors
    /// A worker refuses its turns.
    pub(crate) fn refresh(&self, worker: &dyn TakesTurns) -> Result<(), ApiError> {
        self.change(worker, |core| match core {
            Some((core, workers)) if worker.sharing() != SharingPolicy::Os => {
                *lock(&core.deaths) = Deaths::default();
                core.start(&live(workers), &self.preemptors)
            }
            _ => Ok(()),
        })
    }

    /// Tells the preemptor of the worker's core, if there is one, of the worker's new process.
    ///
    /// # Errors
    /// The preemptor does not start again.
    pub(crate) fn replace_process(&self, worker: &dyn TakesTurns) -> Result<(), ApiError> {
        self.change(worker, |core| match core {
            Some((core, workers)) if core.has_preemptor() => {
                core.start(&live(workers), &self.preemptors)
            }
            _ => Ok(()),
        })
    }

    /// Stops the turns of a core while a program starts on it: a program that starts needs the core
    /// before it has packets.
    pub(crate) fn pause(&self, number: u32) -> Pause<'_> {
        let core = self.core(number);
        let mut workers = lock(&core.workers);
        core.pauses.fetch_add(1, Ordering::Relaxed);
        core.stop(&live(&mut workers));
        Pause {
            cores: self,
            core: number,
            is_over: false,
        }
    }

    fn end_pause(&self, number: u32) -> Result<(), ApiError> {
        let core = self.core(number);
        let mut workers = lock(&core.workers);
        core.pauses.fetch_sub(1, Ordering::Relaxed);
        *lock(&core.deaths) = Deaths::default();
        core.start(&live(&mut workers), &self.preemptors)
    }

    /// Whether a preemptor gives turns on the core, or will when a program there has started.
    pub(crate) fn has_preemptor(&self, number: u32) -> bool {
        let core = lock(&self.cores).get(&number).map(Arc::clone);
        core.is_some_and(|core| core.has_preemptor() || core.pauses.load(Ordering::Relaxed) > 0)
    }

    /// Starts preemptors again that have ended.
    pub(crate) fn restart_preemptors(&self) {
        let cores: Vec<_> = lock(&self.cores).values().map(Arc::clone).collect();
        for core in cores {
            core.restart_preemptor(&self.preemptors);
        }
    }

    /// Takes a worker from its core, calls `settle`, which may give it another core or another
    /// policy, and adds it to the core that it then has. The workers of both cores take turns
    /// again.
    ///
    /// # Errors
    /// That of `settle`, or a worker refuses its turns. The worker is on its core also then.
    pub(crate) fn move_worker(
        &self,
        worker: &Arc<dyn TakesTurns>,
        settle: impl FnOnce() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let settled = self.change(&**worker, |core| {
            let Some((core, workers)) = core else {
                return settle();
            };
            core.stop(&live(workers));
            workers.retain(|other| !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(worker)));
            let settled = settle();
            if let Err(error) = core.start(&live(workers), &self.preemptors) {
                tracing::warn!(%error, "the workers of a core no longer take turns");
            }
            settled
        });
        self.join(worker);
        settled.and(self.refresh(&**worker))
    }

    /// Calls `close` while the workers of the core take no turns, because `close` closes rings.
    pub(crate) fn without_turns<T>(&self, worker: &dyn TakesTurns, close: impl FnOnce() -> T) -> T {
        self.change(worker, |core| {
            let Some((core, workers)) = core.filter(|_| worker.sharing() != SharingPolicy::Os)
            else {
                return close();
            };
            core.stop(&live(workers));
            let closed = close();
            if let Err(error) = core.start(&live(workers), &self.preemptors) {
                tracing::warn!(owner = worker.owner(), %error, "the workers of a core no longer take turns");
            }
            closed
        })
    }

    /// The counters of each core whose workers take turns now.
    pub(crate) fn stats(&self) -> Vec<SharedCoreStats> {
        let cores: Vec<_> = lock(&self.cores)
            .iter()
            .map(|(number, core)| (*number, Arc::clone(core)))
            .collect();
        let stats = cores.into_iter().filter_map(|(core, shared)| {
            let turns = lock(&shared.turns);
            let turns = turns.as_ref()?;
            let (stats, mechanism) = match &turns.giver {
                Giver::Workers(table) => (table.stats(), None),
                Giver::Preemptor(preemptor) => (preemptor.stats(), Some(preemptor.mechanism)),
            };
            Some(SharedCoreStats {
                core,
                policy: turns.policy,
                mechanism,
                tasks: turns.tasks.clone(),
                stats,
            })
        });
        stats.collect()
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
