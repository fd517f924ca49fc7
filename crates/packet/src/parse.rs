//! Finds the offsets of the headers in a frame.
//!
//! The front door's eBPF parser follows the same rules exactly:
//!
//! * Up to two VLAN tags (0x8100, 0x88a8). A frame with an EtherType other than IPv4 and IPv6 is
//!   [`Unparsed::NotIp`].
//! * The header length determines where IPv4 options end. The parser does not verify the header
//!   checksum; the receiver does.
//! * The parser skips the IPv6 extension headers hop-by-hop (0), routing (43), fragment (44), AH
//!   (51) and destination options (60), at most [`MAX_EXTENSIONS`]. Any other number is the
//!   protocol. Jumbograms (RFC 2675) are [`Unparsed::BadLength`].
//! * The length in the IP header must fit in the frame. Bytes after it are Ethernet padding, beyond
//!   [`Headers::end`].
//! * A fragment has no ports, not even the first fragment, so the classifier treats all fragments
//!   of a datagram alike. An IPv6 packet with a fragment header but offset 0 and no more fragments
//!   is complete (RFC 6946); the parser continues.
//! * The UDP length must be at least 8 and fit in the IP payload. If the datagram is shorter, `end`
//!   is the end of the datagram: the surplus (RFC 9868) is neither payload nor covered by the
//!   checksum. The TCP header must have at least 5 words and fit in the IP payload.
//! * [`Unparsed::Truncated`] means a header that does not fit, [`Unparsed::BadLength`] a length
//!   field that contradicts the frame.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::five_tuple::{FiveTuple, TCP, UDP};

/// Length of an Ethernet header without tags, bytes.
pub const ETHERNET_LEN: usize = 14;
/// Most VLAN tags; the parser refuses a frame with more tags.
pub const MAX_TAGS: usize = 2;
/// Most IPv6 extension headers; the parser refuses a packet with more headers.
pub const MAX_EXTENSIONS: usize = 8;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;

const IPV4_MIN_LEN: usize = 20;
const IPV6_LEN: usize = 40;
pub(crate) const UDP_LEN: usize = 8;
pub(crate) const TCP_MIN_LEN: usize = 20;
const EXTENSION_MIN_LEN: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// Properties of a packet in one byte: the bits of `myelin_meta.flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// The packet is IPv6; otherwise it is IPv4.
    pub const IPV6: Self = Self(1);
    /// The packet is a fragment, first, middle or last.
    pub const FRAGMENT: Self = Self(1 << 1);
    /// A UDP or TCP header was parsed, so the packet has ports.
    pub const PORTS: Self = Self(1 << 2);

    /// The frame begins with an [`Offload`](crate::Offload). Only in user space.
    pub const OFFLOADED: Self = Self(1 << 3);

    const ALL: u8 = 0b1111;

    /// Returns the flags in `bits`. Clears undefined bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL)
    }

    /// Returns the byte for the metadata.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the union of the two sets.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Returns this set without `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Returns whether every flag of `flags` is set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns whether the packet is IPv6.
    pub const fn is_ipv6(self) -> bool {
        self.contains(Self::IPV6)
    }

    /// Returns whether the packet is a fragment.
    pub const fn is_fragment(self) -> bool {
        self.contains(Self::FRAGMENT)
    }

    /// Returns whether the frame begins with an [`Offload`](crate::Offload).
    pub const fn is_offloaded(self) -> bool {
        self.contains(Self::OFFLOADED)
    }

    /// Returns whether a UDP or TCP header was parsed.
    pub const fn has_ports(self) -> bool {
        self.contains(Self::PORTS)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_ipv6() { "IPv6" } else { "IPv4" })?;
        if self.is_fragment() {
            f.write_str(" fragment")?;
        }
        if self.has_ports() {
            f.write_str(" with ports")?;
        }
        Ok(())
    }
}

