//! Mapping `pipeline`: as `compact`, but each user function runs in a process of its own, behind the worker that has the sockets.
//!
//! What differs from `compact` is how a worker runs the user part of a chain, and what is looked after; this is that.

use std::time::Instant;

use myelin_dataplane::{ChainStats, Deaths, Idle, Pipeline, UserChain, WORKER_NAME, WorkerConfig};
use myelin_linux::affinity;
use myelin_linux::journal::{Journal, Resource};
use myelin_spec::Mapping;

use crate::api::ApiError;
use crate::workers::{Death, Entry};

/// The processes of one generation of a chain behind its worker.
pub(crate) struct Stages {
    spi: u32,
    generation: u16,
    pub(crate) pipeline: Pipeline,
    /// When each of them died.
    deaths: Vec<Deaths>,
    /// One of them kept dying and is not started again.
    failed: bool,
    processes: Vec<Resource>,
}

impl Entry {
    /// Runs the user part of a chain: in this worker alone, or in a process for each function.
    pub(crate) fn run_chain(
        &mut self,
        mapping: Mapping,
        chain: UserChain,
        journal: &mut Journal,
    ) -> Result<(), ApiError> {
        if mapping != Mapping::Pipeline {
            return self.handle.add_chain(chain).map_err(ApiError::failed);
        }
        let (spi, generation) = (chain.spi, chain.generation);
        let run_id = |position: u8| {
            let head = &self.handle.config().run_id;
            format!("{head}-{spi}.{generation}-{position}")
        };
        let positions = Pipeline::stage_positions(&chain);
        let template = WorkerConfig {
            idle: Idle::from(&self.spec),
            ..self.handle.config().clone()
        };
        let configs: Vec<WorkerConfig> = spread(positions.len(), &template)
            .into_iter()
            .zip(&positions)
            .map(|(config, &position)| WorkerConfig {
                run_id: run_id(position),
                ..config
            })
            .collect();
        let processes: Vec<Resource> = configs
            .iter()
            .map(|config| Resource::Processes {
                argument: format!("{WORKER_NAME}@{}", config.run_id),
            })
            .collect();
        for process in &processes {
            journal.intend(process).map_err(ApiError::failed)?;
        }
        let mut configs = configs.into_iter();
        let deployed = Pipeline::deploy(&mut self.handle, &chain, |_| {
            configs.next().unwrap_or_else(|| template.clone())
        });
        match deployed {
            Ok(pipeline) => {
                self.pipelines.push(Stages {
                    spi,
                    generation,
                    pipeline,
                    deaths: positions.iter().map(|_| Deaths::default()).collect(),
                    failed: false,
                    processes,
                });
                self.poll_where_alone();
                Ok(())
            }
            Err(error) => {
                forget(&processes, journal);
                Err(ApiError::failed(error))
            }
        }
    }

    /// Takes the user part of a chain away, after the packets that are inside.
    pub(crate) fn end_chain(
        &mut self,
        spi: u32,
        generation: u16,
        journal: &mut Journal,
    ) -> Result<(), ApiError> {
        let is_it = |stages: &Stages| (stages.spi, stages.generation) == (spi, generation);
        let ended = match self.pipelines.iter().position(is_it) {
            Some(index) => {
                let stages = self.pipelines.swap_remove(index);
                self.poll_where_alone();
                let ended = stages.pipeline.remove(&mut self.handle);
                forget(&stages.processes, journal);
                ended
            }
            None => self.handle.remove_chain(spi, generation),
        };
        // A worker that was given up cannot be told; that the handle knows is enough.
        if self.failed {
            return Ok(());
        }
        ended.map_err(ApiError::failed)
    }

    /// The worker polls before it sleeps only as long as no stage has to share its core.
    fn poll_where_alone(&mut self) {
        let stages = self
            .pipelines
            .iter()
            .map(|stages| stages.pipeline.stages().len());
        let shared = stages.max().unwrap_or(0) >= allowed_cores().len().max(1);
        // It is in order either way.
        if let Err(error) = self.poll_unless(shared) {
            tracing::warn!(%error, "a worker keeps its idle mode");
        }
    }

    /// The worker polls before it sleeps, as its chain's file says, unless it has to share its core.
    pub(crate) fn poll_unless(&mut self, shared: bool) -> Result<(), myelin_dataplane::Error> {
        let idle = polling(Idle::from(&self.spec), shared);
        if self.failed || self.handle.config().idle == idle {
            return Ok(());
        }
        self.handle.set_idle(idle)
    }

