//! A UDP datagram that fills its IP packet, to grow and shrink at its end; and the unit that is coded of it.

use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;

use crate::Packet;

/// Where the datagram lies in its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    /// Of the IP header.
    pub(super) l3: usize,
    /// Of the UDP header.
    pub(super) l4: usize,
    /// Behind the datagram and the IP packet.
    pub(super) end: usize,
    pub(super) is_ipv6: bool,
}

/// The start of an IP packet without what is changed on the way (time to live, traffic class, and the header checksum that
/// follows them), and how many of the bytes count.
pub(super) type UnitHead = ([u8; 40], usize);

impl Datagram {
    /// `None` when the packet is not UDP, is a fragment, or holds something behind its datagram (RFC 9868). Ethernet
    /// padding is cut off the packet.
    pub(super) fn find(packet: &mut Packet<'_>) -> Option<Self> {
        let headers = packet.headers();
        if !headers.flags.has_ports() || headers.protocol != UDP {
            return None;
        }
        let datagram = Self {
            l3: headers.l3.into(),
            l4: headers.l4.into(),
            end: headers.end.into(),
            is_ipv6: headers.flags.is_ipv6(),
        };
        let frame = packet.bytes();
        let ip_end = datagram.counted_from() + usize::from(word(frame, datagram.ip_length())?);
        let udp_end = datagram.l4 + usize::from(word(frame, datagram.l4 + 4)?);
        if (ip_end, udp_end) != (datagram.end, datagram.end) {
            return None;
        }
        let padding = packet.len().checked_sub(datagram.end)?;
        packet.trim_tail(padding).ok()?;
        Some(datagram)
    }

    /// Bytes of the IP packet.
    pub(super) fn ip_len(&self) -> usize {
        self.end - self.l3
    }

    /// The IP packet as it is coded, in two parts: its start, and the rest as it is.
    pub(super) fn unit<'f>(&self, frame: &'f [u8]) -> Option<(UnitHead, &'f [u8])> {
        unit(frame.get(self.l3..self.end)?)
    }

    /// Appends `trailer` to the datagram and corrects lengths and checksums. `None` when there is no room, with the
    /// packet as it was.
    pub(super) fn append(&mut self, packet: &mut Packet<'_>, trailer: &[u8]) -> Option<()> {
        packet
            .extend_tail(trailer.len())
            .ok()?
            .copy_from_slice(trailer);
        let sum = self.sum_of(trailer);
        self.resize(packet, self.end + trailer.len(), sum)
    }

    /// Takes `n` bytes off the datagram and corrects lengths and checksums. `None` when it has not as many.
    pub(super) fn cut(&mut self, packet: &mut Packet<'_>, n: usize) -> Option<()> {
        let end = self.end.checked_sub(n).filter(|&end| end >= self.l4 + 8)?;
        let tail = packet.bytes().get(end..self.end)?;
        let odd = Self { end, ..*self };
        // A decrease, modulo 65535.
        let sum = u64::from(!checksum::fold(odd.sum_of(tail)));
        packet.trim_tail(n).ok()?;
        self.resize(packet, end, sum)
    }

    /// What bytes at the datagram's end add to its checksum's sum: behind an odd length, each of them is the other half of
    /// its word (RFC 1071, section 2B).
    fn sum_of(&self, bytes: &[u8]) -> u64 {
        let sum = checksum::fold(checksum::sum(bytes));
        if (self.end - self.l4).is_multiple_of(2) {
            sum.into()
        } else {
            sum.swap_bytes().into()
        }
    }

    /// Corrects lengths and checksums of the packet, whose payload's sum grew by `growth`.
    fn resize(&mut self, packet: &mut Packet<'_>, end: usize, growth: u64) -> Option<()> {
        let frame = packet.bytes_mut();
        let old = word(frame, self.ip_length())?;
        let new = u16::try_from(end - self.counted_from()).ok()?;
        set_word(frame, self.ip_length(), new)?;
        if !self.is_ipv6 {
            let held = word(frame, self.l3 + 10)?;
            set_word(frame, self.l3 + 10, checksum::update(held, old, new))?;
        }
        let (old, new) = (word(frame, self.l4 + 4)?, (end - self.l4) as u16);
        set_word(frame, self.l4 + 4, new)?;
        let held = word(frame, self.l4 + 6)?;
        if held != 0 {
            // The length counts twice: in the UDP header and in the pseudo-header.
            let lengths = 2 * (u64::from(!old) + u64::from(new));
            set_word(
                frame,
                self.l4 + 6,
                checksum::l4_add(UDP, held, growth + lengths),
            )?;
        }
        self.end = end;
        packet.reparse().ok()
    }

    /// Where the length in the IP header is.
    fn ip_length(&self) -> usize {
        self.l3 + if self.is_ipv6 { 4 } else { 2 }
    }

    /// What that length counts from.
    fn counted_from(&self) -> usize {
        self.l3 + if self.is_ipv6 { 40 } else { 0 }
    }
}

/// An IP packet as it is coded.
fn unit(packet: &[u8]) -> Option<(UnitHead, &[u8])> {
    let is_ipv6 = packet.first()? >> 4 == 6;
    let len = if is_ipv6 { 40 } else { 20 };
    let (start, rest) = packet.split_at_checked(len)?;
    let mut head = [0; 40];
    head[..len].copy_from_slice(start);
    if is_ipv6 {
        head[0] &= 0xf0;
        head[1] &= 0x0f;
        head[7] = 0;
    } else {
        head[1] = 0;
        head[8] = 0;
        head[10..12].fill(0);
    }
    Some(((head, len), rest))
}

pub(super) fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

pub(super) fn set_word(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::{self, build};
    use myelin_packet::{Meta, parse};

    use super::*;

    #[test]
    fn a_trailer_that_comes_and_goes_leaves_the_packet_as_it_was() {
        let lengths = (0..40).flat_map(|len| [build::udp_v4(len), build::udp_v6(len)]);
        let none = fixtures::named("udp-v4-checksum-zero").frame;
        for frame in lengths.chain([none]) {
            for trailer in [&[1, 2, 3, 4, 0xa1][..], &[0xff; 8], &[0, 0, 0]] {
                let headers = parse(&frame).unwrap();
                let meta = Meta::new(1, 2, 3, 4, &headers);
                let mut buffer = [&frame[..], &[0; 16]].concat();
                let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
                let mut datagram = Datagram::find(&mut packet).unwrap();
                datagram.append(&mut packet, trailer).unwrap();
                assert!(packet.payload().ends_with(trailer));
                assert_eq!(
                    packet.payload().len(),
                    headers.payload_len() + trailer.len()
                );
                let valid = checksum::l4_is_valid(packet.bytes(), packet.headers());
                assert_eq!(valid, Some(true));
                if !datagram.is_ipv6 {
                    assert_eq!(checksum::checksum(&packet.bytes()[14..34]), 0);
                }
                assert_eq!(datagram.end, packet.len());
                datagram.cut(&mut packet, trailer.len()).unwrap();
                assert_eq!(packet.bytes(), frame);
            }
        }
    }

    #[test]
    fn more_than_there_is_cannot_be_cut() {
        let frame = build::udp_v4(4);
        let meta = Meta::new(1, 2, 3, 4, &parse(&frame).unwrap());
        let mut buffer = frame.clone();
        let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
        let mut datagram = Datagram::find(&mut packet).unwrap();
        for n in [5, 100, usize::MAX] {
            assert_eq!(datagram.cut(&mut packet, n), None);
        }
        assert_eq!(datagram.append(&mut packet, &[0]), None, "no room");
        assert_eq!(packet.bytes(), frame);
    }
}