/// Offsets of the parts of a frame, bytes from its Ethernet header.
///
/// `14 <= l3 < l4 <= payload <= end <=` length of the frame that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    /// Start of the IP header.
    pub l3: u16,
    /// End of the IP header with its options or extension headers.
    pub l4: u16,
    /// End of the UDP or TCP header; equal to `l4` without such a header.
    pub payload: u16,
    /// End of the IP packet, or of the UDP datagram if that is shorter. Only padding or surplus
    /// follows.
    pub end: u16,
    /// Properties of the packet.
    pub flags: Flags,
    /// IP protocol number; for an IPv6 fragment, the number in the fragment header.
    pub protocol: u8,
}

impl Headers {
    /// Returns the addresses, protocol and ports of `frame`, from which these headers were parsed.
    /// `None` if `frame` is too short.
    pub fn try_five_tuple(&self, frame: &[u8]) -> Option<FiveTuple> {
        let l3 = usize::from(self.l3);
        let (source, destination): (IpAddr, IpAddr) = if self.flags.is_ipv6() {
            let address = |at| chunk::<16>(frame, at).ok().copied();
            (address(l3 + 8)?.into(), address(l3 + 24)?.into())
        } else {
            let address = |at| chunk::<4>(frame, at).ok().copied();
            (address(l3 + 12)?.into(), address(l3 + 16)?.into())
        };
        let ports = if self.flags.has_ports() {
            let l4 = usize::from(self.l4);
            Some((be16(frame, l4).ok()?, be16(frame, l4 + 2).ok()?))
        } else {
            None
        };
        Some(FiveTuple {
            source,
            destination,
            protocol: self.protocol,
            source_port: ports.map(|p| p.0),
            destination_port: ports.map(|p| p.1),
        })
    }

    /// Returns the addresses, protocol and ports of `frame`.
    ///
    /// # Panics
    /// If `frame` is shorter than the frame from which these headers were parsed.
    pub fn five_tuple(&self, frame: &[u8]) -> FiveTuple {
        self.try_five_tuple(frame)
            .expect("the headers were parsed from this frame")
    }
}

/// Why a frame was not parsed. The numbers equal those of the eBPF programs.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    thiserror::Error,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Unparsed {
    /// Neither IPv4 nor IPv6: ARP, LLDP, 802.3 frames.
    #[error("neither IPv4 nor IPv6")]
    NotIp = 1,
    /// A header does not fit in the frame or in the IP packet.
    #[error("a header is cut short")]
    Truncated = 2,
    /// Wrong IP version, or an IPv4 header length below 5 words.
    #[error("IP version or header length is wrong")]
    BadIpHeader = 3,
    /// A length field contradicts the frame, or the packet ends beyond byte 65 535 of the frame.
    #[error("a length field contradicts the frame")]
    BadLength = 4,
    /// More than [`MAX_TAGS`] VLAN tags.
    #[error("more than 2 VLAN tags")]
    TooManyTags = 5,
    /// More than [`MAX_EXTENSIONS`] IPv6 extension headers.
    #[error("more than 8 IPv6 extension headers")]
    TooManyExtensions = 6,
}

impl Unparsed {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::NotIp,
        Self::Truncated,
        Self::BadIpHeader,
        Self::BadLength,
        Self::TooManyTags,
        Self::TooManyExtensions,
    ];

    /// Returns the number under which the eBPF programs count the reason.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Finds the headers of `frame`, which starts with its Ethernet header.
