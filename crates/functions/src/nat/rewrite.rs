//! Finds and replaces the address and the port of one endpoint of a packet.

use std::ops::Range;

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::{Headers, checksum};
use myelin_spec::Side;

use super::{Endpoint, is_translated};
use crate::word::{read_word, write_word};

/// Offsets of one endpoint's fields and of the checksum in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointFields {
    address: usize,
    port: usize,
    l4_checksum: usize,
    headers: Headers,
}

/// Types of the ICMP messages.
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// Type, code, checksum, identifier, sequence number.
const ECHO_LEN: usize = 8;

impl EndpointFields {
    /// Finds the fields that a side translates: the source of packets from inside, the destination
    /// of packets from outside. Returns `None` for a packet that the function does not translate.
    #[inline(always)] // keeps the result in registers
    #[allow(clippy::inline_always)]
    pub(crate) fn find(frame: &[u8], headers: &Headers, side: Side) -> Option<Self> {
        let is_ipv6 = headers.flags.is_ipv6();
        if headers.flags.is_fragment() || !is_translated(headers.protocol, is_ipv6) {
            return None;
        }
        let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
        if is_ipv6 && is_authenticated(frame, l3, l4) {
            return None;
        }
        let is_forward = side == Side::Forward;
        let (port, l4_checksum) = match headers.protocol {
            UDP => (l4, l4 + 6),
            TCP => (l4, l4 + 16),
            _ => {
                let expected = match (is_ipv6, is_forward) {
                    (false, true) => ECHO_REQUEST,
                    (false, false) => ECHO_REPLY,
                    (true, true) => ECHO_REQUEST_V6,
                    (true, false) => ECHO_REPLY_V6,
                };
                let message = frame.get(l4..usize::from(headers.end))?;
                if message.len() < ECHO_LEN || message[0] != expected {
                    return None;
                }
                (l4 + 4, l4 + 2)
            }
        };
        let has_ports = headers.flags.has_ports();
        Some(Self {
            address: address_range(headers, side).start,
            port: if is_forward || !has_ports {
                port
            } else {
                port + 2
            },
            l4_checksum,
            headers: *headers,
        })
    }

    pub(super) fn protocol(&self) -> u8 {
        self.headers.protocol
    }

    pub(super) fn l4(&self) -> usize {
        self.headers.l4.into()
    }

    /// Returns the endpoint that the fields contain.
    #[inline]
    pub(crate) fn endpoint(&self, frame: &[u8]) -> Option<Endpoint> {
        let mut address = [0; 16];
        let is_ipv6 = self.headers.flags.is_ipv6();
        if is_ipv6 {
            address = *frame.get(self.address..)?.first_chunk()?;
        } else {
            address[..4].copy_from_slice(frame.get(self.address..self.address + 4)?);
        }
        Some(Endpoint {
            address,
            port: read_word(frame, self.port)?,
            protocol: self.headers.protocol,
            is_ipv6,
        })
    }

    /// Replaces the endpoint and corrects the checksums (RFC 1624). A UDP checksum of zero means no
    /// checksum and stays zero. A partial checksum covers the addresses and not the ports.
    #[inline(always)] // keeps the fields in registers
    #[allow(clippy::inline_always)]
    pub(crate) fn write(
        &self,
        frame: &mut [u8],
        old: &Endpoint,
        new: &Endpoint,
        is_partial: bool,
    ) -> Option<()> {
        let is_ipv6 = self.headers.flags.is_ipv6();
        let length = if is_ipv6 { 16 } else { 4 };
        let address = address_growth(&old.address, &new.address);
        let port = u64::from(new.port) + u64::from(!old.port);
        frame
            .get_mut(self.address..self.address + length)?
            .copy_from_slice(&new.address[..length]);
        write_word(frame, self.port, new.port)?;
        if !is_ipv6 {
            let at = usize::from(self.headers.l3) + 10;
            let old_checksum = read_word(frame, at)?;
            write_word(frame, at, checksum::l4_add(0, old_checksum, address))?;
        }
        let old_checksum = read_word(frame, self.l4_checksum)?;
        if is_partial {
            if self.headers.protocol == ICMP {
                return Some(());
            }
            let sum = checksum::fold(u64::from(old_checksum) + address);
            return write_word(frame, self.l4_checksum, sum);
        }
        let (protocol, delta) = match self.headers.protocol {
            UDP if old_checksum == 0 => return Some(()),
            // The ICMP checksum covers no addresses.
            ICMP => (ICMP, port),
            protocol @ (TCP | UDP | ICMPV6) => (protocol, address + port),
            _ => return None,
        };
        write_word(
            frame,
            self.l4_checksum,
            checksum::l4_add(protocol, old_checksum, delta),
        )
    }
}

