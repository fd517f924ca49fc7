//! The rings of a socket, mapped.

use std::os::fd::BorrowedFd;

use super::{Role, XskInfo};
use crate::error::Error;
use crate::ring::{Consumer, Descriptor, Layout, Producer, Slot};
use crate::shm::Mapping;
use crate::sys;

/// Our ends of a socket's rings.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) transmit: Producer<Descriptor>,
    pub(crate) completion: Consumer<u64>,
    /// Fill and RX; sockets that only transmit have none.
    pub(crate) receive: Option<(Producer<u64>, Consumer<Descriptor>)>,
}

impl Rings {
    /// Maps the rings of a socket. Two processes may map them, but only one may move them.
    pub(crate) fn map(fd: BorrowedFd<'_>, info: &XskInfo) -> Result<Self, Error> {
        let failed = |step| {
            move |source| Error::Socket {
                interface: info.interface.clone(),
                queue: info.queue,
                step,
                source,
            }
        };
        let offsets: libc::xdp_mmap_offsets =
            sys::get_option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
                .map_err(failed("read the ring offsets"))?;
        let map = |layout: Layout, len: usize, page_offset: u64, step| {
            Mapping::new(fd, page_offset, len, true)
                .map(|mapping| (mapping, layout))
                .map_err(failed(step))
        };
        let size = info.ring_size;
        let descriptors = |ring, page_offset, step| {
            let layout = layout(ring);
            map(layout, layout.len::<Descriptor>(size), page_offset, step)
        };
        let addresses = |ring, page_offset, step| {
            let layout = layout(ring);
            map(layout, layout.len::<u64>(size), page_offset, step)
        };
        let (mapping, at) = descriptors(
            &offsets.tx,
            libc::XDP_PGOFF_TX_RING as u64,
            "map the TX ring",
        )?;
        let transmit = producer(mapping, at, size, "TX")?;
        let (mapping, at) = addresses(
            &offsets.cr,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING,
            "map the completion ring",
        )?;
        let completion = consumer(mapping, at, size, "completion")?;
        let receive = if info.role == Role::Ingress {
            let (mapping, at) = addresses(
                &offsets.fr,
                libc::XDP_UMEM_PGOFF_FILL_RING,
                "map the fill ring",
            )?;
            let fill = producer(mapping, at, size, "fill")?;
            let (mapping, at) = descriptors(
                &offsets.rx,
                libc::XDP_PGOFF_RX_RING as u64,
                "map the RX ring",
            )?;
            Some((fill, consumer(mapping, at, size, "RX")?))
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

fn layout(offsets: &libc::xdp_ring_offset) -> Layout {
    Layout {
        producer: offsets.producer as usize,
        consumer: offsets.consumer as usize,
        flags: offsets.flags as usize,
        slots: offsets.desc as usize,
    }
}

fn producer<T: Slot>(
    mapping: Mapping,
    at: Layout,
    size: u32,
    ring: &'static str,
) -> Result<Producer<T>, Error> {
    Producer::new(mapping, at, size).ok_or(Error::Ring { ring })
}

fn consumer<T: Slot>(
    mapping: Mapping,
    at: Layout,
    size: u32,
    ring: &'static str,
) -> Result<Consumer<T>, Error> {
    Consumer::new(mapping, at, size).ok_or(Error::Ring { ring })
}
