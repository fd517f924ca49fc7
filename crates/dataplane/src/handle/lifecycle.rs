//! Starts, restarts and stops a worker's process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{WorkerHandle, send_share};
use crate::chain::SocketId;
use crate::config::WorkerConfig;
use crate::error::Error;
use crate::facts::WorkerFacts;
use crate::process::WorkerProcess;
use crate::protocol::{PortSetup, Request, Setup};
use crate::ring_link::RingLink;
use crate::ring_port::RingSide;
use crate::stats::Stats;
use crate::umem::Umem;

/// Longest time for a stop. It is long because closing a device is slow.
const STOP_TIME: Duration = Duration::from_secs(5);

impl WorkerHandle {
    /// Starts a worker without sockets and chains.
    pub fn spawn(config: WorkerConfig) -> Result<Self, Error> {
        config.check()?;
        let umem = Arc::new(Umem::create(config.frames, config.frame_size)?);
        Self::spawn_on(umem, None, BTreeMap::new(), config)
    }

    /// Starts a worker on the UMEM of another worker, with these rings. `holder` is the borrower
    /// number of the new worker.
    pub(crate) fn spawn_on(
        umem: Arc<Umem>,
        holder: Option<SocketId>,
        rings: BTreeMap<SocketId, (Arc<RingLink>, RingSide)>,
        config: WorkerConfig,
    ) -> Result<Self, Error> {
        let mut handle = Self {
            umem,
            holder,
            stats: Arc::new(Stats::create()?),
            facts: WorkerFacts::new(config.core, config.idle),
            config,
            sockets: BTreeMap::new(),
            successors: BTreeMap::new(),
            rings,
            packet_sockets: BTreeMap::new(),
            replays: BTreeMap::new(),
            reserved: BTreeSet::new(),
            orphaned: BTreeSet::new(),
            chains: BTreeMap::new(),
            redirects: BTreeMap::new(),
            share: None,
            process: None,
        };
        handle.start(false)?;
        Ok(handle)
    }

    /// Returns whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(WorkerProcess::is_alive)
    }

    /// Kills the process if it runs, and starts another process with the same ports and chains. If
    /// the start fails, or the new process refuses a port or chain, no process remains. Counters
    /// continue. Packets that the old process was processing are lost. The new process takes the
    /// packets in the rings, except in the rings of devices, and of sockets before Linux 6.4.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.kill_process();
        for (id, xsk) in std::mem::take(&mut self.sockets) {
            if xsk.needs_successor() {
                self.facts.forget_socket(id);
                let successor = xsk.into_successor();
                self.successors
                    .extend(successor.map(|successor| (id, successor)));
            } else {
                self.sockets.insert(id, xsk);
            }
        }
        let started = self.start(true);
        // Count after the process number has changed, so that a reader of the count sees the number
        // of the new process.
        self.facts.count_restart();
        started
    }

    /// Asks the worker to finish its batch and exit. Kills the worker after a timeout.
    pub fn shutdown(mut self) -> Result<(), Error> {
        let answer = self.ask(&Request::Shutdown);
        if let Some(process) = &mut self.process {
            process.wait(STOP_TIME);
        }
        answer
    }

    /// Leaves the worker running, as after a crash of the agent.
    pub fn detach(mut self) {
        self.process = None;
    }

    fn start(&mut self, is_restart: bool) -> Result<(), Error> {
        let mut process = WorkerProcess::spawn(&self.config)?;
        if let Err(error) = self.hand_over_all(&mut process, is_restart) {
            process.kill();
            return Err(error);
        }
        for id in std::mem::take(&mut self.orphaned) {
            self.reserved.remove(&id);
        }
        self.facts.set_pid(process.pid());
        self.process = Some(process);
        Ok(())
    }

    /// Sends a new process all its sockets, rings and chains.
    fn hand_over_all(
        &mut self,
        process: &mut WorkerProcess,
        is_restart: bool,
    ) -> Result<(), Error> {
        self.set_up(process, is_restart)?;
        for (&id, xsk) in &mut self.sockets {
            process.hand_over(id, xsk, false)?;
        }
        while let Some(next) = self.successors.first_entry() {
            let shared = self.sockets.values().next();
            let mut xsk = next.get().open(&self.umem, shared)?;
            process.hand_over(*next.key(), &mut xsk, true)?;
            let (id, _) = next.remove_entry();
            self.keep_socket(id, xsk);
        }
        for (&id, (link, side)) in &self.rings {
            process.ask(&Request::AddRing { id, side: *side }, &link.fds())?;
        }
        for (&id, socket) in &self.packet_sockets {
            process.ask(&socket.request(id), &socket.fds())?;
        }
        for (&id, replay) in &self.replays {
            let replay = replay.clone();
            process.ask(&Request::AddReplay { id, replay }, &[])?;
        }
        for (chain, block) in self.chains.values().cloned() {
            process.ask(&Request::AddChain { chain, block }, &[])?;
        }
        for (chain, row) in self.redirects.values().cloned() {
            process.ask(&Request::RedirectChain { chain, row }, &[])?;
        }
        if self.share.is_some() {
            send_share(process, self.share.as_ref())?;
        }
        process.ask(&Request::Start, &[])?;
        for &id in &self.orphaned {
            process.ask(&Request::TakeFrames { id }, &[])?;
        }
        Ok(())
    }

    fn set_up(&self, process: &mut WorkerProcess, is_restart: bool) -> Result<(), Error> {
        let mut fds = vec![self.stats.fd()];
        let ports = if let Some(devices) = &self.config.devices {
            PortSetup::Devices(devices.clone())
        } else if self.config.packet_sockets {
            PortSetup::PacketSockets
        } else {
            fds.push(self.umem.fd());
            PortSetup::Sockets {
                frames: self.config.frames,
                frame_size: self.config.frame_size,
                holder: self.holder,
            }
        };
        let setup = Setup {
            batch: self.config.batch,
            idle: self.config.idle,
            core: self.config.core,
            restarted: is_restart,
            ports,
        };
        process.ask(&Request::Setup(setup), &fds)
    }

    pub(super) fn kill_process(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
            self.facts.set_pid(0);
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.kill_process();
    }
}
