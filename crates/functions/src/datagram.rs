//! Changes the length of a UDP datagram.
//!
//! Corrects lengths and checksums, and overwrites or removes Ethernet padding. Updates the UDP
//! checksum by the difference. A checksum of zero means no checksum and stays zero. A wrong
//! checksum stays wrong, so a damaged datagram does not become valid.

use std::cmp::Ordering;

use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;

use crate::Packet;
use crate::wide::SumBytes;
use crate::word::{read_word, write_word};

/// Offsets of a complete UDP datagram in its frame. The datagram is the last part of its IP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Offset of the UDP header.
    pub(crate) l4: usize,
    /// Offset of the payload.
    pub(crate) payload: usize,
    /// End of the datagram and of the IP packet.
    pub(crate) end: usize,
    /// Whether the packet is IPv6. Otherwise it is IPv4.
    pub(crate) is_ipv6: bool,
    /// UDP checksum, zero for none.
    checksum: u16,
    sum: SumBytes,
}

/// The reason why a packet contains no usable datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoDatagram {
    /// The packet is a fragment.
    Fragment,
    /// The packet is not UDP, or is truncated.
    NotUdp,
    /// The IP packet has bytes after the datagram (RFC 9868).
    Surplus,
}

impl Datagram {
    /// Finds the datagram in `packet`. `sum` computes checksums.
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>, sum: SumBytes) -> Result<Self, NoDatagram> {
        let headers = packet.headers();
        if headers.flags.is_fragment() {
            return Err(NoDatagram::Fragment);
        }
        if !headers.flags.has_ports()
            || headers.protocol != UDP
            || usize::from(headers.end) > packet.len()
        {
            return Err(NoDatagram::NotUdp);
        }
        let mut datagram = Self {
            l3: headers.l3.into(),
            l4: headers.l4.into(),
            payload: headers.payload.into(),
            end: headers.end.into(),
            is_ipv6: headers.flags.is_ipv6(),
            checksum: 0,
            sum,
        };
        let frame = packet.bytes();
        let (at, counted_from) = datagram.ip_length();
        let length = read_word(frame, at).ok_or(NoDatagram::NotUdp)?;
        if counted_from + usize::from(length) != datagram.end {
            return Err(NoDatagram::Surplus);
        }
        datagram.checksum = read_word(frame, datagram.l4 + 6).ok_or(NoDatagram::NotUdp)?;
        Ok(datagram)
    }

    /// Returns whether the datagram has a checksum.
    #[inline]
    pub(crate) fn has_checksum(&self) -> bool {
        self.checksum != 0
    }

    /// Returns the length of the IP packet, bytes.
    #[inline]
    pub(crate) fn ip_len(&self) -> usize {
        self.end - self.l3
    }

    /// Returns the length of the IP packet with a payload of `payload` bytes.
    #[inline]
    pub(crate) fn ip_len_with(&self, payload: usize) -> usize {
        self.payload - self.l3 + payload
    }

    /// Returns the payload's part of the checksum. Call this method before you change the payload
    /// in place.
    #[inline]
    pub(crate) fn payload_sum(&self, packet: &Packet<'_>) -> u64 {
        if !self.has_checksum() {
            return 0;
        }
        let payload = packet.bytes().get(self.payload..self.end);
        (self.sum)(payload.unwrap_or_default())
    }

    /// Ends datagram, IP packet and frame at `end`. Call this method after you change the payload
    /// in place. `old` is the [`payload_sum`](Self::payload_sum) before the change. Returns `None`
    /// if the buffer has no room or an IP packet cannot be that long.
    #[inline]
    pub(crate) fn finish(&mut self, packet: &mut Packet<'_>, end: usize, old: u64) -> Option<()> {
        resize_frame(packet, end)?;
        let changed = Self { end, ..*self };
        let growth = changed.payload_sum(packet) + complement(old);
        self.set_end(packet, end, growth)
    }

    /// Replaces the payload by `new`. Returns `None` and changes nothing if the buffer has no room
    /// or an IP packet cannot be that long.
    #[inline]
    pub(crate) fn replace(&mut self, packet: &mut Packet<'_>, new: &[u8]) -> Option<()> {
        // Sum `new`, not its copy in the packet, because bytes just written are slow to read. For
        // the same reason compute the old sum first, as the caller may just have written `new`.
        let old = complement(self.payload_sum(packet));
        let growth = if self.has_checksum() {
            old + (self.sum)(new)
        } else {
            0
        };
        let end = self.payload + new.len();
        resize_frame(packet, end)?;
        packet.bytes_mut()[self.payload..].copy_from_slice(new);
        self.set_end(packet, end, growth)
    }

    /// Appends `trailer`. The trailer overwrites Ethernet padding; the rest of the padding stays.
    /// Returns `None` and changes nothing if the buffer has no room or an IP packet cannot be that
    /// long.
    #[inline]
    pub(crate) fn append(&mut self, packet: &mut Packet<'_>, trailer: &[u8]) -> Option<()> {
        let end = self.end + trailer.len();
        resize_frame(packet, end.max(packet.len()))?;
        packet.bytes_mut()[self.end..end].copy_from_slice(trailer);
        let growth = self.sum_from(self.end, trailer);
        self.set_end(packet, end, growth)
    }

    /// Removes `n` bytes from the end of the payload. Returns `None` and changes nothing if the
    /// payload is shorter.
    #[inline]
    pub(crate) fn remove_tail(&mut self, packet: &mut Packet<'_>, n: usize) -> Option<()> {
        let end = self.end.checked_sub(n).filter(|&end| end >= self.payload)?;
        let tail = packet.bytes().get(end..self.end)?;
        let growth = complement(self.sum_from(end, tail));
        resize_frame(packet, end)?;
        self.set_end(packet, end, growth)
    }

    /// Removes Ethernet padding from the packet.
    #[inline]
    pub(crate) fn remove_padding(&self, packet: &mut Packet<'_>) -> Option<()> {
        resize_frame(packet, self.end)
    }

    /// Returns the checksum sum of `bytes` at offset `at`. At an odd offset, each byte is the other
    /// half of its word (RFC 1071, section 2B).
    #[inline]
    fn sum_from(&self, at: usize, bytes: &[u8]) -> u64 {
        let sum = (self.sum)(bytes);
        if (at - self.l4).is_multiple_of(2) {
            sum
        } else {
            checksum::fold(sum).swap_bytes().into()
        }
    }

    /// Writes lengths and checksums for the new end, which fits. The payload's sum grew by
    /// `growth`.
    #[inline]
    fn set_end(&mut self, packet: &mut Packet<'_>, end: usize, growth: u64) -> Option<()> {
        let frame = packet.bytes_mut();
        let (at, counted_from) = self.ip_length();
        let (old, new) = (read_word(frame, at)?, (end - counted_from) as u16);
        write_word(frame, at, new)?;
        if !self.is_ipv6 {
            let old_checksum = read_word(frame, self.l3 + 10)?;
            write_word(
                frame,
                self.l3 + 10,
                checksum::update(old_checksum, old, new),
            )?;
        }
        let (old, new) = (self.end - self.l4, end - self.l4);
        write_word(frame, self.l4 + 4, new as u16)?;
        if self.has_checksum() {
            // The length counts twice: in the UDP header and in the pseudo-header.
            let lengths = 2 * (new as u64 + complement(old as u64));
            self.checksum = checksum::l4_add(UDP, self.checksum, growth + lengths);
            write_word(frame, self.l4 + 6, self.checksum)?;
        }
        self.end = end;
        packet.set_end(end as u16);
        Some(())
    }

    /// Returns the offset of the length field in the IP header, and the offset from which that
    /// length counts.
    #[inline]
    fn ip_length(&self) -> (usize, usize) {
        if self.is_ipv6 {
            (self.l3 + 4, self.l3 + 40)
        } else {
            (self.l3 + 2, self.l3)
        }
    }
}

