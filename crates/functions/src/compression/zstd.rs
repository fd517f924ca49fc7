//! Zstandard frames (RFC 8878), from the reference library. The header of
//! [`mod@compression`](crate::compression) replaces the magic number of a frame.

use std::fmt;

use myelin_spec::CompressionAlgorithm;
use zstd_safe::{CCtx, CParameter, DCtx};

use super::CompressionError;

/// The magic number of each frame (RFC 8878, section 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Length of the magic number, bytes.
pub const MAGIC_LEN: usize = MAGIC.len();

/// Makes frames.
pub struct Compressor(CCtx<'static>);

impl Compressor {
    /// Makes a compressor and allocates all its memory, for packets of at most `longest` bytes.
    pub fn new(
        level: u8,
        dictionary: Option<&[u8]>,
        longest: usize,
    ) -> Result<Self, CompressionError> {
        let memory = CompressionError::Memory(CompressionAlgorithm::Zstd);
        let mut context = CCtx::try_create().ok_or(memory)?;
        // The header of `compress` identifies the dictionary.
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
        // The library allocates and reads the dictionary with the first packets.
        let mut to = vec![0; zstd_safe::compress_bound(longest)];
        for length in [longest, 1] {
            context
                .compress2(&mut to[..], &vec![0; length])
                .map_err(|_| dictionary.map_or(memory, |_| CompressionError::Dictionary))?;
        }
        Ok(Self(context))
    }

    /// Compresses `from` into `to`, with the magic number. Returns the number of bytes written, or
    /// `None` if `to` is too short.
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
    /// Makes a decompressor and allocates all its memory.
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

    /// Decompresses a frame into the start of `to`. Returns the number of bytes written, or `None`
    /// if the frame is damaged or `to` is too short. Overwrites the first [`MAGIC_LEN`] bytes of
    /// `from` during the call.
    pub fn decompress(&mut self, from: &mut [u8], to: &mut [u8]) -> Option<usize> {
        let header_end = std::mem::replace(from.first_chunk_mut()?, MAGIC);
        let written = self.0.decompress(to, from);
        *from.first_chunk_mut()? = header_end;
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

    /// Compresses series of short and of long packets. The library frees memory that many packets
    /// in succession do not need, unless every packet needs most of this memory.
    #[test]
    fn no_memory_is_allocated_after_the_first_packets() {
        let data: Vec<u8> = (0..70_000_u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect();
        for level in [1, 3, 7, 12, 19] {
            for dictionary in [None, Some(&data[..])] {
                let mut compressor = Compressor::new(level, dictionary, LONGEST).unwrap();
                let mut decompressor = Decompressor::new(dictionary).unwrap();
                let sizes = |compressor: &Compressor, decompressor: &Decompressor| {
                    (compressor.0.sizeof(), decompressor.0.sizeof())
                };
                let before = sizes(&compressor, &decompressor);
                let (mut made, mut back) = ([0; 2 * LONGEST], [0; LONGEST]);
                for len in [20, LONGEST, 1] {
                    let payload = &data[..len];
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
