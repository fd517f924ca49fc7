//! `timestamp`: appends to the UDP payload when the packet came and when it goes.

use myelin_packet::Headers;
use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;

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

/// Appends the times and corrects the headers; `None` when that cannot be, with the packet in any
/// state.
fn append(packet: &mut Packet<'_>, now_ns: u64) -> Option<()> {
    let headers = *packet.headers();
    if !headers.flags.has_ports() || headers.protocol != UDP {
        return None;
    }
    let (l3, l4, end) = (
        usize::from(headers.l3),
        usize::from(headers.l4),
        usize::from(headers.end),
    );
    let new_end = end + STAMPS_LEN;
    if new_end - l3 > MTU {
        return None;
    }
    if let Some(missing) = new_end.checked_sub(packet.len()) {
        packet.extend_tail(missing).ok()?;
    }
    let mut stamps = [0; STAMPS_LEN];
    stamps[..8].copy_from_slice(&packet.meta().stamp_ns.to_be_bytes());
    stamps[8..].copy_from_slice(&now_ns.to_be_bytes());
    let frame = packet.bytes_mut();
    frame.get_mut(end..new_end)?.copy_from_slice(&stamps);
    lengthen_ip(frame, &headers)?;

    let length = word(frame, l4 + 4)?;
    set_word(frame, l4 + 4, length + STAMPS_LEN as u16)?;
    let held = word(frame, l4 + 6)?;
    if held != 0 {
        // The length counts twice: in the UDP header and in the pseudo-header.
        let growth = stamps_sum(&stamps, end - l4) + 2 * STAMPS_LEN as u64;
        set_word(frame, l4 + 6, checksum::l4_add(UDP, held, growth))?;
    }
    packet.reparse().ok()
}

/// What the stamps add to the sum of a datagram of `length` bytes: behind an odd one, each of their
/// bytes is the other half of its word (RFC 1071, section 2B).
fn stamps_sum(stamps: &[u8], length: usize) -> u64 {
    let sum = checksum::fold(checksum::sum(stamps));
    if length.is_multiple_of(2) {
        sum.into()
    } else {
        sum.swap_bytes().into()
    }
}

/// Corrects the length in the IP header; `None` when the packet does not end with its datagram.
fn lengthen_ip(frame: &mut [u8], headers: &Headers) -> Option<()> {
    let (l3, end) = (usize::from(headers.l3), usize::from(headers.end));
    let (at, counted_from) = if headers.flags.is_ipv6() {
        (l3 + 4, l3 + 40)
    } else {
        (l3 + 2, l3)
    };
    let length = word(frame, at)?;
    if counted_from + usize::from(length) != end {
        return None;
    }
    let longer = length + STAMPS_LEN as u16;
    set_word(frame, at, longer)?;
    if !headers.flags.is_ipv6() {
        let held = word(frame, l3 + 10)?;
        set_word(frame, l3 + 10, checksum::update(held, length, longer))?;
    }
    Some(())
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

fn set_word(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
