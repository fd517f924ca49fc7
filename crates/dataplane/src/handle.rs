//! The agent's end of a worker: starts it, tells it its sockets and chains, and can start it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::chain::{SocketId, UserChain};
use crate::control::{Request, Setup};
use crate::error::Error;
use crate::flows::{self, Flows};
use crate::idle::Idle;
use crate::launch::Launcher;
use crate::named::{self, NamedCount};
use crate::pipeline::RingLink;
use crate::process::{Process, describe, running};
use crate::ring_port::Side;
use crate::shm::anonymous_file;
use crate::stats::Stats;
use crate::umem::{Borrower, Umem};
use crate::xsk::{Successor, Xsk};

/// Name of every worker: the start of its command line, and of its main thread.
pub const WORKER_NAME: &str = "myelin-worker";

/// Largest batch.
pub const MAX_BATCH: u16 = 256;

/// How long a worker that was told to stop may take.
const STOP_TIME: Duration = Duration::from_secs(2);

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// The program, which must call [`worker_main`](crate::worker_main) with its standard input.
    pub exe: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Stands in the command line, so that a worker that outlived its agent is found.
    pub run_id: String,
    /// The core it is bound to.
    pub core: Option<u32>,
    /// Packets taken at once, 1 to [`MAX_BATCH`].
    pub batch: u16,
    /// What it does while no packet is there.
    pub idle: Idle,
    /// Frames of its packet memory.
    pub frames: u32,
    /// Size of a frame, 2048 or 4096 bytes.
    pub frame_size: u32,
    /// Where its process starts; `None` makes it a child of this one.
    pub launcher: Option<Arc<dyn Launcher>>,
}

impl WorkerConfig {
    /// A worker with one packet a batch, 50 us of spinning, any core, and 8 MiB of packet memory.
    pub fn new(exe: impl Into<PathBuf>, run_id: impl Into<String>) -> Self {
        Self {
            exe: exe.into(),
            args: Vec::new(),
            run_id: run_id.into(),
            core: None,
            batch: 1,
            idle: Idle::Adaptive {
                spin: Duration::from_micros(50),
            },
            frames: 4096,
            frame_size: 2048,
            launcher: None,
        }
    }
}

/// A running worker process, with everything needed to start it anew: the packet memory, the sockets, the statistics and the
/// chains are kept here, so a worker that died takes nothing with it.
///
/// Dropping the handle kills the worker. A worker whose agent process dies goes on forwarding; it ends on SIGTERM.
#[derive(Debug)]
pub struct WorkerHandle {
    config: WorkerConfig,
    umem: Arc<Umem>,
    /// What the ledger calls this process, when the packet memory is another worker's.
    holder: Option<SocketId>,
    stats: Stats,
    sockets: BTreeMap<SocketId, Xsk>,
    /// Sockets that went with the worker, to be opened anew for the next.
    successors: BTreeMap<SocketId, Successor>,
    rings: BTreeMap<SocketId, (Arc<RingLink>, Side)>,
    /// Numbers of the ledger that are taken by rings and processes of pipelines on this worker's memory.
    pub(crate) reserved: BTreeSet<SocketId>,
    /// Those of `reserved` that have nothing behind them any more but frames, which the next process takes.
    orphaned: BTreeSet<SocketId>,
    chains: BTreeMap<(u32, u16), (UserChain, u32)>,
    process: Option<Process>,
    restarts: u64,
}

impl WorkerHandle {
    /// Starts a worker without sockets and chains.
    pub fn spawn(config: WorkerConfig) -> Result<Self, Error> {
        if !(1..=MAX_BATCH).contains(&config.batch) {
            return Err(Error::Parameter {
                what: "batch size",
                value: config.batch.into(),
                expected: "1 to 256 packets",
            });
        }
        let umem = Arc::new(Umem::create(config.frames, config.frame_size)?);
        Self::spawn_on(umem, None, BTreeMap::new(), config)
    }

