//! A worker process, and the agent's connection to the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::time::TimeVal;

use crate::chain::SocketId;
use crate::config::WorkerConfig;
use crate::error::Error;
use crate::launch::{ChildLauncher, Launched, Launcher};
use crate::protocol::{PortSetup, Request, Setup, receive_reply, send_request};
use crate::xsk::{Xsk, XskConfig};

/// Longest wait for an answer to all other requests. The worker may be draining a chain.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Longest wait for adding a chain. Compiling tens of thousands of patterns takes seconds, but
/// delays no packet.
const BUILD_TIME: Duration = Duration::from_secs(60);
/// Longest wait for the start of devices and their drivers.
const DEVICE_TIME: Duration = Duration::from_secs(20);

/// A started process, and the agent's connection to the process.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    process: Box<dyn Launched>,
    /// The worker's run id.
    worker: String,
    control: OwnedFd,
    requests: u64,
}

impl WorkerProcess {
    /// Starts the program with one end of a connection as its standard input.
    pub(crate) fn spawn(config: &WorkerConfig) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Spawn {
            exe: config.exe.clone(),
            source,
        };
        let (control, worker_end) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(|errno| failed(errno.into()))?;
        let launcher: &dyn Launcher = config.launcher.as_deref().unwrap_or(&ChildLauncher);
        let process = launcher.launch(config, worker_end).map_err(failed)?;
        Ok(Self {
            process,
            worker: config.run_id.clone(),
            control,
            requests: 0,
        })
    }

    /// Returns the process number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns whether the process runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// Sends a request and waits for the answer. Kills a process that answers too late or with
    /// invalid data, so that it cannot execute the request after this call has failed.
    pub(crate) fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.requests += 1;
        let timeout = match request {
            Request::AddChain { .. } => BUILD_TIME,
            Request::Setup(Setup {
                ports: PortSetup::Devices(_),
                ..
            }) => DEVICE_TIME,
            _ => ANSWER_TIME,
        };
        let receive_timeout = TimeVal::new(timeout.as_secs().cast_signed(), 0);
        let reply = setsockopt(&self.control, sockopt::ReceiveTimeout, &receive_timeout)
            .map_err(io::Error::from)
            .and_then(|()| send_request(self.control.as_fd(), self.requests, request, fds))
            .and_then(|()| {
                receive_reply(self.control.as_fd(), self.requests).inspect_err(|_| self.kill())
            });
        match reply {
            Ok(Ok(())) => Ok(()),
            Ok(Err(message)) => Err(Error::Refused {
                worker: self.worker.clone(),
                what: describe(request),
                message,
            }),
            Err(source) => Err(Error::Control {
                worker: self.worker.clone(),
                pid: self.process.pid(),
                what: describe(request),
                source,
            }),
        }
    }

    /// Sends a socket. After the worker has mapped the rings, binds the socket and redirects
    /// packets to the socket.
    pub(crate) fn hand_over(
        &mut self,
        id: SocketId,
        xsk: &mut Xsk,
        replaces_closed_socket: bool,
    ) -> Result<(), Error> {
        let info = xsk.info().clone();
        let request = Request::AddSocket {
            id,
            info,
            replaces_closed_socket,
        };
        self.ask(&request, &[xsk.fd()])?;
        xsk.bind_if_unbound()?;
        xsk.redirect()
    }

    /// Waits for the process to end. Kills the process after `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if !self.is_alive() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}

/// Describes a request for an error message.
pub(crate) fn describe(request: &Request) -> String {
    match request {
        Request::Setup(_) => "set up".into(),
        Request::AddSocket { info, .. } => {
            let XskConfig {
                interface, queue, ..
            } = &info.config;
            format!("add the socket of {interface} queue {queue}")
        }
        Request::AddPacketSocket { id, .. } => format!("add packet socket {}", id.0),
        Request::AddReplay { id, .. } => format!("add replay port {}", id.0),
        Request::RemoveSocket { id } => format!("remove socket {}", id.0),
        Request::AddRing { id, .. } => format!("add ring {}", id.0),
        Request::TakeFrames { id } => format!("take the frames of ring or process {}", id.0),
        Request::Grant { id, frames } => format!("grant {frames} frames to process {}", id.0),
        Request::AddChain { chain, .. } => {
            format!("add chain {} generation {}", chain.spi, chain.generation)
        }
        Request::RemoveChain { spi, generation } => {
            format!("remove chain {spi} generation {generation}")
        }
        Request::RedirectChain { chain, .. } => {
            format!(
                "redirect packets to chain {} generation {}",
                chain.spi, chain.generation
            )
        }
        Request::StopRedirect { spi, .. } => format!("stop the redirect to chain {spi}"),
        Request::ReadFlows { position, .. } => {
            format!("read the flows of the function at position {position}")
        }
        Request::ReadCounters { spi, .. } => {
            format!("read the counters of chain {spi}")
        }
        Request::SetIdle(_) => "change the idle mode".into(),
        Request::Share(_) => "share the core".into(),
        Request::Start => "start".into(),
        Request::Shutdown => "shut down".into(),
    }
}
