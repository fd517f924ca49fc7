//! Ethernet and IP headers of a received packet, as a template for new packets.

use myelin_packet::checksum;
use myelin_packet::five_tuple::UDP;
use myelin_packet::{Meta, parse};

use crate::Packet;
use crate::datagram::Datagram;
use crate::word::write_word;

/// Longest Ethernet header that the parser accepts: two VLAN tags.
const MAX_L3: usize = 22;
const UDP_LEN: usize = 8;

/// Fields of a received packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderTemplate {
    meta: Meta,
    ethernet: [u8; MAX_L3],
    l3: usize,
    /// The IP header without options and extension headers.
    ip: [u8; 40],
    is_ipv6: bool,
    ports: [u8; 4],
    has_checksum: bool,
}

impl HeaderTemplate {
    /// Copies the fields of `packet`.
    pub(super) fn of(packet: &Packet<'_>, datagram: &Datagram) -> Option<Self> {
        let frame = packet.bytes();
        let mut template = Self {
            meta: *packet.meta(),
            ethernet: [0; MAX_L3],
            l3: datagram.l3,
            ip: [0; 40],
            is_ipv6: datagram.is_ipv6,
            ports: *frame.get(datagram.l4..)?.first_chunk()?,
            has_checksum: datagram.has_checksum(),
        };
        let (l3, ip_len) = (datagram.l3, template.ip_len());
        template
            .ethernet
            .get_mut(..l3)?
            .copy_from_slice(&frame[..l3]);
        template.ip[..ip_len].copy_from_slice(frame.get(l3..l3 + ip_len)?);
        Some(template)
    }

    /// Returns the metadata of the received packet.
    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    fn ip_len(&self) -> usize {
        if self.is_ipv6 { 40 } else { 20 }
    }

    /// Returns the length of the IP and UDP headers of a new packet, bytes.
    pub(super) fn headers_len(&self) -> usize {
        self.ip_len() + UDP_LEN
    }

    /// Returns the offset of the UDP payload in a new frame.
    pub(super) fn payload_offset(&self) -> usize {
        self.l3 + self.headers_len()
    }

    /// Writes the headers in front of the `len` bytes of payload in `frame`, with the template's
    /// addresses, ports and priority, and without fragmentation. Returns the length of the frame,
    /// or `None` if the IP packet would exceed `mtu`.
    pub(super) fn write_headers(&self, frame: &mut [u8], len: usize, mtu: usize) -> Option<usize> {
        let (l3, l4) = (self.l3, self.l3 + self.ip_len());
        let end = self.payload_offset() + len;
        if end - l3 > mtu {
            return None;
        }
        let frame = frame.get_mut(..end)?;
        frame[..l3].copy_from_slice(&self.ethernet[..l3]);
        let ip = &mut frame[l3..l4];
        ip.copy_from_slice(&self.ip[..ip.len()]);
        if self.is_ipv6 {
            write_word(ip, 4, (end - l4) as u16)?;
            ip[6] = UDP;
        } else {
            ip[0] = 0x45;
            write_word(ip, 2, (end - l3) as u16)?;
            // An unfragmented packet needs no identification (RFC 6864).
            ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            ip[9] = UDP;
            write_ipv4_checksum(ip)?;
        }
        frame[l4..l4 + 4].copy_from_slice(&self.ports);
        write_word(frame, l4 + 4, (end - l4) as u16)?;
        write_word(frame, l4 + 6, 0)?;
        if self.has_checksum {
            let headers = parse(frame).ok()?;
            write_word(frame, l4 + 6, checksum::l4_checksum(frame, &headers)?)?;
        }
        Some(end)
    }

    fn hop_limit(&self) -> u8 {
        self.ip[if self.is_ipv6 { 7 } else { 8 }]
    }

    /// Returns DSCP and ECN: the traffic class of IPv6, or the former type of service of IPv4.
    fn traffic_class(&self) -> u8 {
        if self.is_ipv6 {
            self.ip[0] << 4 | self.ip[1] >> 4
        } else {
            self.ip[1]
        }
    }

    /// Writes the packet of a unit to `frame`, with the template's values for fields that routers
    /// change. Returns the frame's length, or `None` if the unit is not a UDP packet or has a wrong
    /// checksum.
    pub(super) fn restore(&self, frame: &mut [u8], unit: &[u8]) -> Option<usize> {
        let end = self.l3 + unit.len();
        let frame = frame.get_mut(..end)?;
        let (ethernet, ip) = frame.split_at_mut_checked(self.l3)?;
        ethernet.copy_from_slice(&self.ethernet[..self.l3]);
        ip.copy_from_slice(unit);
        let ethertype = match ip.first()? >> 4 {
            4 if ip.len() >= 20 => {
                ip[1] = self.traffic_class();
                ip[8] = self.hop_limit();
                let header_len = usize::from(ip[0] & 0x0f) * 4;
                write_ipv4_checksum(ip.get_mut(..header_len.max(20))?)?;
                0x0800
            }
            6 if ip.len() >= 40 => {
                ip[0] = 0x60 | self.traffic_class() >> 4;
                ip[1] = self.traffic_class() << 4 | ip[1] & 0x0f;
                ip[7] = self.hop_limit();
                0x86dd
            }
            _ => return None,
        };
        write_word(ethernet, self.l3.checked_sub(2)?, ethertype)?;
        let headers = parse(frame).ok()?;
        let is_whole = usize::from(headers.end) == end && headers.protocol == UDP;
        let is_valid = checksum::l4_is_valid(frame, &headers) == Some(true);
        (is_whole && is_valid).then_some(end)
    }
}

/// Computes the checksum of an IPv4 header, and writes it into the header.
fn write_ipv4_checksum(header: &mut [u8]) -> Option<()> {
    write_word(header, 10, 0)?;
    let sum = checksum::checksum(header);
    write_word(header, 10, sum)
}
