//! The packet that a function processes.

use myelin_packet::offload::OFFLOAD_LEN;
use myelin_packet::{Headers, Meta, Offload};

/// One packet in its buffer, with its metadata.
///
/// The frame occupies part of the buffer. The bytes before the frame are headroom, the bytes after
/// the frame tailroom.
#[derive(Debug)]
pub struct Packet<'a> {
    buffer: &'a mut [u8],
    start: u32,
    len: u32,
    token: u32,
    headers: Headers,
    meta: Meta,
}

// One cache line for each packet of a batch.
const _: () = assert!(size_of::<Packet<'_>>() == 64);

impl<'a> Packet<'a> {
    /// Wraps the frame of `len` bytes at `start` of `buffer`, with its metadata. The caller uses
    /// `token` to find the buffer again. Returns `None` if the frame is not inside the buffer, or
    /// if the offsets in the metadata do not fit the frame.
    #[inline]
    pub fn new(
        buffer: &'a mut [u8],
        start: usize,
        len: usize,
        meta: Meta,
        token: u32,
    ) -> Option<Self> {
        let frame = buffer.get(start..start.checked_add(len)?)?;
        let headers = meta.headers(frame)?;
        Some(Self {
            start: start.try_into().ok()?,
            len: len.try_into().ok()?,
            buffer,
            token,
            headers,
            meta,
        })
    }

    /// Returns the frame, from its Ethernet header on.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.len as usize]
    }

    /// Returns the frame, mutable.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..][..self.len as usize]
    }

    /// Returns the length of the frame, bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a packet has at least its headers
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the offset of the frame in its buffer, bytes.
    #[inline]
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Returns the token that the caller passed to [`Packet::new`], to find the buffer again.
    #[inline]
    pub fn token(&self) -> u32 {
        self.token
    }

    /// Returns the metadata.
    #[inline]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Sets the position of the next function.
    #[inline]
    pub fn set_position(&mut self, position: u8) {
        self.meta.position = position;
    }

    /// Sets the generation of the chain that processes the packet from here on.
    #[inline]
    pub fn set_generation(&mut self, generation: u16) {
        self.meta.generation = generation;
    }

    /// Returns the headers that the front door found. Their offsets count from the start of the
    /// frame at the front door.
    #[inline]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns the UDP or TCP payload, or the bytes after the IP header, without Ethernet padding.
    /// Returns no bytes if the frame was truncated.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.bytes()
            .get(self.headers.payload.into()..self.headers.end.into())
            .unwrap_or_default()
    }

    /// Returns the payload, mutable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let range = self.headers.payload.into()..self.headers.end.into();
        self.bytes_mut().get_mut(range).unwrap_or_default()
    }

    /// Returns the number of packets on the wire: the segments of a super-packet, else 1.
    #[inline]
    pub fn segments(&self) -> u64 {
        self.offload()
            .map_or(1, |offload| u64::from(offload.segments()))
    }

    /// Returns the length of the IP packet on the wire, bytes; of a super-packet's longest segment.
    #[inline]
    pub fn ip_len(&self) -> u32 {
        let Headers {
            l3, payload, end, ..
        } = self.headers;
        match self.offload().and_then(|offload| offload.segment_len()) {
            Some(segment) => u32::from(payload.saturating_sub(l3)) + u32::from(segment),
            None => u32::from(end.saturating_sub(l3)),
        }
    }

    /// Returns whether the transport checksum covers the pseudo-header alone, because the network
    /// card or the receiver completes the checksum.
    #[inline]
    pub fn has_partial_checksum(&self) -> bool {
        self.offload().is_some_and(|offload| offload.is_partial())
    }

    #[inline]
    fn offload(&self) -> Option<Offload> {
        if self.headers.flags.is_offloaded() {
            Offload::of_frame(self.buffer)
        } else {
            None
        }
    }

    /// Returns the number of free bytes before the frame.
    #[inline]
    pub fn headroom(&self) -> usize {
        let reserved = if self.headers.flags.is_offloaded() {
            OFFLOAD_LEN
        } else {
            0
        };
        (self.start as usize).saturating_sub(reserved)
    }

    /// Returns the number of free bytes after the frame.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.buffer.len() - self.start as usize - self.len as usize
    }

    /// Grows the frame by `n` bytes in front. Returns the new bytes with their old contents, or
    /// `None` if the headroom is too small.
    pub fn push_front(&mut self, n: usize) -> Option<&mut [u8]> {
        let grown = checked_len(n, self.headroom())?;
        self.start -= grown;
        self.len += grown;
        Some(&mut self.bytes_mut()[..n])
    }

    /// Grows the frame by `n` bytes at the tail. Returns the new bytes with their old contents, or
    /// `None` if the tailroom is too small.
    pub fn extend_tail(&mut self, n: usize) -> Option<&mut [u8]> {
        let grown = checked_len(n, self.tailroom())?;
        let old_len = self.len();
        self.len += grown;
        Some(&mut self.bytes_mut()[old_len..])
    }

    /// Removes `n` bytes from the tail. Returns `None` if the frame is shorter.
    #[must_use]
    pub fn trim_tail(&mut self, n: usize) -> Option<()> {
        self.len -= checked_len(n, self.len())?;
        Some(())
    }

    /// Sets the end of the payload. Call this method after you replace the payload and correct the
    /// lengths in the headers.
    #[inline]
    pub(crate) fn set_end(&mut self, end: u16) {
        self.headers.end = end;
        self.meta.set_headers(&self.headers);
    }
}

