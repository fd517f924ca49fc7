//! Other settings for a running worker: another core, another sharing, another idle mode.

use std::sync::Arc;

use myelin_planner::Plan;
use myelin_spec::{Mapping, ServiceChain, Space, WorkerSpec};

use super::{Key, Worker, WorkerLease};
use crate::api::ApiError;
use crate::node::Parts;
use crate::pool::lock;

/// Whether a running worker can get these settings instead of others.
pub(crate) fn can_change(from: &WorkerSpec, to: &WorkerSpec) -> bool {
    let changed = WorkerSpec {
        cores: to.cores.clone(),
        sharing: to.sharing.clone(),
        idle: to.idle,
        spin_ns: to.spin_ns,
        ..from.clone()
    };
    changed == *to
}

/// The new settings of a chain's running workers. Dropping the value without [`Self::keep`] gives
/// them their earlier settings.
#[derive(Default)]
pub(crate) struct WorkerChange(Vec<EarlierSettings>);

struct EarlierSettings {
    worker: WorkerLease,
    settings: WorkerSpec,
    core: u32,
}

impl WorkerChange {
    /// Gives the running workers of a planned chain the settings of its file. The ledger has booked
    /// them.
    ///
    /// # Errors
    /// A worker cannot run on its new core, or does not answer.
    pub(crate) fn apply(
        parts: &Parts,
        chain: &ServiceChain,
        plan: &Plan,
    ) -> Result<Self, ApiError> {
        let mut change = Self::default();
        let Some(planned) = &plan.worker else {
            return Ok(change);
        };
        let mut keys = vec![Key::of(planned)];
        if plan.mapping == Mapping::Distributed {
            let functions = plan.hops.iter();
            let user = functions.filter(|hop| hop.space == Space::User && !hop.is_black_box());
            keys = user
                .map(|hop| Key::of_function(planned, &hop.name))
                .collect();
        }
        for worker in keys.iter().filter_map(|key| parts.workers.share(key)) {
            let settings = worker.settings();
            // `Worker::check` explains other differences.
            let is_other = settings != chain.worker && can_change(&settings, &chain.worker);
            let core = worker.facts.core().unwrap_or(planned.core);
            if is_other && worker.devices.is_none() {
                change.0.push(EarlierSettings {
                    worker: worker.clone(),
                    settings,
                    core,
                });
                set(&worker, &chain.worker, planned.core)?;
            }
        }
        Ok(change)
    }

    /// Keeps the new settings.
    pub(crate) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for WorkerChange {
    fn drop(&mut self) {
        for earlier in self.0.drain(..).rev() {
            if let Err(error) = set(&earlier.worker, &earlier.settings, earlier.core) {
                let owner = &earlier.worker.key.owner;
                tracing::warn!(owner, %error, "a worker does not get its earlier settings again");
            }
        }
    }
}

/// Gives a worker other settings. Its packets wait in its rings for the microseconds of the move.
fn set(worker: &WorkerLease, settings: &WorkerSpec, core: u32) -> Result<(), ApiError> {
    let cores = Arc::clone(&worker.cores);
    let shared: Arc<Worker> = worker.shared();
    cores.move_worker(&(shared as Arc<_>), || {
        *lock(&worker.settings) = settings.clone();
        worker.state().settle(core)
    })
}
