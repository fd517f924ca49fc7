//! The agent's handle of a worker. It starts and restarts the worker, and sends it sockets and
//! chains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use myelin_packet::Flows;

use crate::chain::{SocketId, UserChain, UserExit};
use crate::config::WorkerConfig;
use crate::door::ChainRedirect;
use crate::error::Error;
use crate::facts::WorkerFacts;
use crate::flows;
use crate::idle::Idle;
use crate::named_counters::{self, NamedCount};
use crate::packet_socket::PacketSocket;
use crate::process::{WorkerProcess, describe};
use crate::protocol::Request;
use crate::replay_port::Replay;
use crate::ring_link::RingLink;
use crate::ring_port::RingSide;
use crate::shm::anonymous_file;
use crate::stats::Stats;
use crate::turns::{CoreTable, Member, MemberLane, MemberRing, TaskObserver};
use crate::umem::{Borrower, Umem};
use crate::xsk::{Role, Successor, Xsk};

mod lifecycle;

/// A running worker process. The handle keeps the UMEM, the sockets, the statistics and the chains,
/// so a restart loses none of them. (A worker over devices has no UMEM. Its driver's packet buffers
/// end with the process.)
///
/// A request blocks until the worker answers. To start devices or a container, or to compile the
/// patterns of a function, takes seconds. [`Self::stats`] and [`Self::facts`] are readable
/// meanwhile. Dropping the handle kills the worker. If the agent process dies, the worker keeps
/// forwarding until it gets SIGTERM.
#[derive(Debug)]
pub struct WorkerHandle {
    config: WorkerConfig,
    umem: Arc<Umem>,
    /// The borrower number of this process, if it runs on the UMEM of another worker.
    holder: Option<SocketId>,
    stats: Arc<Stats>,
    facts: Arc<WorkerFacts>,
    sockets: BTreeMap<SocketId, Xsk>,
    /// Sockets that closed with the worker. The next start opens them again.
    successors: BTreeMap<SocketId, Successor>,
    rings: BTreeMap<SocketId, (Arc<RingLink>, RingSide)>,
    packet_sockets: BTreeMap<SocketId, PacketSocket>,
    /// Replay ports.
    replays: BTreeMap<SocketId, Replay>,
    /// Borrower numbers of rings and pipeline processes on this worker's UMEM.
    pub(crate) reserved: BTreeSet<SocketId>,
    /// Members of `reserved` without a ring or process. The next worker process takes their frames.
    orphaned: BTreeSet<SocketId>,
    chains: BTreeMap<(u32, u16), (UserChain, u32)>,
    /// Redirects of the worker's front door by SPI, each with its row in the statistics.
    redirects: BTreeMap<u32, (ChainRedirect, u32)>,
    /// The table of the worker's core and the worker's task, if it takes turns.
    share: Option<(Arc<CoreTable>, usize)>,
    process: Option<WorkerProcess>,
}

impl WorkerHandle {
    /// Returns the rings that the worker reads and writes, for a [`CoreTable`].
    pub fn member(&self) -> Member {
        let mut exits = self.chains.values().flat_map(|(chain, _)| &chain.segments);
        let egress = exits.find_map(|segment| match segment.exit {
            UserExit::Stage { socket, .. } => self.rings.get(&socket),
            _ => None,
        });
        let egress = egress.map(|(link, _)| Arc::clone(link));
        let sockets = self.sockets.iter().filter_map(|(&port, xsk)| {
            let config = &xsk.info().config;
            (config.role == Role::Ingress).then(|| MemberLane {
                port,
                ingress: MemberRing::Socket {
                    fd: Arc::downgrade(xsk.shared_fd()),
                    entries: config.ring_size,
                },
                egress: egress.clone(),
            })
        });
        let rings = self.rings.iter();
        let incoming = rings.filter(|(_, (_, side))| *side == RingSide::Receive);
        let rings = incoming.map(|(&port, (link, _))| MemberLane {
            port,
            ingress: MemberRing::Pipeline(Arc::clone(link)),
            // Packets leave the first process at a socket.
            egress: egress.clone().filter(|_| self.holder.is_some()),
        });
        let replays = self.replays.iter().map(|(&port, replay)| MemberLane {
            port,
            ingress: MemberRing::Replay(replay.ring),
            egress: egress.clone(),
        });
        Member {
            lanes: sockets.chain(replays).chain(rings).collect(),
        }
    }

