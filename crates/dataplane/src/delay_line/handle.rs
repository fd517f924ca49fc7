//! The agent's handle of a delay line. It starts, restarts and stops the worker.

use std::sync::Arc;
use std::time::Duration;

use super::table::DelayTable;
use crate::chain::SocketId;
use crate::config::WorkerConfig;
use crate::error::Error;
use crate::facts::WorkerFacts;
use crate::process::WorkerProcess;
use crate::protocol::{PortSetup, Request, Setup};
use crate::umem::Umem;
use crate::xsk::{Successor, Xsk};

/// The number of the only socket.
const SOCKET: SocketId = SocketId(0);
/// Longest time for a stop.
const STOP_TIME: Duration = Duration::from_secs(5);

/// A running delay line. The handle keeps the UMEM, the socket and the table, so profiles and
/// counters survive a restart. Packets that wait in the worker are lost with its process.
///
/// Dropping the handle kills the worker. If the agent process dies, the worker keeps delaying
/// packets until it gets SIGTERM. While no worker runs, packets of the links fill the socket's ring
/// and are then dropped.
#[derive(Debug)]
pub struct DelayLine {
    config: WorkerConfig,
    umem: Umem,
    table: Arc<DelayTable>,
    facts: Arc<WorkerFacts>,
    socket: Option<Xsk>,
    /// The settings of a socket that closed with the worker.
    successor: Option<Successor>,
    process: Option<WorkerProcess>,
}

impl DelayLine {
    /// Starts a delay line without directions. `open` opens its socket over the UMEM. The program
    /// of the configuration must call [`delay_line_main`](crate::delay_line_main). `batch`,
    /// `devices` and `packet_sockets` are unused.
    ///
    /// # Errors
    /// The socket, the memory or the process cannot be made. Nothing remains.
    pub fn spawn<E: From<Error>>(
        config: WorkerConfig,
        open: impl FnOnce(&Umem) -> Result<Xsk, E>,
    ) -> Result<Self, E> {
        let umem = Umem::create(config.frames, config.frame_size)?;
        let mut line = Self {
            socket: Some(open(&umem)?),
            umem,
            table: Arc::new(DelayTable::create()?),
            facts: WorkerFacts::new(config.core, config.idle),
            config,
            successor: None,
            process: None,
        };
        line.start(false)?;
        Ok(line)
    }

    /// Returns the table of directions.
    pub fn table(&self) -> Arc<DelayTable> {
        Arc::clone(&self.table)
    }

    /// Returns the worker's state, which any thread may read at any time.
    pub fn facts(&self) -> Arc<WorkerFacts> {
        Arc::clone(&self.facts)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Returns the packet memory.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Returns the process number; 0 after a failed restart.
    pub fn pid(&self) -> u32 {
        self.facts.pid()
    }

    /// Returns the number of packets that the socket dropped because its ring was full.
    pub fn overflowed(&self) -> u64 {
        self.facts.overflowed(SOCKET).unwrap_or(0)
    }

    /// Returns whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(WorkerProcess::is_alive)
    }

    /// Kills the process if it runs, and starts another one with the same socket and directions.
    ///
    /// # Errors
    /// The new process does not start. No process remains.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.kill_process();
        if self.socket.as_ref().is_some_and(Xsk::needs_successor) {
            self.facts.forget_socket(SOCKET);
            self.successor = self.socket.take().and_then(Xsk::into_successor);
        }
        let started = self.start(true);
        // Count after the process number has changed, so that a reader of the count sees the number
        // of the new process.
        self.facts.count_restart();
        started
    }

    /// Asks the worker to exit. Kills the worker after a timeout.
    ///
    /// # Errors
    /// The worker did not answer.
    pub fn shutdown(mut self) -> Result<(), Error> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let answer = process.ask(&Request::Shutdown, &[]);
        process.wait(STOP_TIME);
        answer
    }

    fn start(&mut self, is_restart: bool) -> Result<(), Error> {
        let mut process = WorkerProcess::spawn(&self.config)?;
        if let Err(error) = self.hand_over(&mut process, is_restart) {
            process.kill();
            return Err(error);
        }
        self.facts.set_pid(process.pid());
        self.process = Some(process);
        Ok(())
    }

    /// Sends a new process its memory and its socket.
    fn hand_over(&mut self, process: &mut WorkerProcess, is_restart: bool) -> Result<(), Error> {
        let setup = Setup {
            batch: self.config.batch,
            idle: self.config.idle,
            core: self.config.core,
            restarted: is_restart,
            ports: PortSetup::DelayLine {
                frames: self.config.frames,
                frame_size: self.config.frame_size,
            },
        };
        let fds = [self.table.fd(), self.umem.fd()];
        process.ask(&Request::Setup(setup), &fds)?;
        if let Some(successor) = &self.successor {
            let mut socket = successor.open(&self.umem, None)?;
            process.hand_over(SOCKET, &mut socket, true)?;
            self.socket = Some(socket);
            self.successor = None;
        } else if let Some(socket) = &mut self.socket {
            process.hand_over(SOCKET, socket, false)?;
        }
        if let Some(socket) = &self.socket {
            self.facts.add_socket(SOCKET, socket.shared_fd());
        }
        process.ask(&Request::Start, &[])
    }

    fn kill_process(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
            self.facts.set_pid(0);
        }
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.kill_process();
    }
}
