//! The coded part of a packet.

use crate::datagram::Datagram;

/// An IP packet without the fields that routers change: time to live, traffic class, and the header
/// checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit<'f> {
    start: [u8; 40],
    start_len: usize,
    rest: &'f [u8],
}

impl<'f> Unit<'f> {
    /// Makes the unit of the packet that contains `datagram`.
    pub(super) fn of(datagram: &Datagram, frame: &'f [u8]) -> Option<Self> {
        let packet = frame.get(datagram.l3..datagram.end)?;
        let start_len = if datagram.is_ipv6 { 40 } else { 20 };
        let (head, rest) = packet.split_at_checked(start_len)?;
        let mut start = [0; 40];
        start[..start_len].copy_from_slice(head);
        if datagram.is_ipv6 {
            start[0] &= 0xf0;
            start[1] &= 0x0f;
            start[7] = 0;
        } else {
            start[1] = 0;
            start[8] = 0;
            start[10..12].fill(0);
        }
        Some(Self {
            start,
            start_len,
            rest,
        })
    }

    /// Returns the bytes of the unit, in two parts.
    pub(super) fn parts(&self) -> [&[u8]; 2] {
        [&self.start[..self.start_len], self.rest]
    }
}
