//! A UDP datagram whose payload is replaced by a longer or shorter one.

use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;

use super::Refusal;
use crate::Packet;
use crate::wide::Sum;

/// Where a datagram lies in its frame, and what its checksum covers of the payload.
///
/// The checksum is corrected by what changed, not computed anew: one that was wrong stays wrong, so that no damage is hidden.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    l3: usize,
    l4: usize,
    /// Where the payload begins.
    pub(crate) payload: usize,
    /// Where the datagram ends, and the IP packet with it.
    pub(crate) end: usize,
    is_ipv6: bool,
    /// UDP checksum, zero for none.
    held: u16,
    covered: u64,
    sum: Sum,
}

impl Datagram {
    /// The datagram that `packet` is; `sum` is what its checksum is computed with.
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>, sum: Sum) -> Result<Self, Refusal> {
        let headers = packet.headers();
        if headers.flags.is_fragment() {
            return Err(Refusal::Fragment);
        }
        if !headers.flags.has_ports() || headers.protocol != UDP {
            return Err(Refusal::NotUdp);
        }
        let mut datagram = Self {
            l3: headers.l3.into(),
            l4: headers.l4.into(),
            payload: headers.payload.into(),
            end: headers.end.into(),
            is_ipv6: headers.flags.is_ipv6(),
            held: 0,
            covered: 0,
            sum,
        };
        let frame = packet.bytes();
        let (at, counted_from) = datagram.ip_length();
        let length = word(frame, at).ok_or(Refusal::NotUdp)?;
        if counted_from + usize::from(length) != datagram.end {
            return Err(Refusal::Surplus);
        }
        datagram.held = word(frame, datagram.l4 + 6).ok_or(Refusal::NotUdp)?;
        datagram.covered = datagram.covered_until(frame, datagram.end);
        Ok(datagram)
    }

    /// Length that the IP packet would have with that much more payload, bytes.
    #[inline]
    pub(crate) fn ip_len_with(&self, more: usize) -> usize {
        self.end + more - self.l3
    }

    /// Lets datagram, IP packet and frame end at `end`, after the payload was replaced: cuts Ethernet padding, corrects lengths
    /// and checksums. `None` when the frame is shorter, which it never is.
    #[inline]
    pub(crate) fn finish(&self, packet: &mut Packet<'_>, end: usize) -> Option<()> {
        packet.trim_tail(packet.len().checked_sub(end)?).ok()?;
        let frame = packet.bytes_mut();
        let (at, counted_from) = self.ip_length();
        let old = word(frame, at)?;
        let new = u16::try_from(end - counted_from).ok()?;
        set_word(frame, at, new)?;
        if !self.is_ipv6 {
            let held = word(frame, self.l3 + 10)?;
            set_word(frame, self.l3 + 10, checksum::update(held, old, new))?;
        }
        set_word(frame, self.l4 + 4, (end - self.l4) as u16)?;
        if self.held != 0 {
            let growth = self.covered_until(frame, end) + u64::from(!checksum::fold(self.covered));
            set_word(frame, self.l4 + 6, checksum::l4_add(UDP, self.held, growth))?;
        }
        packet.set_end(u16::try_from(end).ok()?);
        Some(())
    }

    /// Where the length in the IP header stands, and where what it counts begins.
    #[inline]
    fn ip_length(&self) -> (usize, usize) {
        if self.is_ipv6 {
            (self.l3 + 4, self.l3 + 40)
        } else {
            (self.l3 + 2, self.l3)
        }
    }

    /// The sum over payload and length; the length counts twice, in the UDP header and in the pseudo-header.
    #[inline]
    fn covered_until(&self, frame: &[u8], end: usize) -> u64 {
        if self.held == 0 {
            return 0;
        }
        let payload = frame.get(self.payload..end).unwrap_or_default();
        (self.sum)(payload) + 2 * (end - self.l4) as u64
    }
}

#[inline]
fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

#[inline]
fn set_word(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
