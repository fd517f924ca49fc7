//! `timestamp`: appends to the UDP payload when the packet came and when it goes.

use myelin_packet::checksum;

use crate::datagram::Datagram;
use crate::{Emitter, Function, Packet, Verdict};

/// Bytes that are appended: receive time and send time, each a big-endian count of nanoseconds.
pub const STAMPS_LEN: usize = 16;
/// Longest IP packet that may leave, bytes.
pub const MTU: usize = 1500;

/// Appends two times of CLOCK_MONOTONIC to the UDP payload, CALVIN's ATS: that of the front door,
/// and that at which this function handles the packet. Lengths and checksums follow.
///
/// Ethernet padding is used up before the frame grows. A packet is dropped when it is not UDP, is a
/// fragment, would be longer than [`MTU`] allows or than its buffer, or holds something behind its
/// datagram (RFC 9868), which would have to move. A UDP checksum of zero means none and stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timestamp {
    now_ns: u64,
}

impl Function for Timestamp {
    fn needs_time(&self) -> bool {
        true
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        match append(packet, self.now_ns) {
            Some(()) => Verdict::Forward,
            None => Verdict::Drop,
        }
    }
}

/// Appends the times; `None` when that cannot be.
fn append(packet: &mut Packet<'_>, now_ns: u64) -> Option<()> {
    // The times are too short for wider registers.
    let mut datagram = Datagram::of(packet, checksum::sum).ok()?;
    if datagram.ip_len() + STAMPS_LEN > MTU {
        return None;
    }
    let mut stamps = [0; STAMPS_LEN];
    stamps[..8].copy_from_slice(&packet.meta().stamp_ns.to_be_bytes());
    stamps[8..].copy_from_slice(&now_ns.to_be_bytes());
    datagram.append(packet, &stamps)
}