/// Returns the bytes of the address that a side translates.
#[inline]
fn address_range(headers: &Headers, side: Side) -> Range<usize> {
    let l3 = usize::from(headers.l3);
    let (source, length) = if headers.flags.is_ipv6() {
        (l3 + 8, 16)
    } else {
        (l3 + 12, 4)
    };
    let start = match side {
        Side::Forward => source,
        Side::Reply => source + length,
    };
    start..start + length
}

/// Returns the address that a side translates; IPv4 in the first four bytes.
pub(crate) fn read_address(frame: &[u8], headers: &Headers, side: Side) -> Option<[u8; 16]> {
    let bytes = frame.get(address_range(headers, side))?;
    let mut address = [0; 16];
    address[..bytes.len()].copy_from_slice(bytes);
    Some(address)
}

/// Replaces the address that a side translates, in a later fragment. Only the checksum of an IPv4
/// header covers it there.
pub(crate) fn replace_address(
    frame: &mut [u8],
    headers: &Headers,
    side: Side,
    new: &[u8; 16],
) -> Option<()> {
    let growth = address_growth(&read_address(frame, headers, side)?, new);
    let bytes = frame.get_mut(address_range(headers, side))?;
    bytes.copy_from_slice(&new[..bytes.len()]);
    if headers.flags.is_ipv6() {
        return Some(());
    }
    let at = usize::from(headers.l3) + 10;
    let checksum = checksum::l4_add(0, read_word(frame, at)?, growth);
    write_word(frame, at, checksum)
}

/// Returns whether an IPv6 packet has an authentication header among its extension headers. That
/// header covers the addresses (RFC 4302, section 3.3.3), so the receiver of a translated packet
/// would drop it.
#[inline]
pub(super) fn is_authenticated(frame: &[u8], l3: usize, l4: usize) -> bool {
    const IPV6_LEN: usize = 40;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    let (mut at, mut next) = (l3 + IPV6_LEN, frame.get(l3 + 6).copied());
    while at < l4 {
        let (Some(kind), Some(&[following, length])) =
            (next, frame.get(at..).and_then(<[u8]>::first_chunk))
        else {
            return true;
        };
        at += match kind {
            AUTHENTICATION => return true,
            FRAGMENT => 8,
            _ => (usize::from(length) + 1) * 8,
        };
        next = Some(following);
    }
    false
}

/// Returns the growth of the sum of 16-bit words by the new address, modulo 65535 and not below
/// zero. Sums of 32-bit words give the same result because 2^16 is 1 modulo 65535. A complement
/// works as the negative because 2^32 - 1 is 0.
#[inline]
pub(super) fn address_growth(old: &[u8; 16], new: &[u8; 16]) -> u64 {
    let words = |address: &[u8; 16]| {
        let (words, _) = address.as_chunks::<4>();
        [0, 1, 2, 3].map(|i: usize| u32::from_be_bytes(words[i]))
    };
    let pairs = words(old).into_iter().zip(words(new));
    pairs
        .map(|(old, new)| u64::from(new) + u64::from(!old))
        .sum()
}
