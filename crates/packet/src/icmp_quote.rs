//! Finds the packet that an ICMP or ICMPv6 error quotes (RFC 792; RFC 4443, section 2.4).
//!
//! The rules, which `icmp_quote.h` of the eBPF programs follows exactly:
//!
//! * The error has type 3, 4, 11 or 12 (IPv4) or 1 to 4 (IPv6), and is no fragment.
//! * The quote has the whole IP header, with options or extension headers, and eight bytes more.
//! * The quote is no later fragment, because such a fragment has no ports.
//! * The error goes to the source of the quoted packet.
//! * A quoted ICMP message is an echo. So no error quotes an error.

use std::net::IpAddr;

use crate::FiveTuple;
use crate::five_tuple::{ICMP, ICMPV6, TCP, UDP};
use crate::parse::{Headers, skip_quoted_extensions};

/// Type, code, checksum, and four bytes that depend on the type.
const ICMP_LEN: usize = 8;
const IPV4_MIN_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// The bytes behind the IP header that a quote must have: the ports, or an echo's identifier.
const L4_MIN_LEN: usize = 8;

/// The packet in an ICMP error. All numbers are offsets in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpQuote {
    /// The IP header of the quoted packet.
    pub l3: usize,
    /// The header behind the quoted IP header, of which at least eight bytes exist.
    pub l4: usize,
    /// The end of the quote. The quoted packet may be longer.
    pub end: usize,
    /// The protocol of the quoted packet.
    pub protocol: u8,
    /// Whether both packets are IPv6; otherwise both are IPv4.
    pub is_ipv6: bool,
}

impl IcmpQuote {
    /// Returns whether a packet is an ICMP error, with or without a valid quote.
    pub fn is_error(frame: &[u8], headers: &Headers) -> bool {
        let is_ipv6 = headers.flags.is_ipv6();
        let protocol = if is_ipv6 { ICMPV6 } else { ICMP };
        let message = frame.get(headers.l4.into()..headers.end.into());
        let Some([kind, rest @ ..]) = message else {
            return false;
        };
        let is_error_type = match kind {
            1..=4 if is_ipv6 => true,
            3 | 4 | 11 | 12 => !is_ipv6,
            _ => false,
        };
        is_error_type
            && !headers.flags.is_fragment()
            && headers.protocol == protocol
            && rest.len() + 1 >= ICMP_LEN
    }

    /// Finds the quote in `frame`. Returns `None` for a packet that is no valid ICMP error, and if
    /// the headers do not belong to `frame`.
    pub fn find(frame: &[u8], headers: &Headers) -> Option<Self> {
        if !Self::is_error(frame, headers) {
            return None;
        }
        let is_ipv6 = headers.flags.is_ipv6();
        let (l4, end) = (usize::from(headers.l4), usize::from(headers.end));
        let frame = frame.get(..end)?;
        let l3 = l4 + ICMP_LEN;
        let (l4, protocol) = if is_ipv6 {
            skip_ipv6(frame, l3)?
        } else {
            skip_ipv4(frame, l3)?
        };
        let quote = Self {
            l3,
            l4,
            end,
            protocol,
            is_ipv6,
        };
        let transport = frame.get(l4..l4 + L4_MIN_LEN)?;
        let is_told_to_sender =
            headers.try_five_tuple(frame)?.destination == quote.address(frame, quote.source())?;
        (is_told_to_sender && is_quotable(protocol, transport[0])).then_some(quote)
    }

    /// Returns the offset of the quoted source address.
    pub fn source(&self) -> usize {
        self.l3 + if self.is_ipv6 { 8 } else { 12 }
    }

    /// Returns the offset of the quoted destination address.
    pub fn destination(&self) -> usize {
        self.l3 + if self.is_ipv6 { 24 } else { 16 }
    }

    /// Returns whether the quoted packet has ports.
    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, UDP | TCP)
    }

    /// Returns the five-tuple of the quoted packet. `None` if the quote is not of this `frame`.
    pub fn five_tuple(&self, frame: &[u8]) -> Option<FiveTuple> {
        let port = |at: usize| {
            let bytes = frame.get(at..at + 2)?;
            self.has_ports()
                .then(|| u16::from_be_bytes([bytes[0], bytes[1]]))
        };
        Some(FiveTuple {
            source: self.address(frame, self.source())?,
            destination: self.address(frame, self.destination())?,
            protocol: self.protocol,
            source_port: port(self.l4),
            destination_port: port(self.l4 + 2),
        })
    }

    fn address(&self, frame: &[u8], at: usize) -> Option<IpAddr> {
        let bytes = frame.get(at..)?;
        Some(if self.is_ipv6 {
            (*bytes.first_chunk::<16>()?).into()
        } else {
            (*bytes.first_chunk::<4>()?).into()
        })
    }
}

/// Returns the start of the header behind a quoted IPv4 header, and its protocol.
fn skip_ipv4(frame: &[u8], l3: usize) -> Option<(usize, u8)> {
    let header: &[u8; IPV4_MIN_LEN] = frame.get(l3..)?.first_chunk()?;
    let length = usize::from(header[0] & 0x0f) * 4;
    let is_later_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    (header[0] >> 4 == 4 && length >= IPV4_MIN_LEN && !is_later_fragment)
        .then_some((l3 + length, header[9]))
}

/// Returns the start of the header behind a quoted IPv6 header and its extension headers, and its
/// protocol.
fn skip_ipv6(frame: &[u8], l3: usize) -> Option<(usize, u8)> {
    let header: &[u8; IPV6_LEN] = frame.get(l3..)?.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    skip_quoted_extensions(frame, header[6], l3 + IPV6_LEN)
}

/// Returns whether a quote may contain this protocol, with this first byte.
fn is_quotable(protocol: u8, first: u8) -> bool {
    match protocol {
        ICMP => matches!(first, 0 | 8),
        ICMPV6 => matches!(first, 128 | 129),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::build;
    use crate::parse;

    fn find(frame: &[u8]) -> Option<IcmpQuote> {
        IcmpQuote::find(frame, &parse(frame).unwrap())
    }

    #[test]
    fn an_error_quotes_the_five_tuple_of_its_packet() {
        for (client, server) in [
            (build::client_v4(), build::server_v4()),
            (build::client_v6(), build::server_v6()),
        ] {
            for about in [
                build::udp(client, server, b"hello"),
                build::tcp(client, server, b"hello"),
                build::ip(client.ip(), server.ip(), 132, &[1; 12]),
            ] {
                let error = build::icmp_error(server.ip(), client.ip(), 3, (&about, 1000));
                let tuple = parse(&about).unwrap().five_tuple(&about);
                assert_eq!(find(&error).unwrap().five_tuple(&error), Some(tuple));
                assert_eq!(find(&about), None, "no error");
                let elsewhere = build::icmp_error(client.ip(), server.ip(), 3, (&about, 1000));
                assert_eq!(find(&elsewhere), None, "not to the sender");
            }
        }
    }

    #[test]
    fn a_quote_has_the_ip_header_and_eight_bytes() {
        for (about, l4) in [(build::udp_v4(50), 20), (build::udp_v6(50), 40)] {
            let headers = parse(&about).unwrap();
            let (to, from) = (
                headers.five_tuple(&about).source,
                headers.five_tuple(&about).destination,
            );
            for length in 0..60 {
                let error = build::icmp_error(from, to, 4, (&about, length));
                assert!(IcmpQuote::is_error(&error, &parse(&error).unwrap()));
                assert_eq!(find(&error).is_some(), length >= l4 + 8, "{length} bytes");
            }
        }
    }
}
