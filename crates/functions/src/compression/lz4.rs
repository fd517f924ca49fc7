//! LZ4 blocks, by the reference library.
//!
//! Its states are made once and used again and again. Without a dictionary that takes `LZ4_compress_fast_extState_fastReset`, which
//! does not clear its table for each packet; with one `LZ4_attach_dictionary`, which does not copy the
//! dictionary's. `lz4-sys` builds the library but declares neither, so they are declared here, as in `lz4.h` of 1.10.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use lz4_sys::{LZ4_createStream, LZ4_decompress_safe, LZ4_freeStream, LZ4StreamEncode};
use myelin_spec::CompressionAlgorithm;

use super::CompressionError;

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

// SAFETY: the memory belongs to this value alone, and the library keeps nothing about threads.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Result<Self, CompressionError> {
        // SAFETY: takes nothing; gives an initialised stream, or null for want of memory.
        let stream = NonNull::new(unsafe { LZ4_createStream() });
        let failed = CompressionError::Memory(CompressionAlgorithm::Lz4);
        stream.map(Self).ok_or(failed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `LZ4_createStream` and is freed here only.
        unsafe { LZ4_freeStream(self.0.as_ptr()) };
    }
}

/// A dictionary and the table of what is where in it, which refers to the bytes.
#[derive(Debug)]
struct Dictionary {
    table: Stream,
    _bytes: Box<[u8]>,
}

impl Dictionary {
    fn new(bytes: &[u8]) -> Result<Self, CompressionError> {
        let bytes: Box<[u8]> = bytes.into();
        let table = Stream::new()?;
        // SAFETY: the stream is initialised; the bytes stay where they are, on the heap and unchanged, as long as it.
        unsafe { LZ4_loadDictSlow(table.0.as_ptr(), bytes.as_ptr().cast(), size(&bytes)) };
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
    /// A compressor with what it needs for all packets to come.
    pub fn new(acceleration: u8, dictionary: Option<&[u8]>) -> Result<Self, CompressionError> {
        Ok(Self {
            working: Stream::new()?,
            dictionary: dictionary.map(Dictionary::new).transpose()?,
            acceleration: acceleration.into(),
        })
    }

    /// Compresses `from` into the front of `to` and gives the bytes written; `None` when it does not fit.
    #[inline]
    pub fn compress(&mut self, from: &[u8], to: &mut [u8]) -> Option<usize> {
        let working = self.working.0.as_ptr();
        let (src, dst) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        let (src_size, dst_capacity) = (size(from), size(to));
        let written = match &self.dictionary {
            // SAFETY: `LZ4_createStream` initialised the state, and this function alone used it since; it leaves it such that it
            // may be used again, whether the block fitted or not. It reads `from` and writes `to`, within their sizes.
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
            // SAFETY: as above, and the reset makes a stream usable again after whatever happened to it; it is attached to a
            // dictionary that was loaded and lives as long as `self`. What the stream remembers of `from` is not looked at
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

/// Decompresses a block into the front of `to` and gives the bytes written; `None` when it is damaged or does not fit.
#[inline]
pub fn decompress(from: &[u8], to: &mut [u8], dictionary: Option<&[u8]>) -> Option<usize> {
    let (src, dst) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
    let written = match dictionary {
        // SAFETY: reads `from` and writes `to`, within their sizes, whatever the block says.
        None => unsafe { LZ4_decompress_safe(src, dst, size(from), size(to)) },
        // SAFETY: as above, and reads the dictionary within its size.
        Some(bytes) => unsafe {
            LZ4_decompress_safe_usingDict(
                src,
                dst,
                size(from),
                size(to),
                bytes.as_ptr().cast(),
                size(bytes),
            )
        },
    };
    usize::try_from(written).ok()
}

/// The size of `bytes`, or zero where the library cannot count so far.
#[inline]
fn size(bytes: &[u8]) -> c_int {
    bytes.len().try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the state was used for before, and whether it fitted then: a block holds what went in.
        #[test]
        fn a_state_may_be_used_again(
            packets in prop::collection::vec(
                (prop::collection::vec(0..4_u8, 0..1500), 0..1600_usize),
                1..40,
            ),
            known in prop::option::of(prop::collection::vec(0..4_u8, 1..500)),
            acceleration in 1..20_u8,
        ) {
            let mut compressor = Compressor::new(acceleration, known.as_deref()).unwrap();
            for (payload, room) in packets {
                let mut made = vec![0; room];
                if let Some(written) = compressor.compress(&payload, &mut made) {
                    let block = &made[..written];
                    let by_others = match &known {
                        None => lz4_flex::block::decompress(block, payload.len()),
                        Some(known) => {
                            lz4_flex::block::decompress_with_dict(block, payload.len(), known)
                        }
                    };
                    prop_assert_eq!(&by_others.unwrap(), &payload);
                    let mut back = vec![0; payload.len()];
                    let read = decompress(block, &mut back, known.as_deref());
                    prop_assert_eq!((read, &back), (Some(payload.len()), &payload));
                }
            }
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(
            block in prop::collection::vec(any::<u8>(), 0..300),
            room in 0..1600_usize,
            known in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
        ) {
            let mut back = vec![0; room];
            let read = decompress(&block, &mut back, known.as_deref());
            prop_assert!(read.is_none_or(|read| read <= room));
        }
    }
}
