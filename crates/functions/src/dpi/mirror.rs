//! Copies of packets for a collector, as TZSP (TaZmen Sniffer Protocol) over UDP.
//!
//! After the UDP header, a copy contains version 1, type 0 (a received packet), and the
//! encapsulated protocol 1 (Ethernet). The rest is tag 41 with the frame's length in two bytes, tag
//! 1 (end of the list), and the frame, truncated to fit. TZSP has no RFC; the numbers are from
//! Wireshark's dissector `packet-tzsp.c`.

use std::net::IpAddr;

use myelin_packet::checksum::{fold, sum};
use myelin_packet::five_tuple::UDP;
use myelin_spec::MirrorConfig;

use crate::{Packet, ip_header};

/// Longest IP packet sent, bytes.
const MTU: usize = 1500;
/// Longest Ethernet header, with two tags.
const MAX_ETHERNET_LEN: usize = 22;
const UDP_LEN: usize = 8;
const TZSP_LEN: usize = 9;

/// Writes copies of packets.
#[derive(Debug)]
pub(super) struct Mirror {
    config: MirrorConfig,
    /// Buffer for the copy, kept to avoid allocation.
    copy: Vec<u8>,
}

impl Mirror {
    pub(super) fn new(config: MirrorConfig) -> Self {
        Self {
            config,
            copy: Vec::with_capacity(MAX_ETHERNET_LEN + MTU),
        }
    }

    /// Copies the packet into a frame to the collector, with the packet's tags. Returns `None` if
    /// the packet has no Ethernet header, which never happens.
    pub(super) fn copy(&mut self, packet: &Packet<'_>) -> Option<&[u8]> {
        let frame = packet.bytes();
        let tags = frame.get(12..usize::from(packet.headers().l3).checked_sub(2)?)?;
        let (ip_len, ether_type) = match self.config.address {
            IpAddr::V4(_) => (20, 0x0800_u16),
            IpAddr::V6(_) => (40, 0x86dd),
        };
        let copied = &frame[..frame.len().min(MTU - ip_len - UDP_LEN - TZSP_LEN)];
        let udp_len = (UDP_LEN + TZSP_LEN + copied.len()) as u16;
        let (mac, source_mac) = (self.config.mac, self.config.source_mac);
        let copy = &mut self.copy;
        copy.clear();
        copy.extend_from_slice(mac.as_ref().map_or(&frame[..6], |mac| &mac.0));
        copy.extend_from_slice(source_mac.as_ref().map_or(&frame[6..12], |mac| &mac.0));
        copy.extend_from_slice(tags);
        copy.extend_from_slice(&ether_type.to_be_bytes());
        let ends = (self.config.source, self.config.address);
        let addresses = ip_header::write(copy, ends, UDP, 0, udp_len);

        let udp = copy.len();
        let port = self.config.port.to_be_bytes();
        copy.extend_from_slice(&port);
        copy.extend_from_slice(&port);
        copy.extend_from_slice(&udp_len.to_be_bytes());
        copy.extend_from_slice(&[0, 0]);
        copy.extend_from_slice(&[1, 0, 0, 1, 41, 2]);
        let length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        copy.extend_from_slice(&length.to_be_bytes());
        copy.push(1);
        copy.extend_from_slice(copied);
        let pseudo_header = addresses + u64::from(udp_len) + u64::from(UDP);
        let checksum = match !fold(pseudo_header + sum(&copy[udp..])) {
            0 => 0xffff,
            other => other,
        };
        copy[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        Some(copy)
    }
}