    /// Lets the worker take turns on its core, as this task of the table; with `None` it no longer
    /// takes turns. The handle keeps the table for a restart.
    pub fn share(&mut self, share: Option<(Arc<CoreTable>, usize)>) -> Result<(), Error> {
        if share.is_none() && self.share.is_none() {
            return Ok(());
        }
        let task = share.clone();
        let task = task.and_then(|(table, task)| TaskObserver::new(table, task));
        self.facts.set_task(task);
        self.share = share;
        match &mut self.process {
            Some(process) => send_share(process, self.share.as_ref()),
            // The next process gets it.
            None => Ok(()),
        }
    }

    /// Returns the UMEM, to bind sockets to.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Returns the UMEM, for another process of a pipeline.
    pub(crate) fn shared_umem(&self) -> Arc<Umem> {
        Arc::clone(&self.umem)
    }

    /// Returns the first socket. Another socket may share this socket's UMEM.
    pub fn first_socket(&self) -> Option<&Xsk> {
        self.sockets.values().next()
    }

    /// Returns a socket of this worker.
    pub fn socket(&self, id: SocketId) -> Option<&Xsk> {
        self.sockets.get(&id)
    }

    /// Hands a socket to the worker, and redirects packets to the socket. The handle keeps the
    /// socket for a restart.
    pub fn add_socket(&mut self, mut xsk: Xsk) -> Result<SocketId, Error> {
        let id = self.unused_number()?;
        if let Err(error) = self.process()?.hand_over(id, &mut xsk, false) {
            // The worker may already have the socket. The kernel frees a socket with its last
            // descriptor.
            drop(xsk);
            let _ = self.ask(&Request::RemoveSocket { id });
            return Err(error);
        }
        self.keep_socket(id, xsk);
        Ok(id)
    }

    /// Hands a packet socket to the worker. The handle keeps the socket for a restart.
    pub fn add_packet_socket(&mut self, socket: PacketSocket) -> Result<SocketId, Error> {
        let id = self.unused_number()?;
        self.process()?.ask(&socket.request(id), &socket.fds())?;
        if socket.receives {
            self.facts.add_packet_socket(id, socket.shared_fd());
        }
        self.packet_sockets.insert(id, socket);
        Ok(id)
    }

    /// Adds a port that receives these packets, and sends packets nowhere.
    pub fn add_replay(&mut self, replay: Replay) -> Result<SocketId, Error> {
        let id = self.unused_number()?;
        self.ask(&Request::AddReplay {
            id,
            replay: replay.clone(),
        })?;
        self.replays.insert(id, replay);
        Ok(id)
    }

    /// Returns the replay port that was added first.
    pub fn first_replay(&self) -> Option<SocketId> {
        self.replays.keys().next().copied()
    }

    /// Says that the worker has another core, also after a restart. The caller binds the running
    /// process.
    pub fn set_core(&mut self, core: u32) {
        self.config.core = Some(core);
        self.facts.set_core(core);
    }

    /// Changes the behaviour of the worker without packets.
    pub fn set_idle(&mut self, idle: Idle) -> Result<(), Error> {
        self.ask(&Request::SetIdle(idle))?;
        self.config.idle = idle;
        self.facts.set_idle(idle);
        Ok(())
    }

