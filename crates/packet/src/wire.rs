//! The headers of a frame between two nodes: NSH (RFC 8300) in front of the packet's own frame, on
//! Ethernet or in VXLAN (RFC 7348).
//!
//! ```text
//! in VXLAN only:
//!   14 bytes  Ethernet of the underlay
//!   20 bytes  IPv4: protocol UDP, DF, TTL 64      or  40 bytes  IPv6: hop limit 64
//!    8 bytes  UDP: source port from the packet's addresses, port 4789, checksum 0 (RFC 6935)
//!    8 bytes  VXLAN: flags 0x08, network identifier (24 bits)
//! 38 bytes    Ethernet and NSH as in `nsh`; the path identifier is that of the whole chain, the
//!             service index 255 minus the position in the whole chain, and the last word of the
//!             context names the kernel whose clock took the stamp (0: no stamp)
//! then        the packet's own frame
//! ```

use std::net::IpAddr;

use crate::mac::MacAddr;
use crate::meta::MAX_SPI;
use crate::nsh::{BASE, ENCAPSULATION_LEN, ETHERTYPE};

/// UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;
/// Bytes of Ethernet, IPv4, UDP and VXLAN headers.
pub const TUNNEL4_LEN: usize = 50;
/// Bytes of Ethernet, IPv6, UDP and VXLAN headers.
pub const TUNNEL6_LEN: usize = 70;
/// Bytes of the longest headers.
pub const LONGEST_HEADER: usize = TUNNEL6_LEN + ENCAPSULATION_LEN;
/// The time to live with which a frame leaves its first node (RFC 8300, section 2.2).
pub const FIRST_TTL: u32 = 63;

/// Largest MTU that the headers use. An interface may have a larger one, but a packet with its
/// headroom must fit into a page for XDP programs and user-space functions.
pub const LARGEST_MTU: u32 = 3438;

/// The flag of a valid network identifier.
const VXLAN_FLAGS: u8 = 0x08;
/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// The inner destination in a tunnel, whose far end takes frames by path and not by address: a
/// locally administered address.
const TUNNEL_MAC: MacAddr = MacAddr([0x02, 0x6d, 0x79, 0x6c, 0x6e, 0x00]);

/// A VXLAN tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The address of this node.
    pub local: IpAddr,
    /// The address of the neighbour, of the same family.
    pub remote: IpAddr,
    /// The VXLAN network identifier, 24 bits.
    pub vni: u32,
}

/// The headers of all frames from a part of a chain to the next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHeader {
    /// Ethernet address of this node's interface.
    pub source: MacAddr,
    /// Ethernet address of the next hop: the neighbour, or a router on the way to it.
    pub next_hop: MacAddr,
    /// The service path identifier of the whole chain.
    pub path: u32,
    /// The service index: 255 minus the position of the next part's first function.
    pub index: u8,
    /// The tunnel; `None` on the same Ethernet.
    pub tunnel: Option<Tunnel>,
    /// The new Ethernet destination of the packet's own frame, unless that is a group address.
    /// Behind routers, no station has the destination that the sender wrote. `None`: it stays.
    pub destination: Option<MacAddr>,
}

/// Returns the bytes in front of a packet.
pub fn header_len(tunnel: Option<&Tunnel>) -> usize {
    let outer = tunnel.map_or(0, |tunnel| match tunnel.local {
        IpAddr::V4(_) => TUNNEL4_LEN,
        IpAddr::V6(_) => TUNNEL6_LEN,
    });
    outer + ENCAPSULATION_LEN
}

/// Returns the longest IP packet, without a VLAN tag, that fits into a frame of an interface with
/// this MTU, bytes. 0 if none fits.
pub fn remaining_mtu(mtu: u32, tunnel: Option<&Tunnel>) -> u32 {
    mtu.min(LARGEST_MTU)
        .saturating_sub(header_len(tunnel) as u32)
}

impl WireHeader {
    /// Returns the headers and their length. Lengths, IPv4 checksum, UDP source port and the NSH
    /// context are 0; the program that sends the frame sets them and the time to live.
    pub fn bytes(&self) -> ([u8; LONGEST_HEADER], usize) {
        let mut bytes = [0; LONGEST_HEADER];
        let len = header_len(self.tunnel.as_ref());
        let (outer, nsh) = bytes.split_at_mut(len - ENCAPSULATION_LEN);
        let mut inner_destination = self.next_hop;
        if let Some(tunnel) = &self.tunnel {
            inner_destination = TUNNEL_MAC;
            self.write_tunnel(tunnel, outer);
        }
        write_ethernet(nsh, inner_destination, self.source, ETHERTYPE);
        nsh[14..18].copy_from_slice(&BASE.to_be_bytes());
        let path = (self.path & MAX_SPI) << 8 | u32::from(self.index);
        nsh[18..22].copy_from_slice(&path.to_be_bytes());
        nsh[32] = 255 - self.index;
        (bytes, len)
    }

