//! The mapped rings of a socket.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::sockopt::xdp_mmap_offsets;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpRingOffset,
};

use super::{Role, XskConfig};
use crate::error::Error;
use crate::shm::Mapping;
use crate::xsk_ring::{Descriptor, Layout, Slot, XskConsumer, XskProducer};

/// The worker's ends of a socket's rings.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) transmit: XskProducer<Descriptor>,
    pub(crate) completion: XskConsumer<u64>,
    /// Fill and RX rings; `None` for a socket that only transmits.
    pub(crate) receive: Option<(XskProducer<u64>, XskConsumer<Descriptor>)>,
}

impl Rings {
    /// Maps the rings of a socket. Several processes may map them, but only one may move entries.
    pub(crate) fn map(fd: BorrowedFd<'_>, config: &XskConfig) -> Result<Self, Error> {
        let socket = (fd, config);
        let offsets = xdp_mmap_offsets(fd).map_err(config.failed("read the ring offsets"))?;
        let name = ("TX", "map the TX ring");
        let place = (&offsets.tx, XDP_PGOFF_TX_RING);
        let transmit = ring::<Descriptor, _>(socket, name, place, XskProducer::new)?;
        let name = ("completion", "map the completion ring");
        let place = (&offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING);
        let completion = ring::<u64, _>(socket, name, place, XskConsumer::new)?;
        let receive = if config.role == Role::Ingress {
            let name = ("fill", "map the fill ring");
            let place = (&offsets.fr, XDP_UMEM_PGOFF_FILL_RING);
            let fill = ring::<u64, _>(socket, name, place, XskProducer::new)?;
            let name = ("RX", "map the RX ring");
            let place = (&offsets.rx, XDP_PGOFF_RX_RING);
            let arrivals = ring::<Descriptor, _>(socket, name, place, XskConsumer::new)?;
            Some((fill, arrivals))
        } else {
            None
        };
        Ok(Self {
            transmit,
            completion,
            receive,
        })
    }
}

/// Reads the indices of a socket's RX ring, for a process that does not receive.
#[derive(Debug)]
pub(crate) struct ReceiveObserver(XskConsumer<Descriptor>);

impl ReceiveObserver {
    /// Maps the RX ring of a bound socket, which Linux allows since 6.4.
    pub(crate) fn map(fd: BorrowedFd<'_>, entries: u32) -> io::Result<Self> {
        let offsets = xdp_mmap_offsets(fd)?;
        let layout = layout_of(&offsets.rx);
        let len = layout.len::<Descriptor>(entries);
        let mapping = Mapping::new(fd, XDP_PGOFF_RX_RING, len, true)?;
        let ring = XskConsumer::new(mapping, layout, entries);
        ring.map(Self).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// The numbers of packets that the kernel has written and the receiver has read, modulo 2^32.
    #[inline]
    pub(crate) fn indices(&self) -> (u32, u32) {
        self.0.shared_indices()
    }
}

fn layout_of(parts: &XdpRingOffset) -> Layout {
    Layout {
        producer: parts.producer as usize,
        consumer: parts.consumer as usize,
        // Every supported kernel reports the offset of the flags.
        flags: parts.flags.unwrap_or(u64::MAX) as usize,
        slots: parts.desc as usize,
    }
}

/// Maps the worker's end of one ring. The arguments are the name of the ring and of the step, and
/// the offsets of the ring's parts and of its mapping.
fn ring<T: Slot, R>(
    (fd, config): (BorrowedFd<'_>, &XskConfig),
    (ring, step): (&'static str, &'static str),
    (parts, page_offset): (&XdpRingOffset, u64),
    make: impl FnOnce(Mapping, Layout, u32) -> Option<R>,
) -> Result<R, Error> {
    let layout = layout_of(parts);
    let len = layout.len::<T>(config.ring_size);
    let mapping = Mapping::new(fd, page_offset, len, true).map_err(config.failed(step))?;
    make(mapping, layout, config.ring_size).ok_or(Error::Ring { ring })
}
