//! The agent's side of a pipeline, which runs each user-space function of a chain in a separate
//! process.
//!
//! The *first process* is an ordinary worker. It has the UMEM and the AF_XDP sockets. It receives,
//! transmits and refills. Every other process, a *stage*, is a worker without sockets on the same
//! UMEM:
//!
//! ```text
//! sockets -> first process -> stage -> stage -> first process -> sockets
//!                  ^------------'  (frames of dropped packets)
//! ```
//!
//! Arrows are descriptor rings ([`spsc`](crate::spsc)); packets stay in their frames. The first
//! process runs the chain's first user-space function. It also runs every function whose state
//! outlives a generation or belongs to two chains, because these states are in the first process.
//!
//! [`WorkerHandle::restart`] restarts a dead stage with the same ends of the same rings. Packets in
//! the rings wait for the restarted stage. The packets that the dead stage was processing are lost,
//! and the restarted stage returns their frames (see `ring_port`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chain::{SocketId, UserChain, UserExit, UserSegment};
use crate::config::WorkerConfig;
use crate::error::Error;
use crate::handle::WorkerHandle;
use crate::port::FramePool;
use crate::ring_link::RingLink;
use crate::ring_port::RingSide;

mod reader;
mod runs;

pub use reader::{PipelineReader, RingEnds};
use runs::{ProcessRun, assign_processes};

/// Longest wait for the packets in the rings before the chain is removed.
const DRAIN_TIME: Duration = Duration::from_millis(200);
/// Longest time of a packet from the front door to a ring.
const DOOR_TO_RING_TIME: Duration = Duration::from_millis(5);

/// A process of a pipeline after the first.
#[derive(Debug)]
pub struct Stage {
    /// Position of the stage's function.
    pub position: u8,
    /// The process.
    pub handle: WorkerHandle,
}

/// A ring between two processes of a pipeline.
#[derive(Debug)]
struct PipelineRing {
    id: SocketId,
    link: Arc<RingLink>,
    from: Option<usize>,
    to: Option<usize>,
}

/// The stages of one generation of a chain, and their rings.
#[derive(Debug)]
pub struct Pipeline {
    spi: u32,
    generation: u16,
    stages: Vec<Stage>,
    rings: Vec<PipelineRing>,
    /// Borrower numbers of the stages.
    holders: Vec<SocketId>,
    positions: Vec<u8>,
}

impl Pipeline {
    /// Deploys a generation of a chain over `head`, the first process, and over stages. `config`
    /// returns the configuration of the stage for a position, but the UMEM settings are those of
    /// `head`. The chain runs when this function returns. A failure leaves nothing behind.
    pub fn deploy(
        head: &mut WorkerHandle,
        chain: &UserChain,
        config: impl FnMut(u8) -> WorkerConfig,
    ) -> Result<Self, Error> {
        chain.check().map_err(|problem| Error::Chain {
            worker: head.config().run_id.clone(),
            spi: chain.spi,
            generation: chain.generation,
            problem,
        })?;
        let (runs, positions) = assign_processes(chain);
        let mut pipeline = Self {
            spi: chain.spi,
            generation: chain.generation,
            stages: Vec::new(),
            rings: Vec::new(),
            holders: Vec::new(),
            positions,
        };
        match pipeline.build(head, chain, &runs, config) {
            Ok(()) => Ok(pipeline),
            Err(error) => {
                // The first error is the cause.
                let _ = pipeline.stop_stages(head);
                Err(error)
            }
        }
    }

    /// Returns the positions of the functions that get a separate process.
    pub fn stage_positions(chain: &UserChain) -> Vec<u8> {
        assign_processes(chain).1
    }

    fn build(
        &mut self,
        head: &mut WorkerHandle,
        chain: &UserChain,
        runs: &[ProcessRun],
        mut config: impl FnMut(u8) -> WorkerConfig,
    ) -> Result<(), Error> {
        for _ in 0..self.positions.len() {
            let holder = reserve(head)?;
            self.holders.push(holder);
            head.grant(holder, FramePool::RESERVE as u32)?;
        }
        // One ring to each stage, and one from each stage to the first process.
        let hops = runs.windows(2).filter(|pair| pair[0].exit.is_none());
        for (from, to) in hops.map(|pair| (pair[0].process, pair[1].process)) {
            self.connect(head, from, to)?;
        }
        for stage in 0..self.positions.len() {
            self.connect(head, Some(stage), None)?;
        }
        for (stage, &position) in self.positions.iter().enumerate() {
            let mut config = config(position);
            config.frames = head.config().frames;
            config.frame_size = head.config().frame_size;
            let rings = self.ends_of(Some(stage)).collect();
            let holder = Some(self.holders[stage]);
            let handle = WorkerHandle::spawn_on(head.shared_umem(), holder, rings, config)?;
            self.stages.push(Stage { position, handle });
        }
        let part = |process| self.chain_part(chain, runs, process);
        for (index, part) in (0..self.stages.len())
            .map(|i| (i, part(Some(i))))
            .collect::<Vec<_>>()
        {
            self.stages[index].handle.add_pipeline_part(part)?;
        }
        for (id, (link, side)) in self.ends_of(None) {
            head.add_ring(id, link, side)?;
        }
        head.add_pipeline_part(self.chain_part(chain, runs, None))
    }