/// Returns `requested` if it is not more than `available`.
fn checked_len(requested: usize, available: usize) -> Option<u32> {
    // An `available` above 32 bits is longer than any frame.
    u32::try_from(requested)
        .ok()
        .filter(|_| requested <= available)
}

#[cfg(test)]
mod tests {
    use myelin_packet::fixtures::{self, build};
    use myelin_packet::parse;

    use super::*;

    const HEADROOM: usize = 64;

    /// Returns a buffer of headroom, frame and tailroom, and the metadata of the frame.
    fn buffer(frame: &[u8]) -> (Vec<u8>, Meta) {
        let meta = Meta::new(1, 2, 3, 4, &parse(frame).unwrap());
        ([&[0xaa; HEADROOM], frame, &[0xbb; 32]].concat(), meta)
    }

    #[test]
    fn frame_headroom_and_tailroom_are_correct() {
        let frame = fixtures::named("udp-v4-padded").frame;
        let (mut buffer, meta) = buffer(&frame);
        let packet = Packet::new(&mut buffer, HEADROOM, frame.len(), meta, 99).unwrap();
        assert_eq!(packet.bytes(), frame);
        assert_eq!(
            (packet.headroom(), packet.len(), packet.tailroom()),
            (HEADROOM, 60, 32)
        );
        assert_eq!(packet.headers(), &parse(&frame).unwrap());
        assert_eq!(packet.payload(), build::payload(4));
        assert_eq!((packet.token(), packet.meta()), (99, &meta));
    }

    #[test]
    fn frame_grows_and_shrinks_at_both_ends() {
        let frame = fixtures::named("udp-v4").frame;
        let (mut buffer, meta) = buffer(&frame);
        let mut packet = Packet::new(&mut buffer, HEADROOM, frame.len(), meta, 0).unwrap();
        assert_eq!(packet.push_front(4).unwrap(), [0xaa; 4]);
        assert_eq!(packet.extend_tail(2).unwrap(), [0xbb; 2]);
        assert_eq!(
            packet.bytes(),
            [&[0xaa; 4], &frame[..], &[0xbb; 2]].concat()
        );
        packet.trim_tail(2).unwrap();
        assert_eq!(packet.bytes(), [&[0xaa; 4], &frame[..]].concat());
        assert_eq!((packet.headroom(), packet.tailroom()), (HEADROOM - 4, 32));
    }

    #[test]
    fn too_long_requests_are_refused_and_change_nothing() {
        let frame = fixtures::named("udp-v4").frame;
        let (mut buffer, meta) = buffer(&frame);
        let mut packet = Packet::new(&mut buffer, HEADROOM, frame.len(), meta, 0).unwrap();
        for requested in [HEADROOM + 1, usize::MAX, 1 << 32] {
            assert_eq!(packet.push_front(requested), None);
            assert_eq!(packet.extend_tail(requested), None);
        }
        assert_eq!(packet.trim_tail(107), None);
        assert_eq!(packet.bytes(), frame);
    }

    #[test]
    fn a_truncated_packet_has_no_payload_and_keeps_its_headers() {
        let frame = fixtures::named("udp-v4").frame;
        let (mut buffer, meta) = buffer(&frame);
        let mut packet = Packet::new(&mut buffer, HEADROOM, frame.len(), meta, 0).unwrap();
        packet.trim_tail(1).unwrap();
        assert!(packet.payload().is_empty() && packet.payload_mut().is_empty());
        assert_eq!(packet.headers(), &parse(&frame).unwrap());
        packet.trim_tail(105).unwrap();
        assert!(packet.bytes().is_empty() && packet.payload_mut().is_empty());
    }

    #[test]
    fn frames_outside_the_buffer_and_foreign_metadata_are_refused() {
        let frame = fixtures::named("udp-v4").frame;
        let (mut buffer, meta) = buffer(&frame);
        for (start, len) in [(HEADROOM, 139), (203, 0), (usize::MAX, 2), (0, usize::MAX)] {
            assert!(Packet::new(&mut buffer, start, len, meta, 0).is_none());
        }
        assert!(Packet::new(&mut buffer, HEADROOM, frame.len() - 1, meta, 0).is_none());
    }
}
