//! The interface between a worker process and the mechanism of its ports: AF_XDP and rings
//! ([`Sockets`](crate::Sockets)), or a library that drives devices.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::door::ChainRedirect;
use crate::port::Port;
use crate::protocol::{NewPort, PortSetup};
use crate::stats::DoorCounters;
use crate::umem::FrameMemory;

/// The frame memory of a worker process, and the means to open its ports.
pub trait Driver: Sized + 'static {
    /// The port type.
    type Port: DrivenPort;

    /// Sets up the frame memory and the initial ports, in the thread of the loop. That thread must
    /// stay pinned to `core`.
    ///
    /// # Errors
    /// A text for the agent's report.
    fn start(setup: &PortSetup, core: Option<u32>, fds: Vec<OwnedFd>) -> Result<Self, String>;

    /// Returns the frame memory.
    fn memory(&self) -> &'static FrameMemory;

    /// Returns the initial ports, in the order of their indices.
    fn first_ports(&mut self) -> Vec<Self::Port> {
        Vec::new()
    }

    /// Opens another port, in the control thread.
    ///
    /// # Errors
    /// A text for the agent's report.
    fn open(_port: NewPort, _memory: &'static FrameMemory) -> Result<Self::Port, String> {
        Err("this worker drives devices and opens no other port".into())
    }

    /// Stops the driver after all ports are closed.
    fn stop(self) {}
}

/// A port of a worker process.
pub trait DrivenPort: Port + Send + 'static {
    /// Longest sleep of an idle loop, if an arriving packet cannot wake the loop.
    const MAX_SLEEP: Option<Duration> = None;

    /// Closes the port. Returns when no other thread or kernel context uses its frames. Runs in the
    /// control thread.
    fn close(self);

    /// Redirects matching packets of this port to a generation of a chain. Other generations of the
    /// chain get no packets.
    ///
    /// # Errors
    /// The port has no front door, or another chain matches the packets.
    fn redirect(&mut self, _chain: &ChainRedirect, _counters: DoorCounters) -> Result<(), String> {
        Err("the front door of this worker is in the kernel".into())
    }

    /// Stops the redirect of packets to a chain.
    fn stop_redirect(&mut self, _spi: u32) {}
}
