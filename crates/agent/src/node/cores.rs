//! Cores whose workers hand them over to each other (`worker.sharing`).
//!
//! All workers of such a core have one table ([`CoreTable`]). The table describes their rings,
//! so the agent makes another one whenever a worker gets or closes a ring. Each worker that has
//! a table keeps the sockets of all others open. So [`Cores::without_turns`] takes the table
//! away while a worker closes something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use myelin_dataplane::{CoreStats, CoreTable, Member};
use myelin_policy::sharing::Parameters;
use myelin_spec::{SharingPolicy, SharingSpec};

use crate::api::ApiError;
use crate::pool::lock;

/// A worker that may take turns on its core, with its pipeline stages.
pub(crate) trait TakesTurns: Send + Sync {
    /// The worker's owner.
    fn owner(&self) -> &str;
    /// The worker's core.
    fn core(&self) -> Option<u32>;
    /// How the workers of the core share it.
    fn sharing(&self) -> &SharingSpec;
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
pub(crate) struct Cores(Mutex<BTreeMap<u32, Core>>);

#[derive(Default)]
struct Core {
    workers: Vec<Weak<dyn TakesTurns>>,
    table: Option<Arc<CoreTable>>,
    /// The names of the tasks.
    tasks: Vec<String>,
}

impl Core {
    fn live(&mut self) -> Vec<Arc<dyn TakesTurns>> {
        self.workers.retain(|worker| worker.strong_count() > 0);
        self.workers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes the table from all workers.
    fn stop(&mut self) {
        self.tasks.clear();
        if self.table.take().is_none() {
            return;
        }
        for worker in self.live() {
            if let Err(error) = worker.stop_turns() {
                tracing::warn!(owner = worker.owner(), %error, "a worker does not answer; it keeps its turns");
            }
        }
    }

    /// Gives all workers a table of their present rings.
    fn start(&mut self) -> Result<(), ApiError> {
        self.tasks.clear();
        let workers = self.live();
        let mut members = Vec::new();
        let mut counts = Vec::new();
        for worker in &workers {
            let own = worker.members();
            counts.push(own.len());
            for (name, member, budget_ns) in own {
                self.tasks.push(name);
                members.push((member, budget_ns));
            }
        }
        let Some(policy) = workers.first().map(|worker| worker.policy()) else {
            return Ok(());
        };
        let Some(policy) = policy.filter(|_| members.len() > 1) else {
            self.stop();
            return Ok(());
        };
        let least_ns = members.iter().filter_map(|(_, budget_ns)| *budget_ns).min();
        let policy = least_ns.map_or(policy, |least_ns| policy.for_hand_over(least_ns));
        let table = CoreTable::create(&members, policy).map_err(ApiError::failed)?;
        let table = Arc::new(table);
        let mut first = 0;
        for (worker, count) in workers.iter().zip(counts) {
            if count > 0 {
                worker.start_turns(&table, first)?;
            }
            first += count;
        }
        self.table = Some(table);
        Ok(())
    }
}

impl Cores {
    /// Adds a worker to its core.
    ///
    /// # Errors
    /// Another worker of the core has another scheduler.
    pub(crate) fn join(&self, worker: &Arc<dyn TakesTurns>) -> Result<(), ApiError> {
        let Some(number) = worker.core() else {
            return Ok(());
        };
        let mut cores = lock(&self.0);
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
        let mut cores = lock(&self.0);
        let core = worker.core().and_then(|core| cores.get_mut(&core));
        core.map_or(Ok(()), Core::start)
    }

    /// Calls `close` while the workers of the core take no turns, because `close` closes rings.
    pub(crate) fn without_turns<T>(&self, worker: &dyn TakesTurns, close: impl FnOnce() -> T) -> T {
        if !worker.sharing().hands_over() {
            return close();
        }
        let mut cores = lock(&self.0);
        let Some(core) = worker.core().and_then(|core| cores.get_mut(&core)) else {
            return close();
        };
        core.stop();
        let closed = close();
        if let Err(error) = core.start() {
            tracing::warn!(owner = worker.owner(), %error, "the workers of a core no longer take turns");
        }
        closed
    }

    /// The counters of each core whose workers take turns; of none while turns change, which may
    /// take as long as a request of a worker.
    pub(crate) fn stats(&self) -> Vec<SharedCoreStats> {
        let Ok(mut cores) = self.0.try_lock() else {
            return Vec::new();
        };
        let cores = cores.iter_mut().filter_map(|(number, core)| {
            Some(SharedCoreStats {
                core: *number,
                policy: core.live().first()?.sharing().policy,
                tasks: core.tasks.clone(),
                stats: core.table.as_ref()?.stats(),
            })
        });
        cores.collect()
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
