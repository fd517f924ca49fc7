//! Cores whose workers hand them over to each other (`worker.sharing`).
//!
//! All workers of such a core have one table ([`CoreTable`]). The table describes their rings,
//! so the agent makes another one whenever a worker gets or closes a ring. Each worker that has
//! a table keeps the sockets of all others open. So [`Cores::without_turns`] takes the table
//! away while a worker closes something.
//!
//! A worker may take seconds to answer. Meanwhile only the changes of its own core wait; readers
//! never do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use myelin_dataplane::{CoreStats, CoreTable, Member};
use myelin_policy::sharing::Parameters;
use myelin_spec::SharingPolicy;

use crate::api::ApiError;
use crate::pool::lock;

/// A worker that may take turns on its core, with its pipeline stages.
pub(crate) trait TakesTurns: Send + Sync {
    /// The worker's owner.
    fn owner(&self) -> &str;
    /// The worker's core.
    fn core(&self) -> Option<u32>;
    /// How the workers of the core share it.
    fn sharing(&self) -> SharingPolicy;
    /// The policy of the turns; `None` if the operating system shares the core.
    fn policy(&self) -> Option<Parameters>;
    /// The processes that read rings, in the order of the chain: name, rings, and the longest time
    /// of a packet on the core, ns, if a contract has one.
    fn members(&self) -> Vec<(String, Member, Option<u64>)>;
    /// Lets these processes take turns, as the tasks of the table from `first` on.
    fn start_turns(&self, table: &Arc<CoreTable>, first: usize) -> Result<(), ApiError>;
    /// Takes the turns from all processes.
    fn stop_turns(&self) -> Result<(), ApiError>;
}

/// All cores with workers, by number.
#[derive(Default)]
pub(crate) struct Cores(Mutex<BTreeMap<u32, Arc<Core>>>);

#[derive(Default)]
struct Core {
    /// The workers. Held while their turns change.
    workers: Mutex<Vec<Weak<dyn TakesTurns>>>,
    /// The turns that they take now. Held briefly.
    turns: Mutex<Option<Turns>>,
}

struct Turns {
    table: Arc<CoreTable>,
    policy: SharingPolicy,
    /// The names of the tasks.
    tasks: Vec<String>,
}

impl Core {
    /// Takes the table from all workers.
    fn stop(&self, workers: &[Arc<dyn TakesTurns>]) {
        if lock(&self.turns).take().is_none() {
            return;
        }
        for worker in workers {
            if let Err(error) = worker.stop_turns() {
                tracing::warn!(owner = worker.owner(), %error, "a worker does not answer; it keeps its turns");
            }
        }
    }

    /// Gives all workers a table of their present rings.
    fn start(&self, workers: &[Arc<dyn TakesTurns>]) -> Result<(), ApiError> {
        let mut tasks = Vec::new();
        let mut members = Vec::new();
        let mut counts = Vec::new();
        for worker in workers {
            let own = worker.members();
            counts.push(own.len());
            for (name, member, budget_ns) in own {
                tasks.push(name);
                members.push((member, budget_ns));
            }
        }
        let Some(first) = workers.first() else {
            return Ok(());
        };
        let Some(policy) = first.policy().filter(|_| members.len() > 1) else {
            self.stop(workers);
            return Ok(());
        };
        let least_ns = members.iter().filter_map(|(_, budget_ns)| *budget_ns).min();
        let policy = least_ns.map_or(policy, |least_ns| policy.for_hand_over(least_ns));
        let table = CoreTable::create(&members, policy).map_err(ApiError::failed)?;
        let table = Arc::new(table);
        // Readers see the new table from its first turn on; a failed start leaves it to `stop`.
        *lock(&self.turns) = Some(Turns {
            table: Arc::clone(&table),
            policy: match first.sharing() {
                SharingPolicy::Auto => SharingPolicy::Deadline,
                policy => policy,
            },
            tasks,
        });
        let mut first = 0;
        for (worker, count) in workers.iter().zip(counts) {
            let started = match count {
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
}

fn live(workers: &mut Vec<Weak<dyn TakesTurns>>) -> Vec<Arc<dyn TakesTurns>> {
    workers.retain(|worker| worker.strong_count() > 0);
    workers.iter().filter_map(Weak::upgrade).collect()
}

impl Cores {
    /// Calls `change` with the core of a worker and the workers there, which change no turns
    /// meanwhile; with `None` for a worker without a core.
    fn change<T>(
        &self,
        worker: &dyn TakesTurns,
        change: impl FnOnce(Option<(&Core, &mut Vec<Weak<dyn TakesTurns>>)>) -> T,
    ) -> T {
        while let Some(number) = worker.core() {
            let core = Arc::clone(lock(&self.0).entry(number).or_default());
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
                core.start(&live(workers))
            }
            _ => Ok(()),
        })
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
            if let Err(error) = core.start(&live(workers)) {
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
            if let Err(error) = core.start(&live(workers)) {
                tracing::warn!(owner = worker.owner(), %error, "the workers of a core no longer take turns");
            }
            closed
        })
    }

    /// The counters of each core whose workers take turns now.
    pub(crate) fn stats(&self) -> Vec<SharedCoreStats> {
        let cores: Vec<_> = lock(&self.0)
            .iter()
            .map(|(number, core)| (*number, Arc::clone(core)))
            .collect();
        let stats = cores.into_iter().filter_map(|(core, shared)| {
            let turns = lock(&shared.turns);
            let turns = turns.as_ref()?;
            Some(SharedCoreStats {
                core,
                policy: turns.policy,
                tasks: turns.tasks.clone(),
                stats: turns.table.stats(),
            })
        });
        stats.collect()
    }
}

/// A core whose workers take turns.
pub(crate) struct SharedCoreStats {
    pub(crate) core: u32,
    pub(crate) policy: SharingPolicy,
    /// The names of the tasks.
    pub(crate) tasks: Vec<String>,
    pub(crate) stats: CoreStats,
}