    /// Starts a worker on the packet memory of another one, which calls it `holder` in the ledger, with its rings.
    pub(crate) fn spawn_on(
        umem: Arc<Umem>,
        holder: Option<SocketId>,
        rings: BTreeMap<SocketId, (Arc<RingLink>, Side)>,
        config: WorkerConfig,
    ) -> Result<Self, Error> {
        let mut handle = Self {
            umem,
            holder,
            stats: Stats::create()?,
            config,
            sockets: BTreeMap::new(),
            successors: BTreeMap::new(),
            rings,
            reserved: BTreeSet::new(),
            orphaned: BTreeSet::new(),
            chains: BTreeMap::new(),
            process: None,
            restarts: 0,
        };
        handle.start()?;
        Ok(handle)
    }

    /// The packet memory, to bind sockets to.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The packet memory, for another process of a pipeline.
    pub(crate) fn shared_umem(&self) -> Arc<Umem> {
        Arc::clone(&self.umem)
    }

    /// A socket of this worker that a further one may share the packet memory with.
    pub fn first_socket(&self) -> Option<&Xsk> {
        self.sockets.values().next()
    }

    /// A socket of this worker.
    pub fn socket(&self, id: SocketId) -> Option<&Xsk> {
        self.sockets.get(&id)
    }

    /// Hands a socket to the worker, and leads packets to it. The handle keeps it too, for a restart.
    pub fn add_socket(&mut self, mut xsk: Xsk) -> Result<SocketId, Error> {
        let id = self.free_id()?;
        let process = running(self.process.as_mut(), &self.config)?;
        if let Err(error) = hand_over(process, &self.config.run_id, id, &mut xsk, false) {
            // The worker may have it already; the kernel lets go of a socket with its last descriptor.
            drop(xsk);
            let _ = self.ask(&Request::RemoveSocket { id });
            return Err(error);
        }
        self.sockets.insert(id, xsk);
        Ok(id)
    }

    /// Changes what the worker does while no packet is there.
    pub fn set_idle(&mut self, idle: Idle) -> Result<(), Error> {
        self.ask(&Request::SetIdle(idle))?;
        self.config.idle = idle;
        Ok(())
    }

    /// A number that no socket, ring or process has in the ledger.
    pub(crate) fn free_id(&self) -> Result<SocketId, Error> {
        (0..Borrower::MAX as u16)
            .map(SocketId)
            .find(|id| {
                !self.sockets.contains_key(id)
                    && !self.successors.contains_key(id)
                    && !self.reserved.contains(id)
            })
            .ok_or(Error::Parameter {
                what: "number of sockets, rings and pipeline processes on one packet memory",
                value: (self.sockets.len() + self.reserved.len()) as u64 + 1,
                expected: "at most 255",
            })
    }

    /// Hands an end of a ring to the worker, under a number that is reserved.
    pub(crate) fn add_ring(
        &mut self,
        id: SocketId,
        link: Arc<RingLink>,
        side: Side,
    ) -> Result<(), Error> {
        let process = running(self.process.as_mut(), &self.config)?;
        process.ask(
            &self.config.run_id,
            &Request::AddRing { id, side },
            &link.fds(),
        )?;
        self.rings.insert(id, (link, side));
        Ok(())
    }

    /// Takes back what stood in the ledger under a reserved number: the end of a ring of this worker, or what other processes had.
    pub(crate) fn retire(&mut self, id: SocketId) -> Result<(), Error> {
        let request = match self.rings.remove(&id) {
            Some(_) => Request::RemoveSocket { id },
            None => Request::TakeFrames { id },
        };
        self.give_up(id, &request)
    }

    /// Gives up a number of the ledger, and takes back the frames under it. A process that is dead leaves that to the next one.
    fn give_up(&mut self, id: SocketId, request: &Request) -> Result<(), Error> {
        let answer = self.ask(request);
        if matches!(answer, Err(Error::Control { .. })) {
            self.reserved.insert(id);
            self.orphaned.insert(id);
        } else {
            self.reserved.remove(&id);
        }
        answer
    }

    /// Gives free frames to the process that is about to start under that number.
    pub(crate) fn grant(&mut self, id: SocketId, frames: u32) -> Result<(), Error> {
        self.ask(&Request::Grant { id, frames })
    }

