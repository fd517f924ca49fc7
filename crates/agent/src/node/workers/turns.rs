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
        self.settings().sharing.policy
    }

    fn mechanism(&self) -> SharingMechanism {
        self.settings().sharing.mechanism
    }

    fn policy(&self) -> Option<Parameters> {
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
        let describe = |handle: &WorkerHandle| {
            let member = handle.member();
            // A process without rings needs no turn.
            (!member.is_idle()).then(|| TurnMember {
                name: handle.config().run_id.clone(),
                budget_ns: least_ns,
                kind: MemberKind::Worker {
                    member,
                    pid: handle.pid(),
                },
            })
        };
        let mut members: Vec<_> = describe(self.handle()).into_iter().collect();
        for stages in &self.pipelines {
            let stages = stages.pipeline.stages().iter();
            members.extend(stages.filter_map(|stage| describe(&stage.handle)));
        }
        members
    }

    fn start_turns(&mut self, table: &Arc<CoreTable>, first: usize) -> Result<(), ApiError> {
        let mut task = first;
        for handle in self.processes() {
            let share = (!handle.member().is_idle()).then(|| (Arc::clone(table), task));
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