pub fn parse(frame: &[u8]) -> Result<Headers, Unparsed> {
    let (ethertype, l3) = parse_ethernet(frame)?;
    let (packet, end) = match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(frame, l3)?,
        ETHERTYPE_IPV6 => parse_ipv6(frame, l3)?,
        _ => return Err(Unparsed::NotIp),
    };
    let (payload, end, ports) = if packet.flags.is_fragment() {
        (packet.l4, end, false)
    } else {
        parse_transport(frame, packet.protocol, packet.l4, end)?
    };
    // The metadata stores 16-bit offsets. A packet of nearly 64 KiB behind tags may end beyond
    // byte 65 535.
    let end = u16::try_from(end).map_err(|_| Unparsed::BadLength)?;
    Ok(Headers {
        l3: l3 as u16,
        l4: packet.l4 as u16,
        payload: payload as u16,
        end,
        flags: if ports {
            packet.flags.with(Flags::PORTS)
        } else {
            packet.flags
        },
        protocol: packet.protocol,
    })
}

/// The result of parsing an IP header with its options or extension headers.
struct NetworkHeader {
    l4: usize,
    flags: Flags,
    protocol: u8,
}

/// Returns the EtherType after the tags, and the offset of the network header.
fn parse_ethernet(frame: &[u8]) -> Result<(u16, usize), Unparsed> {
    let mut ethertype = be16(frame, ETHERNET_LEN - 2)?;
    let mut l3 = ETHERNET_LEN;
    let mut tags = 0;
    while ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
        if tags == MAX_TAGS {
            return Err(Unparsed::TooManyTags);
        }
        ethertype = be16(frame, l3 + 2)?;
        l3 += 4;
        tags += 1;
    }
    Ok((ethertype, l3))
}

/// Parses an IPv4 header (RFC 791). Returns the header and the end of the packet.
fn parse_ipv4(frame: &[u8], l3: usize) -> Result<(NetworkHeader, usize), Unparsed> {
    let header: &[u8; IPV4_MIN_LEN] = chunk(frame, l3)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || header_len < IPV4_MIN_LEN {
        return Err(Unparsed::BadIpHeader);
    }
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if total < header_len || l3 + total > frame.len() {
        return Err(Unparsed::BadLength);
    }
    // More fragments, or an offset. The two bits above are the reserved bit and "don't fragment".
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let flags = if fragment {
        Flags::FRAGMENT
    } else {
        Flags::default()
    };
    Ok((
        NetworkHeader {
            l4: l3 + header_len,
            flags,
            protocol: header[9],
        },
        l3 + total,
    ))
}

/// Parses an IPv6 header (RFC 8200). Returns the header and the end of the packet.
fn parse_ipv6(frame: &[u8], l3: usize) -> Result<(NetworkHeader, usize), Unparsed> {
    let header: &[u8; IPV6_LEN] = chunk(frame, l3)?;
    if header[0] >> 4 != 6 {
        return Err(Unparsed::BadIpHeader);
    }
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = l3 + IPV6_LEN + payload;
    // Length 0 with a hop-by-hop header is a jumbogram (RFC 2675), with the length in an option.
    if end > frame.len() || (payload == 0 && header[6] == HOP_BY_HOP) {
        return Err(Unparsed::BadLength);
    }
    Ok((
        skip_extensions(&frame[..end], header[6], l3 + IPV6_LEN)?,
        end,
    ))
}

/// Returns whether the parser skips the IPv6 extension header with this number.
pub(crate) fn is_extension(number: u8) -> bool {
    matches!(
        number,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION
    )
}