    /// Closes a socket that no chain leads to. Frames in its rings come back once nobody else holds a descriptor of it.
    pub fn remove_socket(&mut self, id: SocketId) -> Result<(), Error> {
        if self.chains.values().any(|(chain, _)| {
            chain
                .segments
                .iter()
                .any(|segment| segment.exit.socket() == id)
        }) {
            return Err(Error::Refused {
                worker: self.config.run_id.clone(),
                what: format!("remove socket {}", id.0),
                message: "a chain leads to it; remove the chain first".into(),
            });
        }
        // The kernel lets go of a socket with its last descriptor, so this one is closed before the worker closes its own.
        if self.sockets.remove(&id).is_none() && self.successors.remove(&id).is_none() {
            return Err(self.no_socket(id));
        }
        self.give_up(id, &Request::RemoveSocket { id })
    }

    /// Deploys a generation of a chain; it runs when this returns.
    pub fn add_chain(&mut self, chain: UserChain) -> Result<(), Error> {
        let key = (chain.spi, chain.generation);
        chain
            .check()
            .map_err(|problem| self.chain_error(key, problem))?;
        self.add_part(chain)
    }

    /// As [`Self::add_chain`], for the part of a checked chain that runs in this process of a pipeline.
    pub(crate) fn add_part(&mut self, chain: UserChain) -> Result<(), Error> {
        let key = (chain.spi, chain.generation);
        for segment in &chain.segments {
            let id = segment.exit.socket();
            if !self.sockets.contains_key(&id) && !self.rings.contains_key(&id) {
                return Err(self.no_socket(id));
            }
        }
        let Some(block) = self.stats.allocate(key.0, key.1, chain.positions) else {
            let problem = if self.chains.contains_key(&key) {
                "is there already"
            } else {
                "is one too many: a worker holds 4096"
            };
            return Err(self.chain_error(key, problem));
        };
        let request = Request::AddChain {
            chain: chain.clone(),
            block,
        };
        if let Err(error) = self.ask(&request) {
            // Nobody counts into it: the worker refused the chain, was not told of it, or was ended for want of an answer.
            self.stats.release(key.0, key.1);
            return Err(error);
        }
        self.chains.insert(key, (chain, block));
        Ok(())
    }

    /// Removes a generation of a chain, after the packets that have arrived for it are processed. The front door must not send it more.
    pub fn remove_chain(&mut self, spi: u32, generation: u16) -> Result<(), Error> {
        if self.chains.remove(&(spi, generation)).is_none() {
            return Err(self.chain_error((spi, generation), "is not there"));
        }
        let answer = self.ask(&Request::RemoveChain { spi, generation });
        if matches!(answer, Err(Error::Control { .. })) {
            // One that could not be told would go on counting for the chain.
            self.end();
        }
        self.stats.release(spi, generation);
        answer
    }

    /// The flows that a function knows; `None` for one that keeps none or is not here. Packets wait for a page of them at most.
    pub fn flows(
        &mut self,
        spi: u32,
        generation: u16,
        position: u8,
    ) -> Result<Option<Flows>, Error> {
        let request = Request::ReadFlows {
            spi,
            generation,
            position,
        };
        self.ask_for_file(&request, flows::read)
    }

    /// What the functions of a chain that are here count by names of their own.
    pub fn counters(&mut self, spi: u32, generation: u16) -> Result<Vec<NamedCount>, Error> {
        self.ask_for_file(&Request::ReadCounters { spi, generation }, named::read)
    }

    /// Has the worker write its answer into a file.
    fn ask_for_file<T>(
        &mut self,
        request: &Request,
        read: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> Result<T, Error> {
        let worker = &self.config.run_id;
        let process = running(self.process.as_mut(), &self.config)?;
        let pid = process.pid();
        let failed = |source: io::Error| Error::Control {
            worker: worker.clone(),
            pid,
            what: describe(request),
            source,
        };
        let mut file = File::from(anonymous_file("myelin-answer", 0).map_err(failed)?);
        process.ask(worker, request, &[file.as_fd()])?;
        read(&mut file).map_err(failed)
    }

    /// What the worker counts; reading does not disturb it.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Its process number; 0 when there is none because a restart failed.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// How it was started.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// How often it was started anew.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_alive)
    }

