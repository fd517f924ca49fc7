//! What a worker process has for ports: AF_XDP sockets, and rings to other workers.

use std::os::fd::RawFd;

use crate::port::{Buffer, FramePool, Port};
use crate::ring_port::RingPort;
use crate::umem::FrameMemory;
use crate::xdp_port::XdpPort;

/// A port of a worker process. Told apart by a branch that is always predicted rather than by a dynamic call.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost every packet an access; there are few ports"
)]
pub(crate) enum WorkerPort {
    /// An AF_XDP socket.
    Xdp(XdpPort),
    /// An end of a ring.
    Ring(RingPort),
}

impl WorkerPort {
    /// Closes it and waits until the kernel no longer touches the frames it had.
    pub(crate) fn close(self) {
        match self {
            Self::Xdp(port) => port.close(),
            Self::Ring(port) => drop(port),
        }
    }
}

macro_rules! either {
    ($port:expr, $inner:ident => $call:expr) => {
        match $port {
            WorkerPort::Xdp($inner) => $call,
            WorkerPort::Ring($inner) => $call,
        }
    };
}

impl Port for WorkerPort {
    #[inline]
    fn arrived(&mut self, limit: u32) -> u32 {
        either!(self, port => port.arrived(limit))
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        either!(self, port => port.take(memory))
    }

    #[inline]
    fn release(&mut self) {
        either!(self, port => port.release());
    }

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        either!(self, port => port.transmit(memory, buffer))
    }

    #[inline]
    fn flush(&mut self, memory: &FrameMemory) -> u64 {
        either!(self, port => port.flush(memory))
    }

    #[inline]
    fn is_backlogged(&self) -> bool {
        either!(self, port => port.is_backlogged())
    }

    #[inline]
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        either!(self, port => port.reclaim(memory, pool));
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        either!(self, port => port.refill(memory, pool))
    }

    #[inline]
    fn waiting(&self) -> u32 {
        either!(self, port => port.waiting())
    }

    fn readable_fd(&self) -> Option<RawFd> {
        either!(self, port => port.readable_fd())
    }

    fn arm(&mut self) -> bool {
        either!(self, port => port.arm())
    }

    fn disarm(&mut self) {
        either!(self, port => port.disarm());
    }

    #[inline]
    fn busy_poll(&mut self) {
        either!(self, port => port.busy_poll());
    }

    fn invalid(&self) -> u64 {
        either!(self, port => port.invalid())
    }
}
