//! Mapping `pipeline`: each user function runs in its own process, behind the worker that has the
//! sockets.
//!
//! Only the user part of a chain and the supervised processes differ from `compact`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use myelin_dataplane::{
    Deaths, Idle, Pipeline, PipelineReader, UserChain, WorkerConfig, WorkerHandle,
};
use myelin_linux::affinity;
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_planner::Plan;
use myelin_spec::{Mapping, SharingPolicy};

use crate::api::ApiError;
use crate::control::actuator;
use crate::node::workers::{WorkerLease, WorkerState};

/// The stage processes of one generation, behind its worker.
pub(crate) struct Stages {
    spi: u32,
    generation: u16,
    pub(crate) pipeline: Pipeline,
    deaths: Vec<Deaths>,
    /// Whether a stage ended too often. The agent then restarts no stage.
    failed: Arc<AtomicBool>,
    _processes: Vec<ResourceGuard>,
}

/// The outcome for a dead process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RestartOutcome {
    /// A new process runs.
    Restarted,
    /// The worker is no longer restarted, and all chains that it serves fail.
    WorkerFailed,
    /// The pipeline stage is no longer restarted, and its chain fails.
    StageFailed { spi: u32, generation: u16 },
}

/// The user segments of a generation that a worker runs, in mapping `pipeline` with stages behind
/// the worker. Dropping the value removes the segments from the worker, after the packets inside
/// have left.
pub(crate) struct RunningSegments {
    worker: WorkerLease,
    spi: u32,
    generation: u16,
    /// Reads all stages together, in mapping `pipeline`.
    pub(crate) pipeline: Option<Arc<PipelineReader>>,
    failed: Arc<AtomicBool>,
}

impl RunningSegments {
    /// Runs the user segments of a chain: in the worker alone, or in one process for each function.
    ///
    /// # Errors
    /// A function cannot be made, or a process cannot be started.
    pub(crate) fn run(
        worker: &WorkerLease,
        plan: &Plan,
        chain: UserChain,
    ) -> Result<Self, ApiError> {
        let (spi, generation) = (chain.spi, chain.generation);
        worker.cores.join(&(worker.shared() as Arc<_>));
        let failed = Arc::new(AtomicBool::new(false));
        let mut state = worker.state();
        let pipeline = if plan.mapping == Mapping::Pipeline {
            Some(state.run_pipeline(&chain, &failed)?)
        } else {
            let added = state.handle().add_chain(chain);
            added.map_err(|error| state.explain(error))?;
            None
        };
        if let Some(latency_ns) = plan.sla.latency_ns {
            state.budgets_ns.insert((spi, generation), latency_ns);
        }
        drop(state);
        let running = Self {
            worker: worker.clone(),
            spi,
            generation,
            pipeline,
            failed,
        };
        worker.cores.refresh(&**worker)?;
        Ok(running)
    }

    /// Whether a stage is no longer restarted.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Drop for RunningSegments {
    fn drop(&mut self) {
        let (spi, generation) = (self.spi, self.generation);
        let worker = &self.worker;
        let end = || {
            let mut state = worker.state();
            state.budgets_ns.remove(&(spi, generation));
            state.end_chain(spi, generation)
        };
        let ended = worker.cores.without_turns(&**worker, end);
        // A failed worker does not answer, but its handle has already removed the chain.
        if let (Err(error), false) = (ended, self.worker.has_failed()) {
            tracing::warn!(spi, generation, %error, "cannot remove the chain from its worker");
        }
    }
}

impl WorkerState {
    fn run_pipeline(
        &mut self,
        chain: &UserChain,
        failed: &Arc<AtomicBool>,
    ) -> Result<Arc<PipelineReader>, ApiError> {
        let (spi, generation) = (chain.spi, chain.generation);
        let template = WorkerConfig {
            idle: Idle::from(&self.settings()),
            ..self.handle().config().clone()
        };
        let positions = Pipeline::stage_positions(chain);
        let configs = self.stage_configs(positions.len(), &template);
        let configs: Vec<WorkerConfig> = configs
            .into_iter()
            .zip(&positions)
            .map(|(config, &position)| WorkerConfig {
                run_id: format!("{}-{spi}.{generation}-{position}", template.run_id),
                ..config
            })
            .collect();
        let record = |config: &WorkerConfig| {
            let argument = config.process_name();
            self.journal.guard(Resource::Processes { argument })
        };
        let recorded = configs.iter().map(record).collect::<Result<_, _>>();
        let recorded = recorded.map_err(ApiError::failed)?;
        let mut configs = configs.into_iter();
        let pipeline = Pipeline::deploy(self.handle(), chain, |_| {
            configs.next().unwrap_or_else(|| template.clone())
        });
        let pipeline = pipeline.map_err(ApiError::failed)?;
        let reader = pipeline.reader(self.handle());
        self.pipelines.push(Stages {
            spi,
            generation,
            pipeline,
            deaths: positions.iter().map(|_| Deaths::default()).collect(),
            failed: Arc::clone(failed),
            _processes: recorded,
        });
        self.update_idle_mode();
        Ok(Arc::new(reader))
    }

