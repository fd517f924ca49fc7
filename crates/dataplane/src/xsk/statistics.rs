//! What the kernel counts at a socket.

use std::io;
use std::os::fd::BorrowedFd;

use serde::Serialize;

use crate::sys;

/// What the kernel counted at a socket (`XDP_STATISTICS`), in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct XskStatistics {
    /// Dropped on receive: longer than a frame, or no frame in the fill ring.
    pub rx_dropped: u64,
    /// Dropped on receive because the worker had not emptied the RX ring.
    pub rx_ring_full: u64,
    /// Times the fill ring was found empty.
    pub fill_ring_empty: u64,
    /// Descriptors in the fill ring that the kernel refused.
    pub rx_invalid: u64,
    /// Descriptors in the TX ring that the kernel refused.
    pub tx_invalid: u64,
}

impl XskStatistics {
    pub(crate) fn read(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let counted: libc::xdp_statistics =
            sys::get_option(socket, libc::SOL_XDP, libc::XDP_STATISTICS)?;
        Ok(Self {
            rx_dropped: counted.rx_dropped,
            rx_ring_full: counted.rx_ring_full,
            fill_ring_empty: counted.rx_fill_ring_empty_descs,
            rx_invalid: counted.rx_invalid_descs,
            tx_invalid: counted.tx_invalid_descs,
        })
    }
}
