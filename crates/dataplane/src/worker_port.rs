//! The ports of a worker with a UMEM: AF_XDP sockets, rings to other workers, and memory.

use std::os::fd::{OwnedFd, RawFd};

use crate::door::ChainRedirect;
use crate::driver::{DrivenPort, Driver};
use crate::error::Error;
use crate::port::{Buffer, FramePool, Port};
use crate::protocol::{NewPort, NewPortKind, PortSetup};
use crate::replay_port::ReplayPort;
use crate::ring_port::RingPort;
use crate::stats::DoorCounters;
use crate::umem::{Borrower, FrameMemory, Umem};
use crate::xdp_port::XdpPort;

/// AF_XDP sockets, rings and ports in memory over a [`Umem`].
#[derive(Debug)]
pub struct Sockets {
    memory: &'static FrameMemory,
}

impl Driver for Sockets {
    type Port = WorkerPort;

    fn start(setup: &PortSetup, _core: Option<u32>, mut fds: Vec<OwnedFd>) -> Result<Self, String> {
        let &PortSetup::Sockets {
            frames,
            frame_size,
            holder,
        } = setup
        else {
            return Err("this program drives no devices".into());
        };
        let umem = fds.pop().ok_or("the request has no UMEM")?;
        let holder = holder.map(Borrower::of).transpose()?;
        let memory = Umem::open(umem, frames, frame_size)
            .and_then(|umem| match holder {
                Some(holder) => FrameMemory::map_as(&umem, holder),
                None => FrameMemory::map(&umem),
            })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            memory: Box::leak(Box::new(memory)),
        })
    }

    fn memory(&self) -> &'static FrameMemory {
        self.memory
    }

    fn open(port: NewPort, memory: &'static FrameMemory) -> Result<WorkerPort, String> {
        let NewPort { borrower, kind } = port;
        let opened: Result<_, Error> = match kind {
            NewPortKind::Socket {
                fd,
                info,
                replaces_closed_socket,
            } => {
                if replaces_closed_socket {
                    memory.take_back_all_but(borrower, std::iter::empty());
                }
                XdpPort::new(fd, &info, borrower, memory).map(WorkerPort::Xdp)
            }
            NewPortKind::Ring {
                ring,
                wake_fd,
                side,
            } => RingPort::new(ring, wake_fd, side, borrower, memory).map(WorkerPort::Ring),
            NewPortKind::Replay(replay) => {
                // The frames of the port of an earlier process are free.
                memory.take_back_all_but(borrower, std::iter::empty());
                return ReplayPort::new(borrower, memory, replay).map(WorkerPort::Replay);
            }
            NewPortKind::PacketSocket { .. } => {
                return Err("this worker has no frames for super-packets".into());
            }
        };
        opened.map_err(|error| error.to_string())
    }
}

/// A port of a worker process. A branch, which the processor predicts, selects the kind.
#[derive(Debug)]
pub enum WorkerPort {
    /// An AF_XDP socket.
    Xdp(XdpPort),
    /// An end of a ring.
    Ring(RingPort),
    /// Packets from memory.
    Replay(ReplayPort),
}

impl DrivenPort for WorkerPort {
    fn close(self) {
        match self {
            Self::Xdp(port) => port.close(),
            Self::Ring(port) => drop(port),
            Self::Replay(port) => port.close(),
        }
    }

    fn redirect(&mut self, chain: &ChainRedirect, counters: DoorCounters) -> Result<(), String> {
        match self {
            Self::Replay(port) => port.redirect(chain, counters),
            Self::Xdp(_) | Self::Ring(_) => {
                Err("the front door of this worker is in the kernel".into())
            }
        }
    }

    fn stop_redirect(&mut self, spi: u32) {
        if let Self::Replay(port) = self {
            port.stop_redirect(spi);
        }
    }
}

macro_rules! dispatch {
    ($port:expr, $inner:ident => $call:expr) => {
        match $port {
            WorkerPort::Xdp($inner) => $call,
            WorkerPort::Ring($inner) => $call,
            WorkerPort::Replay($inner) => $call,
        }
    };
}

impl Port for WorkerPort {
    #[inline]
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
        dispatch!(self, port => port.poll_arrivals(limit))
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        dispatch!(self, port => port.take(memory))
    }

    #[inline]
    fn release(&mut self) {
        dispatch!(self, port => port.release());
    }

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        dispatch!(self, port => port.transmit(memory, buffer))
    }

    #[inline]
    fn transmit_stamped(
        &mut self,
        memory: &FrameMemory,
        buffer: Buffer,
        stamp_ns: u64,
    ) -> Result<(), Buffer> {
        dispatch!(self, port => port.transmit_stamped(memory, buffer, stamp_ns))
    }

    #[inline]
    fn flush(&mut self, memory: &FrameMemory) -> u64 {
        dispatch!(self, port => port.flush(memory))
    }

    #[inline]
    fn is_backlogged(&self) -> bool {
        dispatch!(self, port => port.is_backlogged())
    }

    #[inline]
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        dispatch!(self, port => port.reclaim(memory, pool));
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        dispatch!(self, port => port.refill(memory, pool))
    }

    #[inline]
    fn count_received(&self) -> u32 {
        dispatch!(self, port => port.count_received())
    }

    fn readable_fd(&self) -> Option<RawFd> {
        dispatch!(self, port => port.readable_fd())
    }

    fn arm(&mut self) -> bool {
        dispatch!(self, port => port.arm())
    }

    fn disarm(&mut self) {
        dispatch!(self, port => port.disarm());
    }

    #[inline]
    fn busy_poll(&mut self) {
        dispatch!(self, port => port.busy_poll());
    }

    fn count_invalid(&self) -> u64 {
        dispatch!(self, port => port.count_invalid())
    }

    fn count_dropped_fragments(&self) -> u64 {
        dispatch!(self, port => port.count_dropped_fragments())
    }
}