/// Skips the extension headers from offset `at`. `packet` ends with the IPv6 packet. `next` is the
/// number of the first extension header.
fn skip_extensions(packet: &[u8], mut next: u8, mut at: usize) -> Result<NetworkHeader, Unparsed> {
    let mut skipped = 0;
    while is_extension(next) {
        if skipped == MAX_EXTENSIONS {
            return Err(Unparsed::TooManyExtensions);
        }
        let header: &[u8; EXTENSION_MIN_LEN] = chunk(packet, at)?;
        let kind = next;
        next = header[0];
        at += match kind {
            FRAGMENT => EXTENSION_MIN_LEN,
            // RFC 4302, section 2.2: in 32-bit words, minus 2.
            AUTHENTICATION => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if at > packet.len() {
            return Err(Unparsed::Truncated);
        }
        // Offset (13 bits) and "more fragments": if both are zero, the packet is complete (RFC
        // 6946).
        if kind == FRAGMENT && u16::from_be_bytes([header[2], header[3]]) & 0xfff9 != 0 {
            return Ok(NetworkHeader {
                l4: at,
                flags: Flags::IPV6.with(Flags::FRAGMENT),
                protocol: next,
            });
        }
        skipped += 1;
    }
    Ok(NetworkHeader {
        l4: at,
        flags: Flags::IPV6,
        protocol: next,
    })
}

/// Returns the protocol after the extension headers of a parsed packet. `up_to_l4` ends with
/// the extension headers.
pub(crate) fn last_protocol(up_to_l4: &[u8], next: u8, at: usize) -> Result<u8, Unparsed> {
    skip_extensions(up_to_l4, next, at).map(|network| network.protocol)
}

/// Returns the end of the extension headers of a quoted packet, and the protocol behind them.
/// `packet` may end within the quoted packet. Returns `None` for a fragment that is not the first.
pub(crate) fn skip_quoted_extensions(packet: &[u8], next: u8, at: usize) -> Option<(usize, u8)> {
    let network = skip_extensions(packet, next, at).ok()?;
    if network.flags.is_fragment() {
        let offset = be16(packet, network.l4 - EXTENSION_MIN_LEN + 2).ok()? & 0xfff8;
        return (offset == 0).then_some((network.l4, network.protocol));
    }
    Some((network.l4, network.protocol))
}

/// Returns the start of the payload, the end of the packet, and whether the packet has ports.
fn parse_transport(
    frame: &[u8],
    protocol: u8,
    l4: usize,
    end: usize,
) -> Result<(usize, usize, bool), Unparsed> {
    let packet = &frame[..end];
    match protocol {
        UDP => {
            let header: &[u8; UDP_LEN] = chunk(packet, l4)?;
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            if length < UDP_LEN || l4 + length > end {
                return Err(Unparsed::BadLength);
            }
            Ok((l4 + UDP_LEN, l4 + length, true))
        }
        TCP => {
            let header: &[u8; TCP_MIN_LEN] = chunk(packet, l4)?;
            let length = usize::from(header[12] >> 4) * 4;
            if length < TCP_MIN_LEN || l4 + length > end {
                return Err(Unparsed::BadLength);
            }
            Ok((l4 + length, end, true))
        }
        _ => Ok((l4, end, false)),
    }
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, Unparsed> {
    chunk(bytes, at).map(|&two| u16::from_be_bytes(two))
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Result<&[u8; N], Unparsed> {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(Unparsed::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn flags_keep_only_defined_bits() {
        assert_eq!(Flags::from_bits(0xff).bits(), 0b1111);
        let flags = Flags::IPV6.with(Flags::PORTS);
        assert!(flags.is_ipv6() && flags.has_ports() && !flags.is_fragment());
        assert_eq!(flags.to_string(), "IPv6 with ports");
        assert_eq!(Flags::FRAGMENT.to_string(), "IPv4 fragment");
    }

    #[test]
    fn each_reason_has_its_number() {
        for (i, reason) in Unparsed::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.code()), i + 1);
        }
    }

    #[test]
    fn messages_contain_the_limits_of_the_code() {
        assert!(
            Unparsed::TooManyTags
                .to_string()
                .contains(&MAX_TAGS.to_string())
        );
        assert!(
            Unparsed::TooManyExtensions
                .to_string()
                .contains(&MAX_EXTENSIONS.to_string())
        );
    }

    #[test]
    fn another_frame_has_no_five_tuple() {
        let headers = parse(&fixtures::named("udp-v4").frame).unwrap();
        assert_eq!(headers.try_five_tuple(&[0; 37]), None);
        assert_eq!(headers.try_five_tuple(&[]), None);
        assert!(headers.try_five_tuple(&[0; 38]).is_some());
    }
}