/// Ends the frame at `end`. Returns `None` and changes nothing if that is impossible.
#[inline]
pub(crate) fn resize_frame(packet: &mut Packet<'_>, end: usize) -> Option<()> {
    // The metadata stores the end in 16 bits. All lengths in the headers are below `end`.
    u16::try_from(end).ok()?;
    let len = packet.len();
    match end.cmp(&len) {
        Ordering::Less => packet.trim_tail(len - end),
        Ordering::Equal => Some(()),
        Ordering::Greater => packet.extend_tail(end - len).map(|_| ()),
    }
}

/// Returns the additive inverse of `sum` (at most 32 bits) in ones' complement: its complement.
#[inline]
fn complement(sum: u64) -> u64 {
    u64::from(!(sum as u32))
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::{self, build};
    use myelin_packet::{Meta, parse};
    use proptest::prelude::*;

    use super::*;
    use crate::endpoints::endpoints;
    use crate::wide;

    const TAILROOM: usize = 32;

    /// Runs `work` on a frame with some tailroom. Checks the packet's headers and metadata. Returns
    /// the result of `work`, and the new frame.
    fn process_frame<T>(frame: &[u8], work: impl FnOnce(&mut Packet<'_>) -> T) -> (T, Vec<u8>) {
        let mut buffer = [frame, &[0x5a; TAILROOM]].concat();
        let meta = Meta::new(1, 2, 3, 4, &parse(frame).unwrap());
        let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
        let result = work(&mut packet);
        assert_eq!(packet.headers(), &parse(packet.bytes()).unwrap());
        assert_eq!(
            packet.meta().headers(packet.bytes()),
            parse(packet.bytes()).ok()
        );
        (result, packet.bytes().to_vec())
    }

    fn datagram(packet: &Packet<'_>) -> Datagram {
        Datagram::of(packet, wide::fastest_sum()).unwrap()
    }

    /// Rebuilds the frame with another payload. A wrong checksum stays wrong by the same
    /// difference.
    fn rebuild(frame: &[u8], payload: &[u8]) -> Vec<u8> {
        let old = parse(frame).unwrap();
        let (l3, l4, at) = (old.l3.into(), usize::from(old.l4), usize::from(old.payload));
        let mut new = [&frame[..at], payload].concat();
        if old.flags.is_ipv6() {
            let len = (new.len() - l3 - 40) as u16;
            new[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
        } else {
            let len = (new.len() - l3) as u16;
            new[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
            new[l3 + 10..l3 + 12].fill(0);
            let checksum = checksum::checksum(&new[l3..l4]);
            new[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        let len = (new.len() - l4) as u16;
        new[l4 + 4..l4 + 6].copy_from_slice(&len.to_be_bytes());
        let old_checksum = read_word(frame, l4 + 6).unwrap();
        if old_checksum != 0 {
            let correct_old = checksum::l4_checksum(frame, &old).unwrap();
            let correct_new = checksum::l4_checksum(&new, &parse(&new).unwrap()).unwrap();
            // The error of the checksum, modulo 65535. Of the two zeros, 0 would mean no checksum.
            let sum =
                u32::from(correct_new) + u32::from(old_checksum) + 65_535 - u32::from(correct_old);
            let checksum = match sum % 65_535 {
                0 => 0xffff,
                other => other as u16,
            };
            new[l4 + 6..l4 + 8].copy_from_slice(&checksum.to_be_bytes());
        }
        new
    }

    fn bytes(max_len: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..max_len)
    }

    /// Frames with tags, padding, and right, wrong and no checksums.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let checksum = prop_oneof![Just(None), Just(Some(0)), any::<u16>().prop_map(Some)];
        (endpoints(), bytes(100), 0..3_usize, 0..200_usize, checksum).prop_map(
            |((source, destination), payload, tags, len, checksum)| {
                let mut frame = build::udp(source, destination, &payload);
                if let Some(checksum) = checksum {
                    let l4 = usize::from(parse(&frame).unwrap().l4);
                    write_word(&mut frame, l4 + 6, checksum).unwrap();
                }
                let frame = build::with_tags(frame, &[build::QINQ, build::VLAN][..tags]);
                let len = len.max(frame.len());
                build::pad_frame(frame, len)
            },
        )
    }

    fn payload_of(frame: &[u8]) -> &[u8] {
        let headers = parse(frame).unwrap();
        &frame[headers.payload.into()..headers.end.into()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn replacing_a_payload_equals_rebuilding_the_packet(
            frame in frames(),
            new in bytes(150),
        ) {
            let room = frame.len() + TAILROOM - usize::from(parse(&frame).unwrap().payload);
            let expected = if new.len() <= room {
                (Some(()), rebuild(&frame, &new))
            } else {
                (None, frame.clone())
            };
            let replaced = process_frame(&frame, |packet| datagram(packet).replace(packet, &new));
            prop_assert_eq!(&replaced, &expected, "replaced");
            let in_place = process_frame(&frame, |packet| {
                let mut datagram = datagram(packet);
                let old = datagram.payload_sum(packet);
                let end = datagram.payload + new.len();
                resize_frame(packet, end)?;
                packet.bytes_mut()[datagram.payload..].copy_from_slice(&new);
                datagram.finish(packet, end, old)
            });
            prop_assert_eq!(&in_place, &expected, "in place");
        }

        #[test]
        fn appending_and_removing_equal_rebuilding_the_packet(
            frame in frames(),
            trailer in bytes(20),
        ) {
            let mut with = rebuild(&frame, &[payload_of(&frame), &trailer].concat());
            with.extend(frame.get(with.len()..).unwrap_or_default());
            let without = rebuild(&frame, payload_of(&frame));
            process_frame(&frame, |packet| {
                let mut datagram = datagram(packet);
                datagram.append(packet, &trailer).unwrap();
                assert_eq!(packet.bytes(), with);
                assert_eq!(datagram.ip_len(), datagram.ip_len_with(payload_of(&with).len()));
                datagram.remove_tail(packet, trailer.len()).unwrap();
                assert_eq!(packet.bytes(), without);
            });
            let cut = process_frame(&frame, |packet| {
                datagram(packet).remove_padding(packet)?;
                Some(datagram(packet).end)
            });
            let end = usize::from(parse(&frame).unwrap().end);
            prop_assert_eq!(cut, (Some(end), frame[..end].to_vec()));
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let frame = build::udp_v4(4);
        for n in [5, 100, usize::MAX] {
            let cut = process_frame(&frame, |packet| datagram(packet).remove_tail(packet, n));
            assert_eq!(cut, (None, frame.clone()));
        }
        let long = [0; TAILROOM + 1];
        let appended = process_frame(&frame, |packet| datagram(packet).append(packet, &long));
        assert_eq!(appended, (None, frame.clone()), "no room");
        let mut buffer = frame.clone();
        buffer.resize(70_000, 0);
        let meta = Meta::new(1, 2, 3, 4, &parse(&frame).unwrap());
        let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).unwrap();
        let mut payload = vec![7; 65_535 - 41];
        let replaced = datagram(&packet).replace(&mut packet, &payload);
        assert_eq!(replaced, None, "longer than 16 bits allow");
        assert_eq!(packet.bytes(), frame);
        payload.pop();
        let replaced = datagram(&packet).replace(&mut packet, &payload);
        assert_eq!(replaced, Some(()));
        assert_eq!(packet.bytes(), rebuild(&frame, &payload));
    }

    #[test]
    fn unusable_packet_is_refused_with_the_reason() {
        for (name, reason) in [
            ("ipv4-fragment-padded", NoDatagram::Fragment),
            ("tcp-v4", NoDatagram::NotUdp),
            ("icmp", NoDatagram::NotUdp),
            ("udp-v4-surplus", NoDatagram::Surplus),
        ] {
            let frame = fixtures::named(name).frame;
            let (found, _) =
                process_frame(&frame, |packet| Datagram::of(packet, checksum::sum).err());
            assert_eq!(found, Some(reason), "{name}");
        }
        let (mut frame, len) = (build::udp_v6(9), build::udp_v6(9).len());
        let meta = Meta::new(1, 2, 3, 4, &parse(&frame).unwrap());
        let mut packet = Packet::new(&mut frame, 0, len, meta, 0).unwrap();
        packet.trim_tail(1).unwrap();
        let found = Datagram::of(&packet, checksum::sum).err();
        assert_eq!(found, Some(NoDatagram::NotUdp), "truncated");
    }
}
