//! The control thread: does what the agent asks, and has the loop make what is ready.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use myelin_functions::States;
use nix::sys::signalfd::SignalFd;

use super::borrower;
use super::changes::{Change, Outbox};
use crate::control::{Reply, Request, receive_request, send_reply};
use crate::flows;
use crate::named;
use crate::ring_port::RingPort;
use crate::segment::Segment;
use crate::stats::StatsFile;
use crate::sys;
use crate::umem::FrameMemory;
use crate::worker_port::WorkerPort;
use crate::xdp_port::XdpPort;

/// How long a packet that passed the front door may take to appear in a ring: a receive poll under way on another core.
const STRAGGLERS: Duration = Duration::from_millis(5);

/// The thread that listens.
pub(super) struct Control {
    pub(super) socket: OwnedFd,
    pub(super) signals: SignalFd,
    pub(super) memory: &'static FrameMemory,
    pub(super) stats: StatsFile,
    /// Of the functions in the loop; this thread only hands them to further functions, and frees them.
    pub(super) states: States,
    pub(super) outbox: Outbox,
}

impl Control {
    /// Until the agent or a signal ends the worker.
    pub(super) fn serve(mut self) {
        let mut fds = [self.socket.as_fd(), self.signals.as_fd()].map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        loop {
            if sys::poll(&mut fds, None).is_err() {
                return;
            }
            if fds[1].revents != 0 {
                let _ = self.outbox.change(Change::Stop);
                return;
            }
            if fds[0].revents == 0 {
                continue;
            }
            match receive_request(self.socket.as_fd()) {
                Ok(Some((request, fds))) => {
                    let stop = request.body == Request::Shutdown;
                    let reply = self.obey(request.body, fds);
                    // When the agent is gone the next receive tells.
                    let _ = send_reply(self.socket.as_fd(), request.number, &reply);
                    if stop {
                        return;
                    }
                }
                // Without an agent only the signal is left.
                Ok(None) | Err(_) => fds[0].fd = -1,
            }
        }
    }

    fn obey(&mut self, request: Request, mut fds: Vec<OwnedFd>) -> Reply {
        match request {
            Request::Setup(_) => Err("the worker is set up already".into()),
            Request::AddSocket { id, info, succeeds } => {
                let fd = fds.pop().ok_or("no descriptor came with the socket")?;
                let borrower = borrower(id)?;
                if succeeds {
                    self.memory.take_back_all_but(borrower, std::iter::empty());
                }
                let port = XdpPort::new(fd, &info, borrower, self.memory)
                    .map_err(|error| error.to_string())?;
                let port = Box::new(WorkerPort::Xdp(port));
                self.outbox.change(Change::AddPort(id, port))
            }
            Request::AddRing { id, side } => {
                let (Some(bell), Some(ring)) = (fds.pop(), fds.pop()) else {
                    return Err("the ring came without its descriptors".into());
                };
                let port = RingPort::new(ring, bell, side, borrower(id)?, self.memory)
                    .map_err(|error| error.to_string())?;
                let port = Box::new(WorkerPort::Ring(port));
                self.outbox.change(Change::AddPort(id, port))
            }
            Request::TakeFrames { id } => self.outbox.change(Change::TakeFramesOf(borrower(id)?)),
            Request::Grant { id, frames } => {
                let change = Change::Grant(borrower(id)?, frames as usize);
                self.outbox.change(change)
            }
            Request::RemoveSocket { id } => {
                let borrower = borrower(id)?;
                // Closes the socket; only then are the frames in it nobody's.
                self.outbox.change(Change::RemovePort(id))?;
                self.outbox.change(Change::TakeFramesOf(borrower))
            }
            Request::AddChain { chain, block } => {
                let counters = self
                    .stats
                    .chain_counters(block)
                    .map_err(|e| e.to_string())?;
                counters.succeed();
                let segments = Segment::build(&chain, &Arc::new(counters), &mut self.states)?;
                self.outbox.change(Change::AddSegments(segments))
            }
            Request::RemoveChain { spi, generation } => {
                std::thread::sleep(STRAGGLERS);
                self.outbox.outlast_shaper(spi, generation)?;
                let removed = self.outbox.change(Change::RemoveSegments(spi, generation));
                self.states.prune();
                removed
            }
            Request::ReadFlows {
                spi,
                generation,
                position,
            } => {
                let fd = fds.pop().ok_or("no file came for the flows")?;
                let place = (spi, generation, position);
                flows::write(&mut File::from(fd), |page| {
                    self.outbox.read_flows(place, page)
                })
            }
            Request::ReadCounters { spi, generation } => {
                let fd = fds.pop().ok_or("no file came for the counters")?;
                let told = self.outbox.read_counters(spi, generation)?;
                named::write(&mut File::from(fd), &told)
            }
            Request::SetIdle(idle) => self.outbox.change(Change::SetIdle(idle)),
            Request::Start => self.outbox.change(Change::Start),
            Request::Shutdown => self.outbox.change(Change::Stop),
        }
    }
}