    /// What a chain's user functions did, in all processes together.
    pub(crate) fn chain_stats(&self, spi: u32, generation: u16) -> Option<ChainStats> {
        match self.pipeline(spi, generation) {
            Some(pipeline) => pipeline.stats(&self.handle),
            None => self.handle.stats().chain(spi, generation),
        }
    }

    /// The further processes of a chain, where it has any.
    pub(crate) fn pipeline(&self, spi: u32, generation: u16) -> Option<&Pipeline> {
        self.pipelines
            .iter()
            .find(|stages| (stages.spi, stages.generation) == (spi, generation))
            .map(|stages| &stages.pipeline)
    }

    /// The same, to ask its processes.
    pub(crate) fn pipeline_mut(&mut self, spi: u32, generation: u16) -> Option<&mut Pipeline> {
        self.pipelines
            .iter_mut()
            .find(|stages| (stages.spi, stages.generation) == (spi, generation))
            .map(|stages| &mut stages.pipeline)
    }

    /// Whether a further process of that chain was given up.
    pub(crate) fn has_failed(&self, spi: u32, generation: u16) -> bool {
        let is_it = |stages: &&Stages| (stages.spi, stages.generation) == (spi, generation);
        self.pipelines
            .iter()
            .find(is_it)
            .is_some_and(|stages| stages.failed)
    }

    /// Starts dead processes of pipelines again; the others go on meanwhile. Returns what became of those that were dead.
    pub(crate) fn revive_stages(&mut self) -> Vec<Death> {
        let mut deaths = Vec::new();
        for stages in self.pipelines.iter_mut().filter(|stages| !stages.failed) {
            for (stage, times) in stages
                .pipeline
                .stages_mut()
                .iter_mut()
                .zip(&mut stages.deaths)
            {
                if stage.handle.is_alive() {
                    continue;
                }
                if times.died(Instant::now()) {
                    stages.failed = true;
                    deaths.push(Death::StageGivenUp {
                        spi: stages.spi,
                        generation: stages.generation,
                    });
                    break;
                }
                match stage.handle.restart() {
                    Ok(()) => deaths.push(Death::Restarted),
                    Err(error) => {
                        tracing::error!(position = stage.position, %error, "a stage did not come up again");
                    }
                }
            }
        }
        deaths
    }
}

/// How `count` processes are started behind the one with `head`'s configuration: on the allowed cores after its own in turn. One that has to share a core with
/// another of them does not poll before it sleeps, since the other may need the core just then.
fn spread(count: usize, head: &WorkerConfig) -> Vec<WorkerConfig> {
    let allowed = allowed_cores();
    let own = head
        .core
        .and_then(|core| allowed.iter().position(|&allowed| allowed == core as usize));
    (0..count)
        .map(|index| {
            let slot = own.unwrap_or(0) + 1 + index;
            // The first process takes part as the one before them.
            let cores = allowed.len().max(1);
            let shared =
                (0..=count).any(|other| other != index + 1 && other % cores == (index + 1) % cores);
            WorkerConfig {
                core: allowed.get(slot % cores).map(|&core| core as u32),
                idle: polling(head.idle, shared),
                ..head.clone()
            }
        })
        .collect()
}

/// The idle mode of a process that shares its core with another one of its pipeline, or does not.
fn polling(asked: Idle, shared: bool) -> Idle {
    match asked {
        Idle::Adaptive { .. } if shared => Idle::Sleep,
        asked => asked,
    }
}

fn allowed_cores() -> Vec<usize> {
    affinity::get(0).unwrap_or_default()
}

fn forget(processes: &[Resource], journal: &mut Journal) {
    for process in processes {
        if let Err(error) = journal.removed(process) {
            tracing::warn!(%error, "the journal keeps a process that is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_take_the_cores_in_turn_and_those_that_share_one_do_not_poll() {
        let allowed = affinity::get(0).unwrap();
        let mut head = WorkerConfig::new("/bin/true", "t");
        head.core = allowed.last().map(|&core| core as u32);
        let cores = allowed.len();
        let configs = spread(cores + 1, &head);
        for (index, config) in configs.iter().enumerate() {
            assert_eq!(config.core, Some(allowed[index % cores] as u32));
            // One each is left for the last and the first of them, and one for the first process.
            let others = (0..configs.len())
                .filter(|&i| i % cores == index % cores)
                .count();
            let with_head = index % cores == cores - 1;
            let shares = others > 1 || with_head;
            assert_eq!(config.idle == Idle::Sleep, shares, "{index} of {cores}");
        }
        let alone = spread(cores.saturating_sub(1), &head);
        assert!(alone.iter().all(|config| config.idle == head.idle));
    }
}
