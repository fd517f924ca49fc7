//! The metadata of a packet in its chain.

use bytemuck::{Pod, Zeroable};

use crate::five_tuple::{TCP, UDP};
use crate::parse::{Flags, Headers, TCP_MIN_LEN, UDP_LEN, last_protocol};

/// Bytes of [`Meta`].
pub const META_LEN: usize = 24;

/// Largest service path identifier (RFC 8300, section 2.3: 24 bits).
pub const MAX_SPI: u32 = (1 << 24) - 1;

/// The metadata of a packet lies directly in front of the Ethernet header (XDP metadata area, frame
/// headroom in user space), in native byte order. Same layout as `struct myelin_meta`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Meta {
    /// Time of the packet at the front door: CLOCK_MONOTONIC, nanoseconds.
    pub stamp_ns: u64,
    /// Service path identifier, 24 bits: the chain's number on the node.
    pub spi: u32,
    /// The chain's generation.
    pub generation: u16,
    /// Position of the next function, from 0.
    pub position: u8,
    /// [`Flags`] as bits.
    pub flags: u8,
    /// See [`Headers::l3`].
    pub l3: u16,
    /// See [`Headers::l4`].
    pub l4: u16,
    /// See [`Headers::payload`].
    pub payload: u16,
    /// See [`Headers::end`].
    pub end: u16,
}

const _: () = assert!(size_of::<Meta>() == META_LEN);

impl Meta {
    /// Makes the metadata of a packet with these headers.
    pub fn new(stamp_ns: u64, spi: u32, generation: u16, position: u8, headers: &Headers) -> Self {
        let mut meta = Self {
            stamp_ns,
            spi,
            generation,
            position,
            ..Self::default()
        };
        meta.set_headers(headers);
        meta
    }

    /// Stores offsets and flags after a function moved the headers.
    pub fn set_headers(&mut self, headers: &Headers) {
        self.flags = headers.flags.bits();
        self.l3 = headers.l3;
        self.l4 = headers.l4;
        self.payload = headers.payload;
        self.end = headers.end;
    }

    /// Returns the flags of the packet.
    pub fn flags(&self) -> Flags {
        Flags::from_bits(self.flags)
    }

    /// Returns the headers of `frame` from the metadata, without parsing. `None` if the offsets do
    /// not fit this frame.
    pub fn headers(&self, frame: &[u8]) -> Option<Headers> {
        let flags = self.flags();
        let [l3, l4, payload] = [self.l3, self.l4, self.payload].map(usize::from);
        let (header_len, protocol_at) = if flags.is_ipv6() { (40, 6) } else { (20, 9) };
        if self.payload > self.end || usize::from(self.end) > frame.len() || l3 + header_len > l4 {
            return None;
        }
        let mut protocol = *frame.get(l3 + protocol_at)?;
        if flags.is_ipv6() && l4 > l3 + header_len {
            let up_to_l4 = frame.get(..l4)?;
            protocol = last_protocol(up_to_l4, protocol, l3 + header_len).ok()?;
        }
        let transport_len = match (flags.has_ports(), protocol) {
            (false, _) => 0,
            (true, UDP) => UDP_LEN,
            (true, TCP) => TCP_MIN_LEN,
            (true, _) => return None,
        };
        (l4 + transport_len <= payload).then_some(Headers {
            l3: self.l3,
            l4: self.l4,
            payload: self.payload,
            end: self.end,
            flags,
            protocol,
        })
    }

    /// Reads the metadata from bytes of any alignment.
    pub fn from_bytes(bytes: &[u8; META_LEN]) -> Self {
        bytemuck::pod_read_unaligned(bytes)
    }

    /// Returns the bytes for the front of the frame.
    pub fn to_bytes(self) -> [u8; META_LEN] {
        bytemuck::cast(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, parse};

    #[test]
    fn layout_equals_the_c_struct() {
        let meta = Meta {
            stamp_ns: 0x0102_0304_0506_0708,
            spi: 0x0009_0a0b,
            generation: 0x0c0d,
            position: 0x0e,
            flags: 0x05,
            l3: 14,
            l4: 34,
            payload: 42,
            end: 0x1234,
        };
        let mut bytes = Vec::new();
        bytes.extend(meta.stamp_ns.to_ne_bytes());
        bytes.extend(meta.spi.to_ne_bytes());
        bytes.extend(meta.generation.to_ne_bytes());
        bytes.extend([0x0e, 0x05]);
        for offset in [14_u16, 34, 42, 0x1234] {
            bytes.extend(offset.to_ne_bytes());
        }
        assert_eq!(meta.to_bytes()[..], bytes);
        assert_eq!(Meta::from_bytes(&meta.to_bytes()), meta);
    }

    #[test]
    fn headers_round_trip_without_parsing() {
        for fixture in fixtures::all() {
            if let Ok(headers) = fixture.expected {
                let meta = Meta::new(7, 8, 9, 10, &headers);
                assert_eq!(
                    meta.headers(&fixture.frame),
                    Some(headers),
                    "{}",
                    fixture.name
                );
            }
        }
    }

    #[test]
    fn offsets_of_another_frame_are_refused() {
        let frame = fixtures::named("tcp-v4").frame;
        let headers = parse(&frame).unwrap();
        let meta = Meta::new(0, 1, 1, 0, &headers);
        assert!(meta.headers(&frame).is_some());
        assert_eq!(meta.headers(&frame[..frame.len() - 1]), None);
        for wrong in [
            Meta { l3: 15, ..meta },
            Meta {
                l3: u16::MAX,
                ..meta
            },
            Meta { l4: 36, ..meta },
            Meta {
                payload: 53,
                ..meta
            },
            Meta {
                payload: meta.end + 1,
                ..meta
            },
            Meta {
                end: meta.payload - 1,
                ..meta
            },
            Meta {
                end: u16::MAX,
                ..meta
            },
            Meta {
                flags: Flags::IPV6.with(Flags::PORTS).bits(),
                ..meta
            },
        ] {
            assert_eq!(wrong.headers(&frame), None, "{wrong:?}");
        }
    }

    #[test]
    fn ports_without_udp_or_tcp_are_refused() {
        let fixture = fixtures::named("icmp");
        let mut meta = Meta::new(0, 1, 1, 0, &fixture.expected.unwrap());
        meta.flags |= Flags::PORTS.bits();
        assert_eq!(meta.headers(&fixture.frame), None);
    }
}
