//! IP headers of packets that functions make.

use std::net::IpAddr;

use myelin_packet::checksum::{checksum, sum};

const TIME_TO_LIVE: u8 = 64;

/// Appends the header of an IP packet with `length` bytes of `protocol`. Returns the sum of the
/// addresses, the first part of a pseudo-header. `class` is the traffic class of IPv6, or the type
/// of service of IPv4. The header is IPv6 if one address is IPv6.
pub(crate) fn write(
    frame: &mut Vec<u8>,
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    class: u8,
    length: u16,
) -> u64 {
    let at = frame.len();
    if let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) {
        frame.extend_from_slice(&[0x45, class]);
        frame.extend_from_slice(&(20 + length).to_be_bytes());
        // The packet is never fragmented, so it needs no identification (RFC 6864).
        frame.extend_from_slice(&[0, 0, 0x40, 0, TIME_TO_LIVE, protocol, 0, 0]);
        frame.extend_from_slice(&source.octets());
        frame.extend_from_slice(&destination.octets());
        let header = checksum(&frame[at..]);
        frame[at + 10..at + 12].copy_from_slice(&header.to_be_bytes());
        return sum(&frame[at + 12..]);
    }
    frame.extend_from_slice(&[0x60 | class >> 4, class << 4, 0, 0]);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[protocol, TIME_TO_LIVE]);
    for address in [source, destination] {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        frame.extend_from_slice(&octets);
    }
    sum(&frame[at + 8..])
}
