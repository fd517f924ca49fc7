//! Reads how many packets are in a ring of a shared core, without a system call.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::ring_port::{RingStamp, WORDS};
use crate::spsc::{RingFile, SharedObserver};
use crate::xsk::ReceiveObserver;

/// What a ring of a shared core is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingKind {
    /// The RX ring of an AF_XDP socket.
    Socket {
        /// Entries of the ring.
        entries: u32,
    },
    /// A ring between two processes of a pipeline.
    Pipeline,
    /// A replay port, which always has this number of packets.
    Replay {
        /// Number of packets.
        packets: u32,
    },
}

/// An observer of a ring.
#[derive(Debug)]
pub(super) enum RingSensor {
    /// The descriptor is readable while the ring has packets.
    Socket(ReceiveObserver, OwnedFd),
    Pipeline(SharedObserver),
    Replay(u32),
}

impl RingSensor {
    pub(super) fn open(kind: RingKind, fd: OwnedFd) -> Result<Self, String> {
        match kind {
            RingKind::Socket { entries } => ReceiveObserver::map(fd.as_fd(), entries)
                .map(|observer| Self::Socket(observer, fd))
                .map_err(|error| error.to_string()),
            RingKind::Pipeline => RingFile::open(fd)
                .and_then(|ring| ring.observer())
                .map(Self::Pipeline)
                .map_err(|error| error.to_string()),
            RingKind::Replay { packets } => Ok(Self::Replay(packets)),
        }
    }

    /// The lower halves of the numbers of packets written and read.
    #[inline]
    pub(super) fn indices(&self) -> (u32, u32) {
        match self {
            Self::Socket(observer, _) => observer.indices(),
            Self::Replay(packets) => (*packets, 0),
            Self::Pipeline(observer) => {
                // The consumer first: it is never ahead of the producer.
                let read = observer.dequeued() as u32;
                (observer.enqueued() as u32, read)
            }
        }
    }

    /// The time at which the oldest packet came to its chain, ns, if the ring tells it.
    #[inline]
    pub(super) fn stamp_ns(&self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Pipeline(observer) => {
                let word = observer.oldest::<WORDS>(RingStamp::WORD)?;
                RingStamp::time_ns(word, now_ns)
            }
            Self::Socket(..) | Self::Replay(_) => None,
        }
    }

    /// The descriptor that is readable while the ring has packets. Between the tasks of one core no
    /// ring needs one.
    pub(super) fn readable_fd(&self) -> Option<RawFd> {
        match self {
            Self::Socket(_, fd) => Some(fd.as_raw_fd()),
            Self::Pipeline(_) | Self::Replay(_) => None,
        }
    }
}

/// An observer of a ring of another process, for a process that takes no turns.
#[derive(Debug)]
pub struct RingObserver(RingSensor);

impl RingObserver {
    /// Maps the ring behind the descriptor.
    ///
    /// # Errors
    /// The descriptor is not such a ring, or the kernel is older than Linux 6.4 and refuses to map
    /// the ring of a socket that is in use.
    pub fn open(kind: RingKind, fd: OwnedFd) -> Result<Self, String> {
        RingSensor::open(kind, fd).map(Self)
    }

    /// The lower halves of the numbers of packets written and read.
    #[inline]
    pub fn indices(&self) -> (u32, u32) {
        self.0.indices()
    }
}