    /// Returns an unused borrower number.
    pub(crate) fn unused_number(&self) -> Result<SocketId, Error> {
        (0..Borrower::MAX as u16)
            .map(SocketId)
            .find(|id| {
                !self.sockets.contains_key(id)
                    && !self.successors.contains_key(id)
                    && !self.packet_sockets.contains_key(id)
                    && !self.replays.contains_key(id)
                    && !self.reserved.contains(id)
            })
            .ok_or(Error::Parameter {
                what: "number of sockets, rings and pipeline processes on one UMEM",
                value: (self.sockets.len() + self.reserved.len()) as u64 + 1,
                expected: "at most 255",
            })
    }

    /// Hands an end of a ring to the worker, under a reserved number.
    pub(crate) fn add_ring(
        &mut self,
        id: SocketId,
        link: Arc<RingLink>,
        side: RingSide,
    ) -> Result<(), Error> {
        self.process()?
            .ask(&Request::AddRing { id, side }, &link.fds())?;
        self.rings.insert(id, (link, side));
        Ok(())
    }

    /// Frees a reserved number: closes this worker's end of a ring, or takes back the frames of
    /// another process.
    pub(crate) fn release_number(&mut self, id: SocketId) -> Result<(), Error> {
        let request = match self.rings.remove(&id) {
            Some(_) => Request::RemoveSocket { id },
            None => Request::TakeFrames { id },
        };
        self.send_release(id, &request)
    }

    /// Sends the request that frees a borrower number. If the process is dead, the next process
    /// takes the frames.
    fn send_release(&mut self, id: SocketId, request: &Request) -> Result<(), Error> {
        let answer = self.ask(request);
        if matches!(answer, Err(Error::Control { .. })) {
            self.reserved.insert(id);
            self.orphaned.insert(id);
        } else {
            self.reserved.remove(&id);
        }
        answer
    }

    /// Grants free frames to the process that starts next as borrower `id`.
    pub(crate) fn grant(&mut self, id: SocketId, frames: u32) -> Result<(), Error> {
        self.ask(&Request::Grant { id, frames })
    }

