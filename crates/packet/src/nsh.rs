//! The network service header (RFC 8300). It carries a packet's metadata over an internal link,
//! from user space back into the kernel.
//!
//! ```text
//! 14 bytes  Ethernet: MAC addresses of the inner frame, EtherType 0x894f
//!  4 bytes  base header: version 0, TTL 63, length 6 words, MD type 1, next protocol 3 (Ethernet)
//!  4 bytes  service path identifier (24 bits), service index (8 bits) = 255 - position
//! 16 bytes  context, big endian: stamp u64, generation u16, position u8, flags u8, reserved u32
//! ```

use crate::meta::{MAX_SPI, Meta};

/// Bytes in front of the inner frame.
pub const ENCAPSULATION_LEN: usize = 38;
/// EtherType of NSH.
pub const ETHERTYPE: u16 = 0x894f;

pub(crate) const MACS_LEN: usize = 12;
pub(crate) const BASE: u32 = (63 << 22) | (6 << 16) | (1 << 8) | 3;

/// The frame is too short for MAC addresses, so it cannot get a network service header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame of {len} bytes is too short: NSH needs {MACS_LEN} bytes")]
pub struct TooShort {
    /// Length of the frame.
    pub len: usize,
}

/// Returns the bytes for the front of `inner`, an Ethernet frame. The bytes do not contain the
/// offsets of `meta`, because the receiver parses the frame again. Only 24 bits of the path
/// identifier are used.
pub fn encapsulate(meta: &Meta, inner: &[u8]) -> Result<[u8; ENCAPSULATION_LEN], TooShort> {
    let macs: &[u8; MACS_LEN] = inner.first_chunk().ok_or(TooShort { len: inner.len() })?;
    let mut out = [0; ENCAPSULATION_LEN];
    out[..12].copy_from_slice(macs);
    out[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    out[14..18].copy_from_slice(&BASE.to_be_bytes());
    let path = (meta.spi & MAX_SPI) << 8 | u32::from(255 - meta.position);
    out[18..22].copy_from_slice(&path.to_be_bytes());
    out[22..30].copy_from_slice(&meta.stamp_ns.to_be_bytes());
    out[30..32].copy_from_slice(&meta.generation.to_be_bytes());
    out[32] = meta.position;
    out[33] = meta.flags;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{
        self,
        nsh::{Context, NshError, decapsulate},
    };

    fn meta() -> Meta {
        Meta {
            stamp_ns: 0x0102_0304_0506_0708,
            spi: 0x00ab_cdef,
            generation: 0x1122,
            position: 3,
            flags: 0x05,
            ..Meta::default()
        }
    }

    #[test]
    fn bytes_match_the_rfc() {
        let inner = fixtures::named("udp-v4").frame;
        let out = encapsulate(&meta(), &inner).unwrap();
        assert_eq!(out[..12], inner[..12]);
        #[rustfmt::skip]
        assert_eq!(out[12..], [
            0x89, 0x4f,
            0x0f, 0xc6, 0x01, 0x03,
            0xab, 0xcd, 0xef, 252,
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 3, 0x05, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn metadata_round_trips() {
        let inner = fixtures::named("tcp-v6").frame;
        let frame = [&encapsulate(&meta(), &inner).unwrap()[..], &inner].concat();
        let (context, rest) = decapsulate(&frame).unwrap();
        let Meta {
            stamp_ns,
            spi,
            generation,
            position,
            flags,
            ..
        } = meta();
        assert_eq!(
            context,
            Context {
                stamp_ns,
                spi,
                generation,
                position,
                flags
            }
        );
        assert_eq!(rest, inner);
    }

    #[test]
    fn other_frames_are_refused_with_the_reason() {
        let inner = fixtures::named("udp-v4").frame;
        let good = [&encapsulate(&meta(), &inner).unwrap()[..], &inner].concat();
        let with = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            decapsulate(&frame).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(13, 0x50), NshError::EtherType(0x8950));
        // Version, OAM bit, time to live, length, metadata type, next protocol.
        for (at, value) in [(14, 0x4f), (14, 0x2f), (15, 0xc7), (16, 0x02), (17, 0x01)] {
            assert!(matches!(with(at, value), NshError::Base(_)), "byte {at}");
        }
        let mut expired = good.clone();
        expired[14] &= 0xf0;
        expired[15] &= 0x3f;
        assert!(matches!(decapsulate(&expired), Err(NshError::Base(_))));
        assert_eq!(
            with(21, 251),
            NshError::Index {
                index: 251,
                position: 3
            }
        );
        for len in 0..ENCAPSULATION_LEN {
            assert_eq!(
                decapsulate(&good[..len]),
                Err(NshError::Short { len, need: 38 })
            );
        }
        assert_eq!(encapsulate(&meta(), &[0; 11]), Err(TooShort { len: 11 }));
    }

    #[test]
    fn a_hop_may_decrement_the_time_to_live() {
        let inner = [0; 60];
        let mut frame = [&encapsulate(&meta(), &inner).unwrap()[..], &inner].concat();
        // From 63 to 1.
        frame[14] = 0x00;
        frame[15] = 0x46;
        assert!(decapsulate(&frame).is_ok());
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(mut frame in prop::collection::vec(any::<u8>(), 0..80), has_nsh_start in any::<bool>()) {
            if has_nsh_start && frame.len() > 18 {
                frame[12..18].copy_from_slice(&[0x89, 0x4f, 0x0f, 0xc6, 0x01, 0x03]);
            }
            let _ = decapsulate(&frame);
        }

        #[test]
        fn every_position_and_path_round_trips(spi in 0..=MAX_SPI, position: u8, stamp_ns: u64, generation: u16, flags: u8) {
            let meta = Meta { stamp_ns, spi, generation, position, flags, ..Meta::default() };
            let frame = [&encapsulate(&meta, &[1; 14]).unwrap()[..], &[1; 14]].concat();
            let (context, inner) = decapsulate(&frame).unwrap();
            prop_assert_eq!(context, Context { stamp_ns, spi, generation, position, flags });
            prop_assert_eq!(inner, [1; 14]);
        }
    }
}
