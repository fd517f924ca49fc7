//! The agent's side of a ring between two workers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::Error;
use crate::ring_port::WORDS;
use crate::spsc::RingFile;

/// A ring and the eventfd that wakes its receiver.
#[derive(Debug)]
pub(crate) struct RingLink {
    pub(crate) ring: RingFile,
    wake_fd: EventFd,
}

impl RingLink {
    /// Makes a ring of `entries` descriptors, a power of two.
    pub(crate) fn create(entries: u32) -> Result<Arc<Self>, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake_fd = EventFd::from_flags(flags).map_err(|errno| Error::Memory {
            what: "eventfd of a ring",
            bytes: size_of::<u64>(),
            source: io::Error::from(errno),
        })?;
        let ring = RingFile::create(entries, WORDS)?;
        Ok(Arc::new(Self { ring, wake_fd }))
    }

    /// Returns the capacity, descriptors.
    pub(crate) fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Returns the number of descriptors in the ring; 0 if the ring cannot be mapped.
    pub(crate) fn occupancy(&self) -> u32 {
        self.ring.observer().map_or(0, |ring| ring.occupancy())
    }

    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.ring.fd(), self.wake_fd.as_fd()]
    }
}
