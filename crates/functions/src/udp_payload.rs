//! Puts another payload into a UDP datagram.

use myelin_packet::Headers;
use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;

use crate::wide::Sum;
use crate::{Packet, PacketError};

/// A whole UDP datagram that its IP packet ends with, and where its parts lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    headers: Headers,
}

impl Datagram {
    /// The datagram in `packet`; `None` for fragments, other protocols, and datagrams with something behind them in their IP
    /// packet (RFC 9868).
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        let headers = *packet.headers();
        let datagram = Self { headers };
        let (field, counted_from) = datagram.ip_length();
        let ends_with_it = headers.flags.has_ports()
            && headers.protocol == UDP
            && usize::from(headers.end) <= packet.len()
            && counted_from + usize::from(word(packet.bytes(), field)?) == headers.end.into();
        ends_with_it.then_some(datagram)
    }

    /// Where the length in the IP header lies, and from where on it counts.
    #[inline]
    fn ip_length(&self) -> (usize, usize) {
        let l3 = usize::from(self.headers.l3);
        if self.headers.flags.is_ipv6() {
            (l3 + 4, l3 + 40)
        } else {
            (l3 + 2, l3)
        }
    }

    /// Length of the IP packet with a payload of `payload` bytes.
    #[inline]
    pub(crate) fn ip_len_with(&self, payload: usize) -> usize {
        usize::from(self.headers.payload - self.headers.l3) + payload
    }

    /// Puts `new` in the payload's place. Lengths and checksums follow, Ethernet padding goes; a UDP checksum of zero
    /// means none and stays, and one that was wrong stays as wrong as it was: nothing that was damaged on its way here
    /// gets a valid checksum.
    ///
    /// The IP packet must not become longer than its length can say.
    #[inline]
    pub(crate) fn replace(
        &self,
        packet: &mut Packet<'_>,
        new: &[u8],
        sum: Sum,
    ) -> Result<(), PacketError> {
        let (l4, at, end) = (
            usize::from(self.headers.l4),
            usize::from(self.headers.payload),
            usize::from(self.headers.end),
        );
        let new_end = at + new.len();
        let held = word(packet.bytes(), l4 + 6).filter(|&held| held != 0);
        let updated = held.map(|held| {
            let old = &packet.bytes()[at..end];
            let growth = sum_growth(sum(old), old.len(), sum(new), new.len());
            checksum::l4_add(UDP, held, growth)
        });
        match new_end.checked_sub(packet.len()) {
            Some(missing) => drop(packet.extend_tail(missing)?),
            None => packet.trim_tail(packet.len() - new_end)?,
        }
        let frame = packet.bytes_mut();
        frame[at..].copy_from_slice(new);
        self.set_ip_length(frame, new_end);
        set_word(frame, l4 + 4, (new_end - l4) as u16);
        if let Some(checksum) = updated {
            set_word(frame, l4 + 6, checksum);
        }
        // It parsed before, and what the parser looks at has not changed but for the lengths, which fit.
        let _ = packet.reparse();
        Ok(())
    }

    #[inline]
    fn set_ip_length(&self, frame: &mut [u8], end: usize) {
        let (field, counted_from) = self.ip_length();
        let length = (end - counted_from) as u16;
        let old = word(frame, field);
        set_word(frame, field, length);
        let header_checksum = usize::from(self.headers.l3) + 10;
        if !self.headers.flags.is_ipv6()
            && let (Some(old), Some(held)) = (old, word(frame, header_checksum))
        {
            set_word(frame, header_checksum, checksum::update(held, old, length));
        }
    }
}

/// By how much the sum under a UDP checksum grows with another payload, modulo 65535. The length counts twice: in the UDP
/// header and in the pseudo-header.
#[inline]
fn sum_growth(old: u64, old_len: usize, new: u64, new_len: usize) -> u64 {
    let of = |sum: u64, len: usize| sum + 2 * len as u64;
    // The complement is the negative.
    of(new, new_len) + u64::from(!checksum::fold(of(old, old_len)))
}

#[inline]
fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Writes a word that lies in the frame.
#[inline]
fn set_word(frame: &mut [u8], at: usize, value: u16) {
    if let Some(field) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = value.to_be_bytes();
    }
}
