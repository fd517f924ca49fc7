//! A chain whose user functions run in a process each: what the agent keeps of it.
//!
//! The *first process* is an ordinary worker. It alone owns the packet memory and the AF_XDP sockets, so it receives, transmits and refills. Every other
//! process, a *stage*, is a worker without sockets on the same memory:
//!
//! ```text
//! sockets -> first process -> stage -> stage -> first process -> sockets
//!                  ^------------'  (frames of dropped packets)
//! ```
//!
//! Arrows are descriptor rings ([`spsc`](crate::spsc)); packets stay where they are. The first process runs the chain's first user function, and every function
//! with a state that outlives a generation or that serves two chains, since states live there.
//!
//! A stage that died is started anew ([`WorkerHandle::restart`]) with the same ends of the same rings; packets in the rings wait for it, those in its
//! hands are lost, and their frames come back through its successor (`ring_port` says how).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chain::{SocketId, UserChain, UserExit, UserSegment};
use crate::config::WorkerConfig;
use crate::error::Error;
use crate::handle::WorkerHandle;
use crate::port::FramePool;
use crate::ring_link::RingLink;
use crate::ring_port::Side;

mod reader;
mod runs;

pub use reader::{PipelineReader, RingEnds};
use runs::{Run, runs};

/// How long packets on their way may take to come through before the chain is taken away.
const DRAIN_TIME: Duration = Duration::from_millis(200);
/// How long a packet that passed the front door may take to appear in a ring.
const STRAGGLERS: Duration = Duration::from_millis(5);

/// A further process of a pipeline.
#[derive(Debug)]
pub struct Stage {
    /// Index in the chain of the function it runs.
    pub position: u8,
    /// The process.
    pub handle: WorkerHandle,
}

/// A ring of a pipeline, as the agent keeps it.
#[derive(Debug)]
struct Hop {
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
    hops: Vec<Hop>,
    /// What the ledger calls the stages.
    holders: Vec<SocketId>,
    positions: Vec<u8>,
}

