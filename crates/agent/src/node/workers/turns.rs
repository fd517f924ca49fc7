//! The turns of a worker and its pipeline stages on a shared core.

use std::sync::Arc;

use myelin_dataplane::{CoreTable, Error, WorkerHandle};
use myelin_policy::sharing::Parameters;
use myelin_spec::{SharingMechanism, SharingPolicy};

use super::{Worker, WorkerState};
use crate::api::ApiError;
use crate::node::cores::{MemberKind, TakesTurns, TurnMember};

impl TakesTurns for Worker {
    fn owner(&self) -> &str {
        &self.key.owner
    }

    fn core(&self) -> Option<u32> {
        self.facts.core()
    }

    fn sharing(&self) -> SharingPolicy {
        let settings = self.settings();
        match settings.sharing.policy {
            // These ports let no worker take turns.
            SharingPolicy::Auto if self.devices.is_some() || settings.super_packets => {
                SharingPolicy::Os
            }
            policy => policy,
        }
    }

    fn mechanism(&self) -> SharingMechanism {
        self.settings().sharing.mechanism
    }

    fn policy(&self) -> Option<Parameters> {
        if self.sharing() == SharingPolicy::Os {
            return None;
        }
        let settings = self.settings();
        Parameters::of(&settings.sharing, settings.batch)
    }

    fn members(&self) -> Vec<TurnMember> {
        self.state().members()
    }

    fn start_turns(&self, table: &Arc<CoreTable>, first: usize) -> Result<(), ApiError> {
        self.state().start_turns(table, first)
    }

    fn stop_turns(&self) -> Result<(), ApiError> {
        self.state().stop_turns().map_err(ApiError::failed)
    }
}

impl WorkerState {
    fn members(&mut self) -> Vec<TurnMember> {
        let least_ns = self.budgets_ns.values().copied().min();
        let core = self.handle().facts().core();
        let describe = |handle: &WorkerHandle| TurnMember {
            name: handle.config().run_id.clone(),
            budget_ns: least_ns,
            kind: MemberKind::Worker {
                member: handle.member(),
                pid: handle.pid(),
            },
        };
        let takes_turns = self.processes().filter(|handle| takes_turns(handle, core));
        takes_turns.map(|handle| describe(handle)).collect()
    }

    fn start_turns(&mut self, table: &Arc<CoreTable>, first: usize) -> Result<(), ApiError> {
        let mut task = first;
        let core = self.handle().facts().core();
        for handle in self.processes() {
            let share = takes_turns(handle, core).then(|| (Arc::clone(table), task));
            task += usize::from(share.is_some());
            handle.share(share).map_err(ApiError::failed)?;
        }
        Ok(())
    }

    fn stop_turns(&mut self) -> Result<(), Error> {
        let stopped = self.processes().map(|handle| handle.share(None));
        // Each of them, also after an error.
        stopped.fold(Ok(()), Result::and)
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut WorkerHandle> {
        let stages = self.pipelines.iter_mut();
        let stages = stages.flat_map(|stages| stages.pipeline.stages_mut());
        let stages = stages.map(|stage| &mut stage.handle);
        self.handle.iter_mut().chain(stages)
    }
}

/// Whether a process takes turns on the worker's core: it runs there, and reads a ring.
fn takes_turns(handle: &WorkerHandle, core: Option<u32>) -> bool {
    handle.facts().core() == core && !handle.member().is_idle()
}
