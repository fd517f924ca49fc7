//! Writes the ICMP messages of a router to the sender of a packet that it cannot forward: time
//! exceeded, and packet too big.

use std::net::{IpAddr, Ipv4Addr};

use myelin_packet::checksum::{fold, sum};
use myelin_packet::five_tuple::{ICMP, ICMPV6};
use myelin_packet::parse::ETHERNET_LEN;
use myelin_packet::{FiveTuple, Headers};

use crate::ip_header;

/// Longest message over IPv4, from its IP header on (RFC 1812, section 4.3.2.3).
const MAX_IPV4: usize = 576;
/// Longest message over IPv6: the minimum MTU (RFC 4443, section 2.4 c).
const MAX_IPV6: usize = 1280;
const ICMP_LEN: usize = 8;
/// Precedence "internetwork control" (RFC 1812, section 4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

/// Why a router does not forward a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// The time to live has expired (RFC 792; RFC 4443, section 3.3).
    TimeExceeded,
    /// The packet is longer than the MTU of the next link, bytes (RFC 1191, section 4; RFC 4443,
    /// section 3.2).
    TooBig(u32),
}

impl IcmpError {
    /// The first eight bytes of the message, without checksum: type, code and the MTU.
    fn header(self, protocol: u8) -> [u8; ICMP_LEN] {
        let (kind, code, mtu) = match (self, protocol) {
            (Self::TimeExceeded, ICMPV6) => (3, 0, 0),
            (Self::TimeExceeded, _) => (11, 0, 0),
            (Self::TooBig(mtu), ICMPV6) => (2, 0, mtu),
            // Destination unreachable: fragmentation needed. The field has 16 bits.
            (Self::TooBig(mtu), _) => (3, 4, mtu.min(u16::MAX.into())),
        };
        let [a, b, c, d] = mtu.to_be_bytes();
        [kind, code, 0, 0, a, b, c, d]
    }
}