    fn write_tunnel(&self, tunnel: &Tunnel, outer: &mut [u8]) {
        let ip = &mut outer[ETHERNET_LEN..];
        let (ethertype, ip_len) = match (tunnel.local, tunnel.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                ip[0] = 0x45;
                ip[6] = 0x40;
                (ip[8], ip[9]) = (64, crate::five_tuple::UDP);
                ip[12..16].copy_from_slice(&local.octets());
                ip[16..20].copy_from_slice(&remote.octets());
                (0x0800, 20)
            }
            (local, remote) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                ip[0] = 0x60;
                (ip[6], ip[7]) = (crate::five_tuple::UDP, 64);
                ip[8..24].copy_from_slice(&octets(local));
                ip[24..40].copy_from_slice(&octets(remote));
                (0x86dd, 40)
            }
        };
        let udp = &mut ip[ip_len..];
        udp[2..4].copy_from_slice(&VXLAN_PORT.to_be_bytes());
        udp[8] = VXLAN_FLAGS;
        udp[12..16].copy_from_slice(&(tunnel.vni << 8).to_be_bytes());
        write_ethernet(outer, self.next_hop, self.source, ethertype);
    }
}

fn write_ethernet(frame: &mut [u8], destination: MacAddr, source: MacAddr, ethertype: u16) {
    frame[..6].copy_from_slice(&destination.0);
    frame[6..12].copy_from_slice(&source.0);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::wire::{Refused, Sender, complete, receive};

    fn header(tunnel: Option<Tunnel>) -> WireHeader {
        WireHeader {
            source: MacAddr([2, 0, 0, 0, 0, 1]),
            next_hop: MacAddr([2, 0, 0, 0, 0, 2]),
            path: 0x80_0001,
            index: 253,
            tunnel,
            destination: None,
        }
    }

    fn tunnel(local: &str, remote: &str) -> Tunnel {
        Tunnel {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            vni: 0x01_0203,
        }
    }

    #[test]
    fn bytes_match_the_rfcs() {
        let (bytes, len) = header(None).bytes();
        assert_eq!(len, ENCAPSULATION_LEN);
        #[rustfmt::skip]
        assert_eq!(bytes[..22], [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x89, 0x4f,
            0x0f, 0xc6, 0x01, 0x03, 0x80, 0x00, 0x01, 253,
        ]);
        let (bytes, len) = header(Some(tunnel("10.0.0.1", "10.0.0.2"))).bytes();
        assert_eq!(len, TUNNEL4_LEN + ENCAPSULATION_LEN);
        #[rustfmt::skip]
        assert_eq!(bytes[..50], [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
            0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            0, 0, 0x12, 0xb5, 0, 0, 0, 0,
            0x08, 0, 0, 0, 1, 2, 3, 0,
        ]);
        assert_eq!(bytes[50..56], TUNNEL_MAC.0);
        let (bytes, len) = header(Some(tunnel("2001:db8::1", "2001:db8::2"))).bytes();
        assert_eq!(len, LONGEST_HEADER);
        assert_eq!(bytes[12..15], [0x86, 0xdd, 0x60]);
        assert_eq!(bytes[54..62], [0, 0, 0x12, 0xb5, 0, 0, 0, 0]);
    }

    #[test]
    fn frames_are_received_as_sent() {
        let inner = crate::fixtures::named("udp-v4").frame;
        for tunnel in [
            None,
            Some(tunnel("10.0.0.1", "10.0.0.2")),
            Some(tunnel("2001:db8::1", "2001:db8::2")),
        ] {
            let header = header(tunnel);
            let frame = complete(&header, &inner);
            let received = receive(&frame).unwrap();
            assert_eq!((received.path, received.index), (0x80_0001, 253));
            assert_eq!(u32::from(received.ttl), FIRST_TTL - 1);
            assert_eq!(received.inner, inner);
            let sender = match tunnel {
                None => Sender::Ethernet(header.source),
                Some(tunnel) => Sender::Vxlan {
                    remote: tunnel.local,
                    local: tunnel.remote,
                    vni: tunnel.vni,
                },
            };
            assert_eq!(received.sender, sender);
            for len in 0..frame.len() - inner.len() {
                assert!(receive(&frame[..len]).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn a_frame_at_the_end_of_its_time_is_refused() {
        let mut frame = complete(&header(None), &[0; 60]);
        (frame[14], frame[15]) = (0x00, 0x46);
        assert_eq!(receive(&frame).unwrap_err(), Refused::Expired);
    }

    #[test]
    fn the_mtu_that_remains_has_no_headers() {
        assert_eq!(remaining_mtu(1500, None), 1462);
        let v4 = tunnel("10.0.0.1", "10.0.0.2");
        assert_eq!(remaining_mtu(1500, Some(&v4)), 1412);
        let v6 = tunnel("2001:db8::1", "2001:db8::2");
        assert_eq!(remaining_mtu(1500, Some(&v6)), 1392);
        assert_eq!(remaining_mtu(100, Some(&v6)), 0);
        assert_eq!(remaining_mtu(9000, None), 3400);
    }
}