    /// Closes a socket that is no chain's exit. The socket's frames return after all descriptors of
    /// the socket are closed.
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
                message: "a chain transmits on this socket; remove the chain first".into(),
            });
        }
        // The kernel frees a socket with the last descriptor, so the handle closes its descriptor
        // before the worker closes the other.
        self.facts.forget_socket(id);
        let is_known = self.sockets.remove(&id).is_some()
            || self.successors.remove(&id).is_some()
            || self.packet_sockets.remove(&id).is_some();
        if !is_known {
            return Err(self.missing_socket(id));
        }
        self.send_release(id, &Request::RemoveSocket { id })
    }

    /// Deploys a generation of a chain. The generation runs when this method returns.
    pub fn add_chain(&mut self, chain: UserChain) -> Result<(), Error> {
        let key = (chain.spi, chain.generation);
        chain
            .check()
            .map_err(|problem| self.chain_error(key, problem))?;
        self.add_pipeline_part(chain)
    }

    /// Deploys the part of a checked chain that runs in this process of a pipeline.
    pub(crate) fn add_pipeline_part(&mut self, chain: UserChain) -> Result<(), Error> {
        let key = (chain.spi, chain.generation);
        for segment in &chain.segments {
            let id = segment.exit.socket();
            let is_device = self.config.devices.is_some() && id.0 < 2;
            let is_socket = self.sockets.contains_key(&id)
                || self.packet_sockets.contains_key(&id)
                || self.replays.contains_key(&id);
            if !is_device && !is_socket && !self.rings.contains_key(&id) {
                return Err(self.missing_socket(id));
            }
        }
        let Some(block) = self.stats.allocate(key.0, key.1, chain.positions) else {
            let problem = if self.chains.contains_key(&key) {
                "exists already"
            } else {
                "exceeds the limit of 4096 in a worker"
            };
            return Err(self.chain_error(key, problem));
        };
        let request = Request::AddChain {
            chain: chain.clone(),
            block,
        };
        if let Err(error) = self.ask(&request) {
            // No process counts into the block, because the worker refused the chain, did not get
            // the request, or was killed after a timeout.
            self.stats.release(key.0, key.1);
            return Err(error);
        }
        self.chains.insert(key, (chain, block));
        Ok(())
    }

    /// Redirects matching packets at the worker's front door to an added generation, from the next
    /// batch on. Until the former generation is removed, another call can redirect packets back.
    ///
    /// # Errors
    /// The generation does not exist, another chain matches the packets, or the front door of this
    /// worker is in the kernel. An error changes nothing.
    pub fn redirect_chain(&mut self, chain: ChainRedirect) -> Result<(), Error> {
        let (spi, key) = (chain.spi, (chain.spi, chain.generation));
        if !self.chains.contains_key(&key) {
            return Err(self.chain_error(key, "does not exist"));
        }
        if let Some((redirect, _)) = self.redirects.get(&spi)
            && redirect.ingress != chain.ingress
        {
            return Err(self.chain_error(key, "has its ingress at another port"));
        }
        let Some(row) = self.stats.door_row(spi) else {
            return Err(self.chain_error(key, "exceeds the limit of 4096 in a worker"));
        };
        self.ask(&Request::RedirectChain {
            chain: chain.clone(),
            row,
        })?;
        self.redirects.insert(spi, (chain, row));
        Ok(())
    }

    /// Stops the redirect of packets to a chain at the worker's front door.
    pub fn stop_redirect(&mut self, spi: u32) -> Result<(), Error> {
        let Some((redirect, _)) = self.redirects.remove(&spi) else {
            return Ok(());
        };
        self.ask(&Request::StopRedirect {
            spi,
            ingress: redirect.ingress,
        })
    }

    /// Removes a generation of a chain, after the worker has processed the generation's arrived
    /// packets. The front door must no longer redirect packets to this generation.
    pub fn remove_chain(&mut self, spi: u32, generation: u16) -> Result<(), Error> {
        if self
            .redirects
            .get(&spi)
            .is_some_and(|(redirect, _)| redirect.generation == generation)
        {
            return Err(self.chain_error((spi, generation), "still gets packets; redirect them"));
        }
        if self.chains.remove(&(spi, generation)).is_none() {
            return Err(self.chain_error((spi, generation), "does not exist"));
        }
        let answer = self.ask(&Request::RemoveChain { spi, generation });
        if matches!(answer, Err(Error::Control { .. })) {
            // A worker that did not get the request would still count into the block.
            self.kill_process();
        }
        self.stats.release(spi, generation);
        answer
    }

    /// Returns the flows of a function; `None` if the function keeps no flows, or this worker does
    /// not run the function. A packet waits at most for the copy of one page.
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

    /// Returns the named counters of the chain's functions in this worker.
    pub fn counters(&mut self, spi: u32, generation: u16) -> Result<Vec<NamedCount>, Error> {
        self.ask_for_file(
            &Request::ReadCounters { spi, generation },
            named_counters::read,
        )
    }

    /// Sends a request with a file for the answer, and reads the answer.
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

    /// Returns the worker's statistics, which any thread may read at any time.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Returns the worker's state, which any thread may read at any time.
    pub fn facts(&self) -> Arc<WorkerFacts> {
        Arc::clone(&self.facts)
    }

    /// Returns the process number; 0 after a failed restart.
    pub fn pid(&self) -> u32 {
        self.facts.pid()
    }

    /// Returns the configuration.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    fn process(&mut self) -> Result<&mut WorkerProcess, Error> {
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

    fn missing_socket(&self, socket: SocketId) -> Error {
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

/// Sends a process its share of its core.
fn send_share(
    process: &mut WorkerProcess,
    share: Option<&(Arc<CoreTable>, usize)>,
) -> Result<(), Error> {
    let Some((table, task)) = share else {
        return process.ask(&Request::Share(None), &[]);
    };
    let request = Request::Share(Some(table.setup(*task)));
    let sent = table.with_fds(|fds| process.ask(&request, fds));
    // A socket that is closed already: the agent makes another table at once.
    sent.unwrap_or(Ok(()))
}