    /// Makes a ring from one process to another, unless it exists.
    fn connect(
        &mut self,
        head: &mut WorkerHandle,
        from: Option<usize>,
        to: Option<usize>,
    ) -> Result<(), Error> {
        if self.ring(from, to).is_none() {
            self.rings.push(PipelineRing {
                id: reserve(head)?,
                link: RingLink::create(head.config().ring)?,
                from,
                to,
            });
        }
        Ok(())
    }

    fn ring(&self, from: Option<usize>, to: Option<usize>) -> Option<&PipelineRing> {
        self.rings
            .iter()
            .find(|ring| (ring.from, ring.to) == (from, to))
    }

    /// Returns the ring ends of a process.
    fn ends_of(
        &self,
        process: Option<usize>,
    ) -> impl Iterator<Item = (SocketId, (Arc<RingLink>, RingSide))> {
        self.rings.iter().filter_map(move |ring| {
            let side = match (ring.from == process, ring.to == process) {
                (_, true) => RingSide::Receive,
                (true, false) if ring.to.is_none() => RingSide::SendAndReturn,
                (true, false) => RingSide::Send,
                (false, false) => return None,
            };
            Some((ring.id, (Arc::clone(&ring.link), side)))
        })
    }

    /// Returns the part of the chain that one process runs.
    fn chain_part(
        &self,
        chain: &UserChain,
        runs: &[ProcessRun],
        process: Option<usize>,
    ) -> UserChain {
        let segments = runs.iter().enumerate().filter_map(|(index, run)| {
            if run.process != process {
                return None;
            }
            let next_process = || {
                let next = runs.get(index + 1)?;
                Some(UserExit::Stage {
                    socket: self.ring(process, next.process)?.id,
                    position: next.first_position,
                })
            };
            let exit = run.exit.or_else(next_process)?;
            Some(UserSegment {
                first_position: run.first_position,
                functions: run.functions.clone(),
                exit,
                shaping: run.shaping,
            })
        });
        UserChain {
            segments: segments.collect(),
            ..*chain
        }
    }

    /// Removes the chain after its packets have left the rings. The front door must no longer
    /// redirect packets to the chain.
    pub fn remove(mut self, head: &mut WorkerHandle) -> Result<(), Error> {
        std::thread::sleep(DOOR_TO_RING_TIME);
        self.drain();
        self.stop_stages(head)
    }

    /// Waits until all rings stay empty for a few milliseconds, because a process may still be
    /// processing a packet.
    fn drain(&self) {
        let deadline = Instant::now() + DRAIN_TIME;
        let mut empty_checks = 0;
        while empty_checks < 3 && Instant::now() < deadline {
            let mut rings = self.rings.iter();
            let empty = rings.all(|ring| ring.link.occupancy() == 0);
            empty_checks = if empty { empty_checks + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the stages, and returns their frames and numbers to the first process. Continues after
    /// an error, and returns the first error.
    fn stop_stages(&mut self, head: &mut WorkerHandle) -> Result<(), Error> {
        for stage in self.stages.drain(..) {
            // A dead stage cannot answer.
            let _ = stage.handle.shutdown();
        }
        // Wait for the last packets of the stages.
        self.drain();
        let mut answer = match head.remove_chain(self.spi, self.generation) {
            Err(Error::Chain { .. }) => Ok(()),
            other => other,
        };
        let rings = self.rings.drain(..).map(|ring| ring.id);
        for id in rings.chain(self.holders.drain(..)) {
            answer = answer.and(head.release_number(id));
        }
        answer
    }

    /// Returns the stages, in the order of the chain.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Returns the stages, to supervise them.
    pub fn stages_mut(&mut self) -> &mut [Stage] {
        &mut self.stages
    }

    fn position(&self, stage: Option<usize>) -> Option<u8> {
        stage.and_then(|index| self.positions.get(index).copied())
    }

    /// Returns a reader that other threads can use without `self` and `head`. `head` must be the
    /// first process.
    pub fn reader(&self, head: &WorkerHandle) -> PipelineReader {
        let stages = self.stages.iter();
        let rings = self.rings.iter();
        PipelineReader {
            chain: (self.spi, self.generation),
            head: head.stats(),
            stages: stages
                .map(|stage| (stage.position, stage.handle.facts(), stage.handle.stats()))
                .collect(),
            rings: rings
                .map(|ring| {
                    let ends = (self.position(ring.from), self.position(ring.to));
                    (ends, Arc::clone(&ring.link))
                })
                .collect(),
        }
    }
}

fn reserve(head: &mut WorkerHandle) -> Result<SocketId, Error> {
    let id = head.unused_number()?;
    head.reserved.insert(id);
    Ok(id)
}
