//! Makes a frame that a match takes, for generators.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{checksum, l4_checksum, l4_offset};
use crate::five_tuple::{TCP, UDP};
use crate::match_rule::Match;
use crate::parse::{ETHERNET_LEN, parse};
use crate::prefix::{Family, Prefix};

/// Port of a packet whose match names none: the discard service (RFC 863).
const DISCARD: u16 = 9;
/// Hops that the packet may pass.
const HOPS: u8 = 64;
/// Bytes of the payload.
const FILL: u8 = 0x55;
/// Source and destination of a packet whose match names none: addresses for documents (RFC 5737,
/// RFC 3849).
const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
];

/// Why there is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSample {
    /// The headers need this number of bytes.
    TooShort(usize),
    /// The match takes no packet.
    Nothing,
}

/// Makes a frame of `len` bytes, without a check sequence, that `rule` takes: UDP, unless the match
/// names another protocol. The checksums of IP, UDP and TCP are valid. MAC addresses are locally
/// administered.
///
/// # Errors
/// The length is too small, or the match takes no packet.
pub fn frame(rule: &Match, len: usize) -> Result<Vec<u8>, NoSample> {
    let family = rule.families().next().ok_or(NoSample::Nothing)?;
    let protocol = rule.protocol.unwrap_or(UDP);
    let header = match family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let transport = match protocol {
        UDP => 8,
        TCP => 20,
        _ => 0,
    };
    let l4 = ETHERNET_LEN + header;
    if len < l4 + transport {
        return Err(NoSample::TooShort(l4 + transport));
    }
    let mut frame = vec![FILL; len];
    frame[..l4 + transport].fill(0);
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    write_network(rule, (family, protocol), &mut frame);
    let ports = [rule.source_port, rule.destination_port];
    let ports = ports.map(|port| port.unwrap_or(DISCARD).to_be_bytes());
    let segment = &mut frame[l4..];
    match protocol {
        UDP => {
            let len = segment.len() as u16;
            segment[4..6].copy_from_slice(&len.to_be_bytes());
        }
        TCP => {
            // A header of five words, with the flag ACK, and the largest window.
            segment[12..16].copy_from_slice(&[5 << 4, 0x10, 0xff, 0xff]);
        }
        _ => {}
    }
    if transport > 0 {
        segment[..4].copy_from_slice(&ports.concat());
    }
    if let Ok(headers) = parse(&frame)
        && let (Some(sum), Some(at)) = (l4_checksum(&frame, &headers), l4_offset(&headers))
    {
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    // A protocol may be an extension header, which the parser skips.
    let is_taken = parse(&frame).is_ok_and(|headers| rule.matches(&headers.five_tuple(&frame)));
    if is_taken {
        Ok(frame)
    } else {
        Err(NoSample::Nothing)
    }
}

fn write_network(rule: &Match, (family, protocol): (Family, u8), frame: &mut [u8]) {
    let named = |prefix: Option<Prefix>| prefix.map(|prefix| prefix.addr());
    let (source, destination) = (named(rule.source), named(rule.destination));
    let (ethertype, packet) = frame[12..].split_at_mut(2);
    let len = packet.len();
    match family {
        Family::V4 => {
            ethertype.copy_from_slice(&[0x08, 0x00]);
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            // Do not fragment.
            packet[6] = 0x40;
            (packet[8], packet[9]) = (HOPS, protocol);
            for (at, address, default) in [(12, source, V4[0]), (16, destination, V4[1])] {
                let address = match address {
                    Some(IpAddr::V4(address)) => address,
                    _ => default,
                };
                packet[at..at + 4].copy_from_slice(&address.octets());
            }
            let sum = checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Family::V6 => {
            ethertype.copy_from_slice(&[0x86, 0xdd]);
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            (packet[6], packet[7]) = (protocol, HOPS);
            for (at, address, default) in [(8, source, V6[0]), (24, destination, V6[1])] {
                let address = match address {
                    Some(IpAddr::V6(address)) => address,
                    _ => default,
                };
                packet[at..at + 16].copy_from_slice(&address.octets());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::l4_is_valid;

    fn rule(source: Option<&str>, destination: Option<&str>, protocol: Option<u8>) -> Match {
        Match {
            source: source.map(|text| text.parse().unwrap()),
            destination: destination.map(|text| text.parse().unwrap()),
            protocol,
            ..Match::default()
        }
    }

    #[test]
    fn each_match_takes_its_frame() {
        let with_ports = |protocol| Match {
            source_port: Some(7),
            destination_port: Some(9000),
            ..rule(None, Some("2001:db8:1::/48"), Some(protocol))
        };
        let rules = [
            Match::default(),
            rule(None, Some("10.0.0.2/32"), Some(UDP)),
            rule(Some("10.1.0.0/16"), Some("10.0.0.2/32"), Some(TCP)),
            rule(Some("2001:db8::7/128"), None, None),
            rule(None, Some("10.0.0.2/32"), Some(132)),
            with_ports(UDP),
            with_ports(TCP),
        ];
        for rule in rules {
            for len in [74, 75, 1514] {
                let frame = frame(&rule, len).unwrap();
                let headers = parse(&frame).unwrap();
                assert_eq!((frame.len(), usize::from(headers.end)), (len, len));
                assert!(rule.matches(&headers.five_tuple(&frame)), "{rule:?}");
                assert_ne!(l4_is_valid(&frame, &headers), Some(false), "{rule:?}");
            }
        }
    }

    #[test]
    fn a_length_below_the_headers_and_a_match_of_nothing_are_refused() {
        let udp = rule(None, Some("10.0.0.2/32"), Some(UDP));
        assert_eq!(frame(&udp, 41), Err(NoSample::TooShort(42)));
        assert_eq!(frame(&udp, 42).unwrap().len(), 42);
        let mixed = rule(Some("10.0.0.2/32"), Some("2001:db8::/64"), None);
        assert_eq!(frame(&mixed, 1000), Err(NoSample::Nothing));
    }
}