    /// The configurations of `count` stages behind the worker.
    fn stage_configs(&self, count: usize, head: &WorkerConfig) -> Vec<WorkerConfig> {
        let settings = self.settings();
        if matches!(
            settings.sharing.policy,
            SharingPolicy::Os | SharingPolicy::Auto
        ) {
            let listed = settings.cores.iter().map(|core| *core as usize);
            let listed: Vec<_> = listed.collect();
            let cores = match listed.len() {
                0 | 1 => allowed_cores(),
                _ => listed,
            };
            assign_cores(count, head, &cores)
        } else {
            // All take turns on the worker's core.
            vec![head.clone(); count]
        }
    }

    /// Gives the worker and its stages the cores and idle modes of its present settings.
    pub(crate) fn settle(&mut self, core: u32) -> Result<(), ApiError> {
        settle_process(self.handle(), core, None)?;
        self.update_idle_mode();
        let head = WorkerConfig {
            idle: Idle::from(&self.settings()),
            ..self.handle().config().clone()
        };
        let counts = self.pipelines.iter();
        let counts = counts.map(|stages| stages.pipeline.stages().len());
        let configs: Vec<_> = counts
            .map(|count| self.stage_configs(count, &head))
            .collect();
        for (stages, configs) in self.pipelines.iter_mut().zip(configs) {
            for (stage, config) in stages.pipeline.stages_mut().iter_mut().zip(configs) {
                let core = config.core.unwrap_or(core);
                settle_process(&mut stage.handle, core, Some(config.idle))?;
            }
        }
        Ok(())
    }

    fn end_chain(&mut self, spi: u32, generation: u16) -> Result<(), myelin_dataplane::Error> {
        let is_same = |stages: &Stages| (stages.spi, stages.generation) == (spi, generation);
        match self.pipelines.iter().position(is_same) {
            Some(index) => {
                let stages = self.pipelines.swap_remove(index);
                self.update_idle_mode();
                stages.pipeline.remove(self.handle())
            }
            None => self.handle().remove_chain(spi, generation),
        }
    }

    /// Lets the worker poll before it sleeps, unless a stage shares the worker's core.
    fn update_idle_mode(&mut self) {
        let stages = self.pipelines.iter();
        let stages = stages.map(|stages| stages.pipeline.stages().len());
        let policy = self.settings().sharing.policy;
        let shares_core = matches!(policy, SharingPolicy::Os | SharingPolicy::Auto)
            && stages.max().unwrap_or(0) >= allowed_cores().len().max(1);
        // Either idle mode works, so an error is only logged.
        if let Err(error) = self.set_idle_mode(shares_core) {
            tracing::warn!(%error, "cannot change the idle mode of a worker");
        }
    }

    /// Sets the idle mode of the chain file. A worker that shares its core does not poll before it
    /// sleeps.
    pub(crate) fn set_idle_mode(
        &mut self,
        shares_core: bool,
    ) -> Result<(), myelin_dataplane::Error> {
        let idle = idle_mode(Idle::from(&self.settings()), shares_core);
        if self.handle().config().idle == idle || !self.handle().is_alive() {
            return Ok(());
        }
        self.handle().set_idle(idle)
    }

    /// The pipeline of a generation, if the generation has a pipeline.
    pub(crate) fn pipeline_mut(&mut self, spi: u32, generation: u16) -> Option<&mut Pipeline> {
        let mut stages = self.pipelines.iter_mut();
        let found = stages.find(|stages| (stages.spi, stages.generation) == (spi, generation));
        found.map(|stages| &mut stages.pipeline)
    }