/// Writes the message about `frame` into `message`, as a frame to the sender of `frame`. `from` is
/// the router's address of the same family. `frame` may be cut behind the quote; `headers` then end
/// there. Returns `false` if the RFCs forbid a message.
pub fn write(
    error: IcmpError,
    (frame, headers): (&[u8], &Headers),
    from: IpAddr,
    message: &mut Vec<u8>,
) -> bool {
    message.clear();
    let Some(tuple) = headers.try_five_tuple(frame) else {
        return false;
    };
    let (l3, end) = (usize::from(headers.l3), usize::from(headers.end));
    let (Some(ethernet), Some(packet)) = (frame.get(..l3), frame.get(l3..end)) else {
        return false;
    };
    if !may_report(frame, headers, &tuple) {
        return false;
    }
    let (protocol, class, quotable) = match (from, tuple.source) {
        (IpAddr::V4(_), IpAddr::V4(_)) => (ICMP, PRECEDENCE, MAX_IPV4 - 20 - ICMP_LEN),
        (IpAddr::V6(_), IpAddr::V6(_)) => (ICMPV6, 0, MAX_IPV6 - 40 - ICMP_LEN),
        _ => return false,
    };
    let quoted = &packet[..packet.len().min(quotable)];
    let length = (ICMP_LEN + quoted.len()) as u16;
    // Swap the MAC addresses; keep tags and type.
    message.extend_from_slice(&ethernet[6..12]);
    message.extend_from_slice(&ethernet[..6]);
    message.extend_from_slice(&ethernet[12..]);
    let addresses = ip_header::write(message, (from, tuple.source), protocol, class, length);
    let icmp = message.len();
    message.extend_from_slice(&error.header(protocol));
    message.extend_from_slice(quoted);
    // Over IPv6 the checksum covers a pseudo-header too.
    let pseudo_header = match protocol {
        ICMPV6 => addresses + u64::from(length) + u64::from(ICMPV6),
        _ => 0,
    };
    let checksum = !fold(pseudo_header + sum(&message[icmp..]));
    message[icmp + 2..icmp + 4].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Returns whether the RFCs allow an error message about the packet (RFC 1812, section 4.3.2.7; RFC
/// 4443, section 2.4 e).
fn may_report(frame: &[u8], headers: &Headers, tuple: &FiveTuple) -> bool {
    let is_to_group = frame[0] & 1 == 1
        || tuple.destination.is_multicast()
        || tuple.destination == IpAddr::V4(Ipv4Addr::BROADCAST);
    let is_from_host = match tuple.source {
        // First 4 bits set: broadcast and reserved addresses.
        IpAddr::V4(source) => {
            source.octets()[0] & 0xf0 < 0xe0 && !source.is_unspecified() && !source.is_loopback()
        }
        IpAddr::V6(source) => {
            !source.is_multicast() && !source.is_unspecified() && !source.is_loopback()
        }
    };
    if is_to_group || !is_from_host {
        return false;
    }
    let l3 = usize::from(headers.l3);
    let fragment = if headers.flags.is_ipv6() {
        0
    } else {
        u16::from_be_bytes([frame[l3 + 6], frame[l3 + 7]]) & 0x1fff
    };
    fragment == 0 && !forbids_message(frame.get(usize::from(headers.l4)), tuple.protocol)
}

/// Returns whether the RFCs forbid a message about this ICMP type. Returns `true` for a truncated
/// ICMP packet.
fn forbids_message(kind: Option<&u8>, protocol: u8) -> bool {
    match (protocol, kind) {
        (ICMP, Some(kind)) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // Types below 128 are errors, 137 is redirect.
        (ICMPV6, Some(kind)) => *kind < 128 || *kind == 137,
        (ICMP | ICMPV6, None) => true,
        _ => false,
    }
}

// Unchecked reads stay inside this length, which every parsed frame has.
const _: () = assert!(ETHERNET_LEN == 14);

#[cfg(test)]
mod tests {
    use myelin_packet::checksum::checksum;
    use myelin_packet::fixtures::build;
    use myelin_packet::parse;

    use super::*;

    #[test]
    fn headers_and_checksums_of_a_message_are_correct() {
        let v4 = build::udp(build::client_v4(), build::server_v4(), b"quoted");
        let v6 = build::udp(build::client_v6(), build::server_v6(), b"quoted");
        let too_big = IcmpError::TooBig(1400);
        for (error, frame, from, ip, icmp) in [
            (
                IcmpError::TimeExceeded,
                &v4,
                "10.0.0.254",
                [0x45, PRECEDENCE],
                [11, 0, 0, 0],
            ),
            (
                IcmpError::TimeExceeded,
                &v6,
                "fd00::fe",
                [0x60, 0],
                [3, 0, 0, 0],
            ),
            (
                too_big,
                &v4,
                "10.0.0.254",
                [0x45, PRECEDENCE],
                [3, 4, 5, 120],
            ),
            (too_big, &v6, "fd00::fe", [0x60, 0], [2, 0, 5, 120]),
        ] {
            let (original, from) = (parse(frame).unwrap(), from.parse().unwrap());
            let mut message = Vec::new();
            assert!(write(error, (frame, &original), from, &mut message));
            let headers = parse(&message).unwrap();
            let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
            assert_eq!(usize::from(headers.end), message.len());
            assert_eq!(
                (
                    &message[l3..l3 + 2],
                    &message[l4..l4 + 2],
                    &message[l4 + 6..l4 + 8]
                ),
                (&ip[..], &icmp[..2], &icmp[2..])
            );
            let (tuple, original_tuple) =
                (headers.five_tuple(&message), original.five_tuple(frame));
            assert_eq!(
                (tuple.source, tuple.destination),
                (from, original_tuple.source)
            );
            if from.is_ipv4() {
                assert_eq!(checksum(&message[l3..l4]), 0);
                assert_eq!(checksum(&message[l4..]), 0);
            } else {
                let length = (message.len() - l4) as u64;
                let pseudo_header = sum(&message[l3 + 8..l3 + 40]) + length + u64::from(ICMPV6);
                assert_eq!(fold(pseudo_header + sum(&message[l4..])), 0xffff);
            }
            assert_eq!(message[l4 + ICMP_LEN..], frame[original.l3.into()..]);
        }
    }
}