    /// Ends the process, if it runs, and starts another with the same sockets and chains. Counters go on; packets that the old one had in hand are
    /// lost, those in the rings are processed, save those in sockets whose rings cannot be mapped again (before Linux 6.4).
    pub fn restart(&mut self) -> Result<(), Error> {
        self.end();
        for (id, xsk) in std::mem::take(&mut self.sockets) {
            if xsk.is_late() {
                let successor = xsk.into_successor();
                self.successors.extend(successor.map(|one| (id, one)));
            } else {
                self.sockets.insert(id, xsk);
            }
        }
        self.restarts += 1;
        self.start()
    }

    /// Lets the worker finish its batch and exit; kills it when it does not.
    pub fn shutdown(mut self) -> Result<(), Error> {
        let answer = self.ask(&Request::Shutdown);
        if let Some(process) = &mut self.process {
            process.wait(STOP_TIME);
        }
        answer
    }

    /// Leaves the worker running on its own, as it would be after a crash of the agent.
    pub fn detach(mut self) {
        self.process = None;
    }

    fn start(&mut self) -> Result<(), Error> {
        let mut process = Process::spawn(&self.config)?;
        let setup = Request::Setup(Setup {
            frames: self.config.frames,
            frame_size: self.config.frame_size,
            batch: self.config.batch,
            idle: self.config.idle,
            core: self.config.core,
            restarted: self.restarts > 0,
            holder: self.holder,
        });
        let worker = &self.config.run_id;
        let told = process
            .ask(worker, &setup, &[self.umem.fd(), self.stats.fd()])
            .and_then(|()| {
                self.sockets
                    .iter_mut()
                    .try_for_each(|(&id, xsk)| hand_over(&mut process, worker, id, xsk, false))
            })
            .and_then(|()| {
                while let Some(next) = self.successors.first_entry() {
                    let shared = self.sockets.values().next();
                    let mut xsk = next.get().open(&self.umem, shared)?;
                    hand_over(&mut process, worker, *next.key(), &mut xsk, true)?;
                    let (id, _) = next.remove_entry();
                    self.sockets.insert(id, xsk);
                }
                Ok(())
            })
            .and_then(|()| {
                self.rings.iter().try_for_each(|(&id, (link, side))| {
                    let request = Request::AddRing { id, side: *side };
                    process.ask(worker, &request, &link.fds())
                })
            })
            .and_then(|()| {
                self.chains.values().try_for_each(|(chain, block)| {
                    let (chain, block) = (chain.clone(), *block);
                    process.ask(worker, &Request::AddChain { chain, block }, &[])
                })
            })
            .and_then(|()| process.ask(worker, &Request::Start, &[]))
            .and_then(|()| {
                self.orphaned
                    .iter()
                    .try_for_each(|&id| process.ask(worker, &Request::TakeFrames { id }, &[]))
            });
        if told.is_err() {
            process.kill();
            return told;
        }
        for id in std::mem::take(&mut self.orphaned) {
            self.reserved.remove(&id);
        }
        self.process = Some(process);
        Ok(())
    }

    fn ask(&mut self, request: &Request) -> Result<(), Error> {
        running(self.process.as_mut(), &self.config)?.ask(&self.config.run_id, request, &[])
    }

    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    fn no_socket(&self, socket: SocketId) -> Error {
        Error::NoSocket {
            worker: self.config.run_id.clone(),
            socket: socket.0,
        }
    }

    fn chain_error(&self, (spi, generation): (u32, u16), problem: &'static str) -> Error {
        Error::Chain {
            worker: self.config.run_id.clone(),
            spi,
            generation,
            problem,
        }
    }
}

/// Hands a socket to a worker; when it has mapped the rings it is bound and packets are led to it.
fn hand_over(
    process: &mut Process,
    worker: &str,
    id: SocketId,
    xsk: &mut Xsk,
    succeeds: bool,
) -> Result<(), Error> {
    let info = xsk.info().clone();
    let request = Request::AddSocket { id, info, succeeds };
    process.ask(worker, &request, &[xsk.fd()])?;
    xsk.complete()?;
    xsk.lead()
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.end();
    }
}
