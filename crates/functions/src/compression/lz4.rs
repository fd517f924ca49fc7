//! LZ4 blocks, from the reference library.
//!
//! All packets share one state. Without a dictionary, `LZ4_compress_fast_extState_fastReset` avoids
//! clearing the state's table for each packet. With a dictionary, `LZ4_attach_dictionary` avoids
//! copying the dictionary's table. `lz4-sys` builds the library but does not declare these two
//! functions, so this module declares them, as in `lz4.h` of 1.10.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use lz4_sys::{LZ4_createStream, LZ4_decompress_safe, LZ4_freeStream, LZ4StreamEncode};
use myelin_spec::CompressionAlgorithm;

use super::CompressionError;

// SAFETY: these are the signatures of `lz4.h` of 1.10, the version that `lz4-sys` builds.
unsafe extern "C" {
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_continue(
        stream: *mut LZ4StreamEncode,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_resetStream_fast(stream: *mut LZ4StreamEncode);
    fn LZ4_loadDictSlow(
        stream: *mut LZ4StreamEncode,
        dictionary: *const c_char,
        size: c_int,
    ) -> c_int;
    fn LZ4_attach_dictionary(working: *mut LZ4StreamEncode, dictionary: *const LZ4StreamEncode);
    fn LZ4_decompress_safe_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        dictionary: *const c_char,
        dictionary_size: c_int,
    ) -> c_int;
}

/// A state of the library, 16 KiB.
#[derive(Debug)]
struct Stream(NonNull<LZ4StreamEncode>);

// SAFETY: only this value owns the memory, and the library stores nothing that depends on a thread.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Result<Self, CompressionError> {
        // SAFETY: takes no argument; returns an initialised stream, or null if memory is short.
        let stream = NonNull::new(unsafe { LZ4_createStream() });
        let failed = CompressionError::Memory(CompressionAlgorithm::Lz4);
        stream.map(Self).ok_or(failed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `LZ4_createStream`, and only this line frees it.
        unsafe { LZ4_freeStream(self.0.as_ptr()) };
    }
}

/// A dictionary and its hash table, which refers to the bytes.
#[derive(Debug)]
struct Dictionary {
    table: Stream,
    _bytes: Box<[u8]>,
}

impl Dictionary {
    fn new(bytes: &[u8]) -> Result<Self, CompressionError> {
        let bytes: Box<[u8]> = bytes.into();
        let table = Stream::new()?;
        // SAFETY: the stream is initialised. The bytes stay on the heap, unchanged and unmoved, as
        // long as the stream.
        unsafe { LZ4_loadDictSlow(table.0.as_ptr(), bytes.as_ptr().cast(), c_size(&bytes)) };
        Ok(Self {
            table,
            _bytes: bytes,
        })
    }
}

/// Makes LZ4 blocks.
#[derive(Debug)]
pub struct Compressor {
    working: Stream,
    dictionary: Option<Dictionary>,
    acceleration: c_int,
}

impl Compressor {
    /// Makes a compressor and allocates all its memory.
    pub fn new(acceleration: u8, dictionary: Option<&[u8]>) -> Result<Self, CompressionError> {
        Ok(Self {
            working: Stream::new()?,
            dictionary: dictionary.map(Dictionary::new).transpose()?,
            acceleration: acceleration.into(),
        })
    }

    /// Compresses `from` into the start of `to`. Returns the number of bytes written, or `None` if
    /// `to` is too short.
    #[inline]
    pub fn compress(&mut self, from: &[u8], to: &mut [u8]) -> Option<usize> {
        let working = self.working.0.as_ptr();
        let (src, dst) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        let (src_size, dst_capacity) = (c_size(from), c_size(to));
        let written = match &self.dictionary {
            // SAFETY: `LZ4_createStream` initialised the state, and only this function has used it
            // since. The function leaves it reusable, whether the block fitted or not. It reads
            // `from` and writes `to`, within their sizes.
            None => unsafe {
                LZ4_compress_fast_extState_fastReset(
                    working.cast(),
                    src,
                    dst,
                    src_size,
                    dst_capacity,
                    self.acceleration,
                )
            },
            // SAFETY: `LZ4_createStream` initialised the stream, and the reset makes it reusable
            // after any use. The attached dictionary is loaded and lives as long as `self`. The
            // library reads `from` and writes `to` within their sizes. It does not read `from`
            // again: the next call begins with the reset.
            Some(dictionary) => unsafe {
                LZ4_resetStream_fast(working);
                LZ4_attach_dictionary(working, dictionary.table.0.as_ptr());
                LZ4_compress_fast_continue(
                    working,
                    src,
                    dst,
                    src_size,
                    dst_capacity,
                    self.acceleration,
                )
            },
        };
        usize::try_from(written).ok().filter(|&written| written > 0)
    }
}

/// Decompresses a block into the start of `to`. Returns the number of bytes written, or `None` if
/// the block is damaged or `to` is too short.
#[inline]
pub fn decompress(from: &[u8], to: &mut [u8], dictionary: Option<&[u8]>) -> Option<usize> {
    let (src, dst) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
    let written = match dictionary {
        // SAFETY: reads `from` and writes `to`, within their sizes, for any block.
        None => unsafe { LZ4_decompress_safe(src, dst, c_size(from), c_size(to)) },
        // SAFETY: reads `from` and the dictionary and writes `to`, within their sizes, for any
        // block.
        Some(bytes) => unsafe {
            LZ4_decompress_safe_usingDict(
                src,
                dst,
                c_size(from),
                c_size(to),
                bytes.as_ptr().cast(),
                c_size(bytes),
            )
        },
    };
    usize::try_from(written).ok()
}

/// Returns the size of `bytes`, or zero if it exceeds the library's range.
#[inline]
fn c_size(bytes: &[u8]) -> c_int {
    bytes.len().try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each block decompresses to its payload, whether the previous blocks fitted or not.
        #[test]
        fn a_state_can_be_reused(
            packets in prop::collection::vec(
                (prop::collection::vec(0..4_u8, 0..1500), 0..1600_usize),
                1..40,
            ),
            dictionary in prop::option::of(prop::collection::vec(0..4_u8, 1..500)),
            acceleration in 1..20_u8,
        ) {
            let mut compressor = Compressor::new(acceleration, dictionary.as_deref()).unwrap();
            for (payload, room) in packets {
                let mut made = vec![0; room];
                if let Some(written) = compressor.compress(&payload, &mut made) {
                    let block = &made[..written];
                    let reference = match &dictionary {
                        None => lz4_flex::block::decompress(block, payload.len()),
                        Some(dictionary) => {
                            lz4_flex::block::decompress_with_dict(block, payload.len(), dictionary)
                        }
                    };
                    prop_assert_eq!(&reference.unwrap(), &payload);
                    let mut back = vec![0; payload.len()];
                    let read = decompress(block, &mut back, dictionary.as_deref());
                    prop_assert_eq!((read, &back), (Some(payload.len()), &payload));
                }
            }
        }

        #[test]
        fn any_bytes_decompress_or_are_refused(
            block in prop::collection::vec(any::<u8>(), 0..300),
            room in 0..1600_usize,
            dictionary in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
        ) {
            let mut back = vec![0; room];
            let read = decompress(&block, &mut back, dictionary.as_deref());
            prop_assert!(read.is_none_or(|read| read <= room));
        }
    }
}
