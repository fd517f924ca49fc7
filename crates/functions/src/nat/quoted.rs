//! Translates ICMP errors (RFC 5508, REQ-4 and REQ-5): the quoted packet, and the error's own
//! address on the same side.
//!
//! A side that translates sources translates the quoted destination, because the quoted packet went
//! in the other direction. All checksums change by the difference alone (RFC 1624), so a wrong
//! checksum stays wrong.

use myelin_packet::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use myelin_packet::{FiveTuple, Headers, IcmpQuote, checksum};
use myelin_spec::Side;

use super::rewrite::{address_growth, is_authenticated};
use super::{Endpoint, is_translated};
use crate::word::{read_word, write_word};

/// Types of the ICMP messages.
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// Offsets of the fields of an ICMP error that a side translates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotedEndpoint {
    quote: IcmpQuote,
    /// The error's own source, or its destination on the reply side.
    outer_address: usize,
    /// The quoted destination, or the quoted source on the reply side.
    address: usize,
    port: usize,
    headers: Headers,
}

impl QuotedEndpoint {
    /// Finds the fields. Returns `None` for a packet that is no ICMP error, and for an error about
    /// a packet that the function never sends.
    #[cold]
    #[inline(never)]
    pub(crate) fn find(frame: &[u8], headers: &Headers, side: Side) -> Option<Self> {
        let quote = IcmpQuote::find(frame, headers)?;
        let is_forward = side == Side::Forward;
        let l3 = usize::from(headers.l3);
        if !is_translated(quote.protocol, quote.is_ipv6)
            || (quote.is_ipv6 && is_authenticated(frame, l3, headers.l4.into()))
        {
            return None;
        }
        let port = if quote.has_ports() {
            quote.l4 + if is_forward { 2 } else { 0 }
        } else {
            let expected = match (quote.is_ipv6, is_forward) {
                (false, true) => ECHO_REPLY,
                (false, false) => ECHO_REQUEST,
                (true, true) => ECHO_REPLY_V6,
                (true, false) => ECHO_REQUEST_V6,
            };
            if *frame.get(quote.l4)? != expected {
                return None;
            }
            quote.l4 + 4
        };
        let (source, length) = if quote.is_ipv6 { (8, 16) } else { (12, 4) };
        Some(Self {
            quote,
            outer_address: l3 + source + if is_forward { 0 } else { length },
            address: if is_forward {
                quote.destination()
            } else {
                quote.source()
            },
            port,
            headers: *headers,
        })
    }

    /// Returns whether the quoted packet has ports.
    pub(crate) fn has_ports(&self) -> bool {
        self.quote.has_ports()
    }

    /// Returns the quoted endpoint.
    pub(crate) fn endpoint(&self, frame: &[u8]) -> Option<Endpoint> {
        Some(Endpoint {
            address: self.read_address(frame, self.address)?,
            port: read_word(frame, self.port)?,
            protocol: self.quote.protocol,
            is_ipv6: self.quote.is_ipv6,
        })
    }

    /// Returns the five-tuple of the flow's packets that this side translates: the reverse of the
    /// quoted one.
    pub(crate) fn flow(&self, frame: &[u8]) -> Option<FiveTuple> {
        Some(self.quote.five_tuple(frame)?.reversed())
    }

    /// Replaces the quoted endpoint `old` and the error's own address by `new`, and corrects the
    /// checksums that the frame contains.
    #[cold]
    #[inline(never)]
    pub(crate) fn write(&self, frame: &mut [u8], old: &Endpoint, new: &Endpoint) -> Option<()> {
        let outer = self.read_address(frame, self.outer_address)?;
        let outer_growth = address_growth(&outer, &new.address);
        self.write_address(frame, self.outer_address, new)?;
        self.write_address(frame, self.address, new)?;
        write_word(frame, self.port, new.port)?;

        let address = address_growth(&old.address, &new.address);
        let port = word_growth(old.port, new.port);
        // Growth of the sum over the ICMP message.
        let mut message = address + port;
        if self.quote.is_ipv6 {
            message += outer_growth;
        } else {
            correct(frame, usize::from(self.headers.l3) + 10, ICMP, outer_growth)?;
            message += correct(frame, self.quote.l3 + 10, ICMP, address)?;
        }
        message += self.correct_quoted_checksum(frame, address, port)?;
        correct(frame, usize::from(self.headers.l4) + 2, ICMP, message).map(drop)
    }

    /// Corrects the transport checksum in the quote, if the quote has one. Returns the growth of
    /// its sum.
    fn correct_quoted_checksum(&self, frame: &mut [u8], address: u64, port: u64) -> Option<u64> {
        let (at, growth) = match self.quote.protocol {
            UDP => (6, address + port),
            TCP => (16, address + port),
            ICMPV6 => (2, address + port),
            // The ICMP checksum covers no addresses.
            ICMP => (2, port),
            _ => return None,
        };
        let at = self.quote.l4 + at;
        let has_checksum =
            at + 2 <= self.quote.end && (self.quote.protocol != UDP || read_word(frame, at)? != 0);
        if !has_checksum {
            return Some(0);
        }
        correct(frame, at, self.quote.protocol, growth)
    }

    fn read_address(&self, frame: &[u8], at: usize) -> Option<[u8; 16]> {
        let mut address = [0; 16];
        let length = self.address_len();
        address[..length].copy_from_slice(frame.get(at..at + length)?);
        Some(address)
    }

    fn write_address(&self, frame: &mut [u8], at: usize, new: &Endpoint) -> Option<()> {
        let length = self.address_len();
        frame
            .get_mut(at..at + length)?
            .copy_from_slice(&new.address[..length]);
        Some(())
    }

    fn address_len(&self) -> usize {
        if self.quote.is_ipv6 { 16 } else { 4 }
    }
}

/// Corrects the checksum at `at` after the sum of its words grew by `growth`. Returns the growth of
/// a sum that covers the checksum.
fn correct(frame: &mut [u8], at: usize, protocol: u8, growth: u64) -> Option<u64> {
    let old = read_word(frame, at)?;
    let new = checksum::l4_add(protocol, old, growth);
    write_word(frame, at, new)?;
    Some(word_growth(old, new))
}

/// Returns the growth of a sum of 16-bit words, modulo 65535 and not below zero.
fn word_growth(old: u16, new: u16) -> u64 {
    u64::from(new) + u64::from(!old)
}
