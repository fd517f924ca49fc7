//! Zstandard frames (RFC 8878), by the reference library, without their magic number: a header of ours stands in its place.

use std::fmt;

use myelin_spec::CompressionAlgorithm;
use zstd_safe::{CCtx, CParameter, DCtx};

use super::CompressionError;

/// What every frame begins with (RFC 8878, section 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Its bytes.
pub const MAGIC_LEN: usize = MAGIC.len();

/// Makes frames.
pub struct Compressor(CCtx<'static>);

impl Compressor {
    /// A compressor with what it needs for all packets to come, the longest of which has `longest` bytes.
    pub fn new(
        level: u8,
        dictionary: Option<&[u8]>,
        longest: usize,
    ) -> Result<Self, CompressionError> {
        let memory = CompressionError::Memory(CompressionAlgorithm::Zstd);
        let mut context = CCtx::try_create().ok_or(memory)?;
        // The header of ours names the dictionary.
        for parameter in [
            CParameter::CompressionLevel(level.into()),
            CParameter::DictIdFlag(false),
        ] {
            context.set_parameter(parameter).map_err(|_| memory)?;
        }
        if let Some(bytes) = dictionary {
            context
                .load_dictionary(bytes)
                .map_err(|_| CompressionError::Dictionary)?;
        }
        // The first packets make it allocate and look at the dictionary.
        let mut to = vec![0; zstd_safe::compress_bound(longest)];
        for length in [longest, 1] {
            context
                .compress2(&mut to[..], &vec![0; length])
                .map_err(|_| dictionary.map_or(memory, |_| CompressionError::Dictionary))?;
        }
        Ok(Self(context))
    }

    /// Compresses `from` into `to`, from the magic number's place on, and gives the bytes written with it; `None` when it
    /// does not fit.
    pub fn compress(&mut self, from: &[u8], to: &mut [u8]) -> Option<usize> {
        self.0.compress2(to, from).ok()
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("zstd::Compressor")
    }
}

/// Reads frames.
pub struct Decompressor(DCtx<'static>);

impl Decompressor {
    /// A decompressor with what it needs for all packets to come.
    pub fn new(dictionary: Option<&[u8]>) -> Result<Self, CompressionError> {
        let memory = CompressionError::Memory(CompressionAlgorithm::Zstd);
        let mut context = DCtx::try_create().ok_or(memory)?;
        if let Some(bytes) = dictionary {
            context
                .load_dictionary(bytes)
                .map_err(|_| CompressionError::Dictionary)?;
        }
        Ok(Self(context))
    }

    /// Decompresses a frame into the front of `to` and gives the bytes written; `None` when it is damaged or does not fit.
    /// The first [`MAGIC_LEN`] bytes of `from` are overwritten for that time.
    pub fn decompress(&mut self, from: &mut [u8], to: &mut [u8]) -> Option<usize> {
        let held = std::mem::replace(from.first_chunk_mut()?, MAGIC);
        let written = self.0.decompress(to, from);
        *from.first_chunk_mut()? = held;
        written.ok()
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("zstd::Decompressor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: usize = 1472;

    /// Short ones for long, then long ones again: the library gives memory back that it has not used for long, unless it
    /// needs most of it for any packet.
    #[test]
    fn nothing_is_allocated_after_the_first_packets() {
        let known: Vec<u8> = (0..70_000_u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect();
        for level in [1, 3, 7, 12, 19] {
            for dictionary in [None, Some(&known[..])] {
                let mut compressor = Compressor::new(level, dictionary, LONGEST).unwrap();
                let mut decompressor = Decompressor::new(dictionary).unwrap();
                let sizes =
                    |one: &Compressor, other: &Decompressor| (one.0.sizeof(), other.0.sizeof());
                let before = sizes(&compressor, &decompressor);
                let (mut made, mut back) = ([0; 2 * LONGEST], [0; LONGEST]);
                for len in [20, LONGEST, 1] {
                    let payload = &known[..len];
                    for _ in 0..300 {
                        let written = compressor.compress(payload, &mut made).unwrap();
                        let read = decompressor.decompress(&mut made[..written], &mut back);
                        assert_eq!(&back[..read.unwrap()], payload);
                    }
                }
                let after = sizes(&compressor, &decompressor);
                assert_eq!(after, before, "level {level}, {}", dictionary.is_some());
            }
        }
    }
}
