//! `timestamp`: appends the times of its reception and its departure to the UDP payload.

use myelin_packet::checksum;

use crate::datagram::Datagram;
use crate::{Emitter, Function, Packet, Verdict};

/// Bytes appended: receive time and send time, each a big-endian count of nanoseconds.
pub const STAMPS_LEN: usize = 16;
/// Longest IP packet after the append, bytes.
pub const MTU: usize = 1500;

/// Appends two times of CLOCK_MONOTONIC to the UDP payload, as CALVIN's ATS does: the time at which
/// this function received the packet with its batch, and the time at which the function forwards
/// the packet. Corrects lengths and checksums.
///
/// Overwrites Ethernet padding before the frame grows. Drops a packet that is not UDP, is a
/// fragment, or would exceed [`MTU`] or its buffer. Drops a packet with bytes after its datagram
/// (RFC 9868), because the function would have to move them. A UDP checksum of zero means no
/// checksum and stays zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timestamp {
    received_ns: u64,
    /// `None` in a test without a clock: packets leave at once.
    read_ns: Option<fn() -> u64>,
}

impl Function for Timestamp {
    fn needs_time(&self) -> bool {
        true
    }

    fn set_time(&mut self, now_ns: u64) {
        self.received_ns = now_ns;
    }

    fn set_clock(&mut self, read_ns: fn() -> u64) {
        self.read_ns = Some(read_ns);
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        let sent_ns = self.read_ns.map_or(self.received_ns, |read_ns| read_ns());
        append(packet, self.received_ns, sent_ns).into()
    }
}

/// Appends the two times. Returns `None` if the packet has no room for them.
fn append(packet: &mut Packet<'_>, received_ns: u64, sent_ns: u64) -> Option<()> {
    // Sixteen bytes are too few to profit from wider registers.
    let mut datagram = Datagram::of(packet, checksum::sum).ok()?;
    if datagram.ip_len() + STAMPS_LEN > MTU {
        return None;
    }
    let mut stamps = [0; STAMPS_LEN];
    stamps[..8].copy_from_slice(&received_ns.to_be_bytes());
    stamps[8..].copy_from_slice(&sent_ns.to_be_bytes());
    datagram.append(packet, &stamps)
}
