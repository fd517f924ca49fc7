//! ICMP time exceeded (RFC 792; RFC 4443, section 3.3): what a router tells the sender of a packet
//! whose time to live ran out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use myelin_packet::checksum::{checksum, fold, sum};
use myelin_packet::five_tuple::{ICMP, ICMPV6};
use myelin_packet::parse::ETHERNET_LEN;
use myelin_packet::{FiveTuple, Headers};

/// Longest message over IPv4, from its IP header on (RFC 1812, section 4.3.2.3).
const MAX_IPV4: usize = 576;
/// Longest message over IPv6: the minimum MTU (RFC 4443, section 2.4 c).
const MAX_IPV6: usize = 1280;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const ICMP_LEN: usize = 8;
const TIME_TO_LIVE: u8 = 64;
/// Precedence "internetwork control" (RFC 1812, section 4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

/// Writes the message about `frame` into `message`, as a frame to whoever sent it; `from` is the
/// router's own address, of the same family. `false` when there must be none.
pub(crate) fn write(frame: &[u8], headers: &Headers, from: IpAddr, message: &mut Vec<u8>) -> bool {
    message.clear();
    let Some(tuple) = headers.try_five_tuple(frame) else {
        return false;
    };
    let (l3, end) = (usize::from(headers.l3), usize::from(headers.end));
    let (Some(ethernet), Some(packet)) = (frame.get(..l3), frame.get(l3..end)) else {
        return false;
    };
    if !may_be_told(frame, headers, &tuple) {
        return false;
    }
    let quoted = |max: usize, header: usize| &packet[..packet.len().min(max - header - ICMP_LEN)];
    // To whom it came from, from whom it went to; tags and type stay.
    message.extend_from_slice(&ethernet[6..12]);
    message.extend_from_slice(&ethernet[..6]);
    message.extend_from_slice(&ethernet[12..]);
    match (from, tuple.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            write_ipv4(from, to, quoted(MAX_IPV4, IPV4_LEN), message);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            write_ipv6(from, to, quoted(MAX_IPV6, IPV6_LEN), message);
        }
        _ => return false,
    }
    true
}

/// Whether there may be an error message about the packet (RFC 1812, section 4.3.2.7; RFC 4443,
/// section 2.4 e).
fn may_be_told(frame: &[u8], headers: &Headers, tuple: &FiveTuple) -> bool {
    let to_a_group = frame[0] & 1 == 1
        || tuple.destination.is_multicast()
        || tuple.destination == IpAddr::V4(Ipv4Addr::BROADCAST);
    let from_a_host = match tuple.source {
        // The first 4 bits set are broadcast and what was never given out.
        IpAddr::V4(source) => {
            source.octets()[0] & 0xf0 < 0xe0 && !source.is_unspecified() && !source.is_loopback()
        }
        IpAddr::V6(source) => {
            !source.is_multicast() && !source.is_unspecified() && !source.is_loopback()
        }
    };
    if to_a_group || !from_a_host {
        return false;
    }
    let l3 = usize::from(headers.l3);
    let fragment = if headers.flags.is_ipv6() {
        0
    } else {
        u16::from_be_bytes([frame[l3 + 6], frame[l3 + 7]]) & 0x1fff
    };
    fragment == 0 && !is_error(frame.get(usize::from(headers.l4)), tuple.protocol)
}

/// Whether a message of that type, if it is ICMP, may not cause another; one that is cut off counts.
fn is_error(kind: Option<&u8>, protocol: u8) -> bool {
    match (protocol, kind) {
        (ICMP, Some(kind)) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // Below 128 are errors, 137 is redirect.
        (ICMPV6, Some(kind)) => *kind < 128 || *kind == 137,
        (ICMP | ICMPV6, None) => true,
        _ => false,
    }
}

fn write_ipv4(from: Ipv4Addr, to: Ipv4Addr, quoted: &[u8], message: &mut Vec<u8>) {
    let ip = message.len();
    let total = (IPV4_LEN + ICMP_LEN + quoted.len()) as u16;
    message.extend_from_slice(&[0x45, PRECEDENCE]);
    message.extend_from_slice(&total.to_be_bytes());
    // Never fragmented, so it needs no number (RFC 6864).
    message.extend_from_slice(&[0, 0, 0x40, 0, TIME_TO_LIVE, ICMP, 0, 0]);
    message.extend_from_slice(&from.octets());
    message.extend_from_slice(&to.octets());
    let header = checksum(&message[ip..]);
    message[ip + 10..ip + 12].copy_from_slice(&header.to_be_bytes());
    let icmp = message.len();
    message.extend_from_slice(&[11, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(quoted);
    let whole = checksum(&message[icmp..]);
    message[icmp + 2..icmp + 4].copy_from_slice(&whole.to_be_bytes());
}

fn write_ipv6(from: Ipv6Addr, to: Ipv6Addr, quoted: &[u8], message: &mut Vec<u8>) {
    let ip = message.len();
    let length = (ICMP_LEN + quoted.len()) as u16;
    message.extend_from_slice(&[0x60, 0, 0, 0]);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&[ICMPV6, TIME_TO_LIVE]);
    message.extend_from_slice(&from.octets());
    message.extend_from_slice(&to.octets());
    let icmp = message.len();
    message.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(quoted);
    let pseudo_header = sum(&message[ip + 8..icmp]) + u64::from(length) + u64::from(ICMPV6);
    let whole = !fold(pseudo_header + sum(&message[icmp..]));
    message[icmp + 2..icmp + 4].copy_from_slice(&whole.to_be_bytes());
}

// What is read without a check lies in every frame that was parsed.
const _: () = assert!(ETHERNET_LEN == 14);
