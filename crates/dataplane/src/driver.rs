//! What a worker process asks of the mechanism behind its ports: AF_XDP and rings ([`Sockets`](crate::Sockets)), or a library that drives devices.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::door::LeadChain;
use crate::port::Port;
use crate::protocol::{NewPort, PortSetup};
use crate::stats::DoorCounters;
use crate::umem::FrameMemory;

/// The packet memory of a worker process, and how its ports come and go.
pub trait Driver: Sized + 'static {
    /// Its ports.
    type Port: DrivenPort;

    /// Gets the packet memory, and the ports that are there from the start, in the thread of the loop. That thread is bound to `core`, and stays so.
    ///
    /// # Errors
    /// The words for the agent.
    fn start(setup: &PortSetup, core: Option<u32>, fds: Vec<OwnedFd>) -> Result<Self, String>;

    /// The packet memory.
    fn memory(&self) -> &'static FrameMemory;

    /// The ports that are there from the start, in the order of their indices.
    fn first_ports(&mut self) -> Vec<Self::Port> {
        Vec::new()
    }

    /// Opens another port, in the control thread.
    ///
    /// # Errors
    /// The words for the agent.
    fn open(_port: NewPort, _memory: &'static FrameMemory) -> Result<Self::Port, String> {
        Err("the ports of this worker are its devices".into())
    }

    /// Ends it, when all ports are closed.
    fn stop(self) {}
}

/// A port of a worker process.
pub trait DrivenPort: Port + Send + 'static {
    /// How long an idle loop may sleep, where an arriving packet wakes nobody.
    const NAP: Option<Duration> = None;

    /// Closes it, and waits until nobody else touches the frames it had. In the control thread.
    fn close(self);

    /// Gives packets that come in here to a generation of a chain from now on; other generations get none.
    ///
    /// # Errors
    /// There is no front door here, or the packets are another chain's.
    fn lead(&mut self, _chain: &LeadChain, _counters: DoorCounters) -> Result<(), String> {
        Err("the front door of this worker is in the kernel".into())
    }

    /// Gives packets that come in here to that chain no longer.
    fn unlead(&mut self, _spi: u32) {}
}
