//! The agent's end of a worker: starts it, tells it its sockets and chains, and can start it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use myelin_packet::Flows;

use crate::chain::{SocketId, UserChain};
use crate::config::WorkerConfig;
use crate::door::LeadChain;
use crate::error::Error;
use crate::facts::WorkerFacts;
use crate::flows;
use crate::idle::Idle;
use crate::named::{self, NamedCount};
use crate::process::{Process, describe};
use crate::protocol::Request;
use crate::ring_link::RingLink;
use crate::ring_port::Side;
use crate::shm::anonymous_file;
use crate::stats::Stats;
use crate::umem::{Borrower, Umem};
use crate::xsk::{Successor, Xsk};

mod life;

/// A running worker process, with everything needed to start it anew: the packet memory, the sockets, the statistics and the
/// chains are kept here, so a worker that died takes nothing with it. (The packet memory of a worker over devices is its driver's, and does go with it.)
///
/// Requests wait for the worker: the start of devices, of a container, and of functions that compile patterns takes seconds. What may be read meanwhile,
/// [`Self::stats`] and [`Self::facts`], is shared. Dropping the handle kills the worker. A worker whose agent process dies goes on forwarding; it ends on SIGTERM.
#[derive(Debug)]
pub struct WorkerHandle {
    config: WorkerConfig,
    umem: Arc<Umem>,
    /// What the ledger calls this process, when the packet memory is another worker's.
    holder: Option<SocketId>,
    stats: Arc<Stats>,
    facts: Arc<WorkerFacts>,
    sockets: BTreeMap<SocketId, Xsk>,
    /// Sockets that went with the worker, to be opened anew for the next.
    successors: BTreeMap<SocketId, Successor>,
    rings: BTreeMap<SocketId, (Arc<RingLink>, Side)>,
    /// Numbers of the ledger that are taken by rings and processes of pipelines on this worker's memory.
    pub(crate) reserved: BTreeSet<SocketId>,
    /// Those of `reserved` that have nothing behind them any more but frames, which the next process takes.
    orphaned: BTreeSet<SocketId>,
    chains: BTreeMap<(u32, u16), (UserChain, u32)>,
    /// By SPI: what the worker's own front door gives to the chain, and its row in the statistics.
    led: BTreeMap<u32, (LeadChain, u32)>,
    process: Option<Process>,
}

impl WorkerHandle {
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
        if let Err(error) = self.process()?.hand_over(id, &mut xsk, false) {
            // The worker may have it already; the kernel lets go of a socket with its last descriptor.
            drop(xsk);
            let _ = self.ask(&Request::RemoveSocket { id });
            return Err(error);
        }
        self.keep_socket(id, xsk);
        Ok(id)
    }

    /// Changes what the worker does while no packet is there.
    pub fn set_idle(&mut self, idle: Idle) -> Result<(), Error> {
        self.ask(&Request::SetIdle(idle))?;
        self.config.idle = idle;
        self.facts.set_idle(idle);
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
        self.process()?
            .ask(&Request::AddRing { id, side }, &link.fds())?;
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
        self.facts.forget_socket(id);
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
            let is_device = self.config.devices.is_some() && id.0 < 2;
            if !is_device && !self.sockets.contains_key(&id) && !self.rings.contains_key(&id) {
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

    /// Has the worker's own front door give packets to a generation that was added, from the next batch on. Until the generation that had them before is removed, they
    /// can be led back to it.
    ///
    /// # Errors
    /// The generation is not here; another chain has these packets; the front door of this worker is in the kernel. Then all is as before.
    pub fn lead_chain(&mut self, chain: LeadChain) -> Result<(), Error> {
        let (spi, key) = (chain.spi, (chain.spi, chain.generation));
        if !self.chains.contains_key(&key) {
            return Err(self.chain_error(key, "is not there"));
        }
        if let Some((led, _)) = self.led.get(&spi)
            && led.direction != chain.direction
        {
            return Err(self.chain_error(key, "comes in at the other port"));
        }
        let Some(row) = self.stats.door_row(spi) else {
            return Err(self.chain_error(key, "is one too many: a worker holds 4096"));
        };
        self.ask(&Request::LeadChain {
            chain: chain.clone(),
            row,
        })?;
        self.led.insert(spi, (chain, row));
        Ok(())
    }

    /// Has the worker's own front door give a chain no more packets.
    pub fn unlead_chain(&mut self, spi: u32) -> Result<(), Error> {
        let Some((led, _)) = self.led.remove(&spi) else {
            return Ok(());
        };
        self.ask(&Request::UnleadChain {
            spi,
            direction: led.direction,
        })
    }

    /// Removes a generation of a chain, after the packets that have arrived for it are processed. The front door must not send it more.
    pub fn remove_chain(&mut self, spi: u32, generation: u16) -> Result<(), Error> {
        if self
            .led
            .get(&spi)
            .is_some_and(|(led, _)| led.generation == generation)
        {
            return Err(self.chain_error((spi, generation), "is what packets are led to"));
        }
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
        let (worker, pid) = (self.config.run_id.clone(), self.pid());
        let failed = |source: io::Error| Error::Control {
            worker: worker.clone(),
            pid,
            what: describe(request),
            source,
        };
        let mut file = File::from(anonymous_file("myelin-answer", 0).map_err(failed)?);
        self.process()?.ask(request, &[file.as_fd()])?;
        read(&mut file).map_err(failed)
    }

    /// What the worker counts, to be read by anybody at any time.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// What it is now, to be read by anybody at any time.
    pub fn facts(&self) -> Arc<WorkerFacts> {
        Arc::clone(&self.facts)
    }

    /// Its process number; 0 when there is none because a restart failed.
    pub fn pid(&self) -> u32 {
        self.facts.pid()
    }

    /// How it was started.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    fn process(&mut self) -> Result<&mut Process, Error> {
        self.process.as_mut().ok_or_else(|| Error::Control {
            worker: self.config.run_id.clone(),
            pid: 0,
            what: "reach the process".into(),
            source: io::ErrorKind::NotConnected.into(),
        })
    }

    fn ask(&mut self, request: &Request) -> Result<(), Error> {
        self.process()?.ask(request, &[])
    }

    fn keep_socket(&mut self, id: SocketId, xsk: Xsk) {
        self.facts.add_socket(id, xsk.shared_fd());
        self.sockets.insert(id, xsk);
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
