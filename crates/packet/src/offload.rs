//! What the sender of a packet left to the network card: the checksum, and the segmentation of a
//! super-packet. The kernel describes both in a `virtio_net_hdr` (linux/virtio_net.h) before the
//! frame.

use bytemuck::{Pod, Zeroable};

use crate::five_tuple::{TCP, UDP};
use crate::parse::Headers;

/// Bytes of [`Offload`].
pub const OFFLOAD_LEN: usize = 16;
/// Bytes of the kernel's header at the start of [`Offload`].
pub const KERNEL_HEADER_LEN: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is partial.
const PARTIAL: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4` and `VIRTIO_NET_HDR_GSO_TCPV6`.
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: only the first segment has the flag CWR.
const ECN: u8 = 0x80;

/// The work that the sender of a packet left to the network card. The start of the structure is the
/// kernel's header.
///
/// The value stands at the start of the packet's frame, in native byte order, if the packet's
/// [`Flags`](crate::Flags) contain [`OFFLOADED`](crate::Flags::OFFLOADED).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Offload {
    flags: u8,
    kind: u8,
    header_len: u16,
    segment_len: u16,
    checksum_start: u16,
    checksum_offset: u16,
    /// Not 0 if the transport checksum of the packet is partial.
    is_partial: u16,
    segments: u32,
}

const _: () = assert!(size_of::<Offload>() == OFFLOAD_LEN);

impl Offload {
    /// Reads the kernel's header of a packet. Returns `None` if the header does not fit the packet
    /// of `len` bytes, or describes a super-packet of another protocol than TCP. `removed` bytes
    /// were removed from the front of the packet since the kernel wrote the header.
    pub fn read(
        header: [u8; KERNEL_HEADER_LEN],
        removed: u16,
        headers: &Headers,
        len: usize,
    ) -> Option<Self> {
        let mut bytes = [0; OFFLOAD_LEN];
        bytes[..KERNEL_HEADER_LEN].copy_from_slice(&header);
        let mut offload: Self = bytemuck::cast(bytes);
        offload.flags &= PARTIAL;
        offload.header_len = 0;
        if offload.flags == PARTIAL {
            offload.checksum_start = offload.checksum_start.checked_sub(removed)?;
            let start = usize::from(offload.checksum_start);
            let field = start + usize::from(offload.checksum_offset);
            if start < headers.l4.into() || field + 2 > len {
                return None;
            }
            // The partial checksum of a packet in a tunnel is behind the outer transport header.
            let is_outer = offload.checksum_start == headers.l4;
            let expected = match headers.protocol {
                TCP => 16,
                UDP => 6,
                _ => offload.checksum_offset,
            };
            if is_outer && offload.checksum_offset != expected {
                return None;
            }
            offload.is_partial = is_outer.into();
        } else {
            (offload.checksum_start, offload.checksum_offset) = (0, 0);
        }
        offload.segments = 1;
        if offload.kind == 0 {
            offload.segment_len = 0;
            return Some(offload);
        }
        let expected = if headers.flags.is_ipv6() {
            TCP_V6
        } else {
            TCP_V4
        };
        let is_tcp = headers.protocol == TCP && headers.flags.has_ports();
        if !is_tcp || offload.kind & !ECN != expected || offload.segment_len == 0 {
            return None;
        }
        // The kernel copies this many bytes to the linear part of its packet.
        offload.header_len = headers.payload;
        let payload = len.checked_sub(headers.payload.into())?;
        let segments = payload.div_ceil(offload.segment_len.into()).max(1);
        offload.segments = u32::try_from(segments).ok()?;
        Some(offload)
    }

    /// Reads the value from the start of a frame. Returns `None` if the frame is too short.
    #[inline]
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        frame
            .first_chunk()
            .map(|bytes: &[u8; OFFLOAD_LEN]| bytemuck::pod_read_unaligned(bytes))
    }

    /// Returns the bytes for the start of the frame.
    pub fn to_bytes(self) -> [u8; OFFLOAD_LEN] {
        bytemuck::cast(self)
    }

    /// Returns the number of packets on the wire.
    #[inline]
    pub fn segments(&self) -> u32 {
        self.segments.max(1)
    }

    /// Returns the payload of a segment, bytes; `None` if the packet is no super-packet.
    #[inline]
    pub fn segment_len(&self) -> Option<u16> {
        (self.segments > 1).then_some(self.segment_len)
    }

    /// Returns whether the transport checksum is partial: it covers the pseudo-header alone, as a
    /// sum without complement.
    #[inline]
    pub fn is_partial(&self) -> bool {
        self.is_partial != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::build;
    use crate::{fixtures, parse};

    /// Returns a kernel header: flags, kind, segment length, checksum start and offset.
    fn header(flags: u8, kind: u8, words: [u16; 3]) -> [u8; KERNEL_HEADER_LEN] {
        let offload = Offload {
            flags,
            kind,
            header_len: 9999,
            segment_len: words[0],
            checksum_start: words[1],
            checksum_offset: words[2],
            ..Offload::default()
        };
        *offload.to_bytes().first_chunk().unwrap()
    }

    fn read(frame: &[u8], header: [u8; KERNEL_HEADER_LEN], removed: u16) -> Option<Offload> {
        Offload::read(header, removed, &parse(frame).unwrap(), frame.len())
    }

    #[test]
    fn a_super_packet_has_its_segments_and_a_partial_checksum() {
        let frame = fixtures::named("tcp-v4").frame;
        let headers = parse(&frame).unwrap();
        let payload = frame.len() - usize::from(headers.payload);
        for (segment, segments) in [(payload, 1), (payload - 1, 2), (1, payload)] {
            let words = [segment as u16, headers.l4 + 4, 16];
            let offload = read(&frame, header(PARTIAL, TCP_V4 | ECN, words), 4).unwrap();
            assert_eq!(offload.segments(), segments as u32);
            assert!(offload.is_partial());
            assert_eq!(offload.header_len, headers.payload);
            assert_eq!(Offload::of_frame(&offload.to_bytes()), Some(offload));
        }
    }

    #[test]
    fn a_checksum_in_a_tunnel_is_not_the_packets_own() {
        let frame = build::udp(build::client_v4(), build::server_v4(), &[0; 100]);
        let headers = parse(&frame).unwrap();
        let inner = header(PARTIAL, 0, [0, headers.l4 + 30, 16]);
        assert!(!read(&frame, inner, 0).unwrap().is_partial());
        let own = header(PARTIAL, 0, [0, headers.l4, 6]);
        assert!(read(&frame, own, 0).unwrap().is_partial());
        assert!(
            !read(&frame, header(2, 0, [7, 7, 7]), 0)
                .unwrap()
                .is_partial()
        );
    }

    #[test]
    fn headers_that_do_not_fit_the_packet_are_refused() {
        let frame = fixtures::named("tcp-v4").frame;
        let l4 = parse(&frame).unwrap().l4;
        for (wrong, removed) in [
            (header(PARTIAL, 0, [0, l4, 6]), 0),
            (header(PARTIAL, 0, [0, l4 - 2, 16]), 0),
            (header(PARTIAL, 0, [0, l4, 16]), 4),
            (header(PARTIAL, 0, [0, 3, 16]), 4),
            (header(PARTIAL, 0, [0, frame.len() as u16, 16]), 0),
            (header(PARTIAL, 0, [0, l4, u16::MAX]), 0),
            (header(PARTIAL, TCP_V4, [0, l4, 16]), 0),
            (header(PARTIAL, TCP_V6, [100, l4, 16]), 0),
            (header(0, 3, [100, 0, 0]), 0),
            (header(0, 5, [100, 0, 0]), 0),
            (header(0, 0xff, [100, 0, 0]), 0),
        ] {
            assert_eq!(read(&frame, wrong, removed), None, "{wrong:?} {removed}");
        }
        let udp = build::udp(build::client_v4(), build::server_v4(), &[0; 100]);
        assert_eq!(read(&udp, header(0, TCP_V4, [10, 0, 0]), 0), None);
    }

    proptest! {
        #[test]
        fn any_header_is_refused_or_lies_in_the_packet(
            bytes: [u8; KERNEL_HEADER_LEN],
            removed in 0..8_u16,
            fixture in 0..fixtures::all().len(),
        ) {
            let frame = &fixtures::all()[fixture].frame;
            let Ok(headers) = parse(frame) else { return Ok(()) };
            if let Some(offload) = Offload::read(bytes, removed, &headers, frame.len()) {
                let field = usize::from(offload.checksum_start) + usize::from(offload.checksum_offset);
                prop_assert!(offload.flags == 0 || field + 2 <= frame.len());
                prop_assert!(usize::from(offload.header_len) <= frame.len());
                prop_assert!(offload.segments() as usize <= frame.len());
            }
        }
    }
}