impl Pipeline {
    /// Deploys a generation of a chain over `head`, which runs it as its first process, and further processes. `config` says how the process for the function
    /// at a position is started; what concerns the packet memory is as in `head`. The chain runs when this returns; on failure nothing of it is left.
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
        let (runs, positions) = runs(chain);
        let mut pipeline = Self {
            spi: chain.spi,
            generation: chain.generation,
            stages: Vec::new(),
            hops: Vec::new(),
            holders: Vec::new(),
            positions,
        };
        match pipeline.build(head, chain, &runs, config) {
            Ok(()) => Ok(pipeline),
            Err(error) => {
                // The first error is the one to report.
                let _ = pipeline.take_away(head);
                Err(error)
            }
        }
    }

    /// The positions of a chain's functions that get a process of their own.
    pub fn stage_positions(chain: &UserChain) -> Vec<u8> {
        runs(chain).1
    }

    fn build(
        &mut self,
        head: &mut WorkerHandle,
        chain: &UserChain,
        runs: &[Run],
        mut config: impl FnMut(u8) -> WorkerConfig,
    ) -> Result<(), Error> {
        for _ in 0..self.positions.len() {
            let holder = reserve(head)?;
            self.holders.push(holder);
            head.grant(holder, FramePool::RESERVE as u32)?;
        }
        // A way to each stage, and one from each to the first process.
        let ways = runs.windows(2).filter(|pair| pair[0].exit.is_none());
        for (from, to) in ways.map(|pair| (pair[0].process, pair[1].process)) {
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
        let part = |process| self.part(chain, runs, process);
        for (index, part) in (0..self.stages.len())
            .map(|i| (i, part(Some(i))))
            .collect::<Vec<_>>()
        {
            self.stages[index].handle.add_part(part)?;
        }
        for (id, (link, side)) in self.ends_of(None) {
            head.add_ring(id, link, side)?;
        }
        head.add_part(self.part(chain, runs, None))
    }

    /// A ring from one process to another, made once.
    fn connect(
        &mut self,
        head: &mut WorkerHandle,
        from: Option<usize>,
        to: Option<usize>,
    ) -> Result<(), Error> {
        if self.hop(from, to).is_none() {
            self.hops.push(Hop {
                id: reserve(head)?,
                link: RingLink::create()?,
                from,
                to,
            });
        }
        Ok(())
    }

    fn hop(&self, from: Option<usize>, to: Option<usize>) -> Option<&Hop> {
        self.hops
            .iter()
            .find(|hop| (hop.from, hop.to) == (from, to))
    }

    /// The ends of rings that a process has.
    fn ends_of(
        &self,
        process: Option<usize>,
    ) -> impl Iterator<Item = (SocketId, (Arc<RingLink>, Side))> {
        self.hops.iter().filter_map(move |hop| {
            let side = match (hop.from == process, hop.to == process) {
                (_, true) => Side::Receive,
                (true, false) if hop.to.is_none() => Side::Home,
                (true, false) => Side::Send,
                (false, false) => return None,
            };
            Some((hop.id, (Arc::clone(&hop.link), side)))
        })
    }

    /// The part of the chain that one process runs.
    fn part(&self, chain: &UserChain, runs: &[Run], process: Option<usize>) -> UserChain {
        let segments = runs.iter().enumerate().filter_map(|(index, run)| {
            if run.process != process {
                return None;
            }
            let onward = || {
                let next = runs.get(index + 1)?;
                Some(UserExit::Stage {
                    socket: self.hop(process, next.process)?.id,
                    position: next.first_position,
                })
            };
            let exit = run.exit.or_else(onward)?;
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

    /// Takes the chain away after the packets on their way have come through. The front door must not send it more.
    pub fn remove(mut self, head: &mut WorkerHandle) -> Result<(), Error> {
        std::thread::sleep(STRAGGLERS);
        self.drain();
        self.take_away(head)
    }

    /// Waits until all rings are empty, and have been for a moment: a packet may be in a process' hands.
    fn drain(&self) {
        let deadline = Instant::now() + DRAIN_TIME;
        let mut calm = 0;
        while calm < 3 && Instant::now() < deadline {
            let mut rings = self.hops.iter();
            let empty = rings.all(|hop| hop.link.occupancy() == 0);
            calm = if empty { calm + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the stages and gives all they had back to the first process. Goes on after a failure, and returns the first.
    fn take_away(&mut self, head: &mut WorkerHandle) -> Result<(), Error> {
        for stage in self.stages.drain(..) {
            // One that has died cannot be told.
            let _ = stage.handle.shutdown();
        }
        // What the last of them sent.
        self.drain();
        let mut answer = match head.remove_chain(self.spi, self.generation) {
            Err(Error::Chain { .. }) => Ok(()),
            other => other,
        };
        let hops = self.hops.drain(..).map(|hop| hop.id);
        for id in hops.chain(self.holders.drain(..)) {
            answer = answer.and(head.retire(id));
        }
        answer
    }

    /// The further processes, in the order of the chain.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The further processes, to look after them.
    pub fn stages_mut(&mut self) -> &mut [Stage] {
        &mut self.stages
    }

    fn position(&self, stage: Option<usize>) -> Option<u8> {
        stage.and_then(|index| self.positions.get(index).copied())
    }

    /// What may be read of it without it and without `head`, whose chain it is.
    pub fn reader(&self, head: &WorkerHandle) -> PipelineReader {
        let stages = self.stages.iter();
        let hops = self.hops.iter();
        PipelineReader {
            chain: (self.spi, self.generation),
            head: head.stats(),
            stages: stages
                .map(|stage| (stage.position, stage.handle.facts(), stage.handle.stats()))
                .collect(),
            rings: hops
                .map(|hop| {
                    let ends = (self.position(hop.from), self.position(hop.to));
                    (ends, Arc::clone(&hop.link))
                })
                .collect(),
        }
    }
}

fn reserve(head: &mut WorkerHandle) -> Result<SocketId, Error> {
    let id = head.free_id()?;
    head.reserved.insert(id);
    Ok(id)
}