    /// Whether a stage that the agent still restarts is dead.
    pub(crate) fn has_dead_stage(&mut self) -> bool {
        self.pipelines.iter_mut().any(|stages| {
            let mut processes = stages.pipeline.stages_mut().iter_mut();
            !stages.failed.load(Ordering::Relaxed)
                && processes.any(|stage| !stage.handle.is_alive())
        })
    }

    /// Restarts dead stages while the other stages keep running. Returns the outcome for each dead
    /// stage.
    pub(crate) fn restart_dead_stages(&mut self) -> Vec<RestartOutcome> {
        let mut outcomes = Vec::new();
        for stages in &mut self.pipelines {
            if stages.failed.load(Ordering::Relaxed) {
                continue;
            }
            let processes = stages.pipeline.stages_mut().iter_mut();
            for (stage, deaths) in processes.zip(&mut stages.deaths) {
                if stage.handle.is_alive() {
                    continue;
                }
                let started = if deaths.record_death(Instant::now()) {
                    None
                } else {
                    Some(stage.handle.restart())
                };
                let has_failed = match started {
                    None => true,
                    Some(Ok(())) => {
                        deaths.record_start();
                        outcomes.push(RestartOutcome::Restarted);
                        false
                    }
                    Some(Err(error)) => {
                        tracing::error!(position = stage.position, %error, "cannot restart a stage");
                        deaths.record_failed_start()
                    }
                };
                if has_failed {
                    stages.failed.store(true, Ordering::Relaxed);
                    outcomes.push(RestartOutcome::StageFailed {
                        spi: stages.spi,
                        generation: stages.generation,
                    });
                    break;
                }
            }
        }
        outcomes
    }
}

/// Binds a process to a core, and gives it an idle mode. A dead process starts there.
fn settle_process(
    handle: &mut WorkerHandle,
    core: u32,
    idle: Option<Idle>,
) -> Result<(), ApiError> {
    if handle.is_alive() {
        actuator::bind(handle.facts().pid(), core).map_err(ApiError::failed)?;
        if let Some(idle) = idle.filter(|idle| handle.config().idle != *idle) {
            handle.set_idle(idle).map_err(ApiError::failed)?;
        }
    }
    handle.set_core(core);
    Ok(())
}

/// The configurations of `count` stages behind the worker with configuration `head`. The stages
/// take the `allowed` cores in turn, beginning after the worker's core. A stage that shares its
/// core does not poll before it sleeps, because the other process may need the core.
fn assign_cores(count: usize, head: &WorkerConfig, allowed: &[usize]) -> Vec<WorkerConfig> {
    let own = head
        .core
        .and_then(|core| allowed.iter().position(|&allowed| allowed == core as usize));
    (0..count)
        .map(|index| {
            let slot = own.unwrap_or(0) + 1 + index;
            // Index 0 is the worker, which may share a core too.
            let cores = allowed.len().max(1);
            let shares_core =
                (0..=count).any(|other| other != index + 1 && other % cores == (index + 1) % cores);
            WorkerConfig {
                core: allowed.get(slot % cores).map(|&core| core as u32),
                idle: idle_mode(head.idle, shares_core),
                ..head.clone()
            }
        })
        .collect()
}

/// The idle mode of a process: `configured`, but without polling if the process shares its core.
fn idle_mode(configured: Idle, shares_core: bool) -> Idle {
    match configured {
        Idle::Adaptive { .. } if shares_core => Idle::Sleep,
        configured => configured,
    }
}

fn allowed_cores() -> Vec<usize> {
    affinity::get(0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_take_the_cores_in_turn_and_do_not_poll_on_a_shared_core() {
        let allowed = affinity::get(0).unwrap();
        let mut head = WorkerConfig::new("/bin/true", "t");
        head.core = allowed.last().map(|&core| core as u32);
        let cores = allowed.len();
        let configs = assign_cores(cores + 1, &head, &allowed);
        for (index, config) in configs.iter().enumerate() {
            assert_eq!(config.core, Some(allowed[index % cores] as u32));
            // One stage a core, one more on the first core, and the worker on the last core.
            let others = (0..configs.len())
                .filter(|&i| i % cores == index % cores)
                .count();
            let with_head = index % cores == cores - 1;
            let shares = others > 1 || with_head;
            assert_eq!(config.idle == Idle::Sleep, shares, "{index} of {cores}");
        }
        let alone = assign_cores(cores.saturating_sub(1), &head, &allowed);
        assert!(alone.iter().all(|config| config.idle == head.idle));
    }
}
