//! The wire format of `compress` and `decompress`.
//!
//! ```text
//!  0 marker u32 | 4 length u16 | 6 [dictionary u32] | block ...      compressed
//!  0 marker u32 | payload ...                                        stored
//!  payload ...                                                       untouched
//! ```
//!
//! All fields are big endian. The first 29 bits of the marker are fixed. The last three bits select
//! the form: a stored payload, an LZ4 block, or a Zstandard frame (RFC 8878, without its magic
//! number). A block or frame may use a dictionary; then [`dictionary_id`] follows the length.
//! `length` is the length of the original payload, bytes.
//!
//! If a payload does not shrink, `compress` sends the payload unchanged, unless the payload begins
//! like a marker. Such a payload is stored: `compress` puts a 4-byte marker in front. So a payload
//! on the wire is compressed or stored if, and only if, it begins like a marker. One in 2^29 random
//! payloads begins like a marker. No UTF-8 text does, since UTF-8 never contains the first byte of
//! a marker.
//!
//! The length lets `decompress` refuse a packet that would become too long before decompression. It
//! also reveals a damaged block, which gives another length.

pub mod lz4;
pub mod zstd;

use myelin_spec::CompressionAlgorithm;

/// The fixed bits of a marker.
const MARKER: u32 = 0xf54d_59b8;
/// The bits that select the form of the payload.
const FORM_MASK: u32 = 0b111;
const STORED: u32 = 0;
const LZ4: u32 = 1;
const ZSTD: u32 = 2;
const WITH_DICTIONARY: u32 = 0b100;

/// Bytes of a marker, which are also the growth of a stored payload.
pub const MARKER_LEN: usize = 4;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 10;

/// The reason why a function could not make the state of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// Memory is short.
    #[error("there is no memory for the state of {0}; use a smaller dictionary or fewer functions")]
    Memory(CompressionAlgorithm),
    /// The dictionary begins like one of `zstd --train`, but is damaged.
    #[error(
        "the dictionary is damaged: it begins like one of `zstd --train`, but Zstandard cannot read it; make it anew"
    )]
    Dictionary,
}

/// The header of a compressed payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The algorithm of the block.
    pub algorithm: CompressionAlgorithm,
    /// Length of the original payload, bytes.
    pub length: u16,
    /// The [`dictionary_id`] of the dictionary used.
    pub dictionary: Option<u32>,
}

/// The form of a payload on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadForm {
    /// The original payload.
    Untouched,
    /// A marker and the original payload.
    Stored,
    /// A header and a compressed block.
    Compressed(Header),
    /// The payload begins like a marker, but `compress` makes no such payload.
    Malformed,
}

impl Header {
    /// Returns the length of a header with or without a dictionary, bytes.
    pub const fn len(has_dictionary: bool) -> usize {
        if has_dictionary {
            MAX_HEADER_LEN
        } else {
            MAX_HEADER_LEN - 4
        }
    }

    /// Writes the header to the start of `to`. Returns `None` if `to` is too short.
    pub fn write(&self, to: &mut [u8]) -> Option<()> {
        let algorithm = match self.algorithm {
            CompressionAlgorithm::Lz4 => LZ4,
            CompressionAlgorithm::Zstd => ZSTD,
        };
        let dictionary = self.dictionary.map_or(0, |_| WITH_DICTIONARY);
        let marker = MARKER | algorithm | dictionary;
        *to.first_chunk_mut()? = marker.to_be_bytes();
        *to.get_mut(4..)?.first_chunk_mut()? = self.length.to_be_bytes();
        if let Some(identity) = self.dictionary {
            *to.get_mut(6..)?.first_chunk_mut()? = identity.to_be_bytes();
        }
        Some(())
    }

    /// Reads the rest of the header, after the marker.
    fn read(form: u32, payload: &[u8]) -> Option<Self> {
        let algorithm = match form & !WITH_DICTIONARY {
            LZ4 => CompressionAlgorithm::Lz4,
            ZSTD => CompressionAlgorithm::Zstd,
            _ => return None,
        };
        let length = u16::from_be_bytes(*payload.get(4..)?.first_chunk()?);
        let dictionary = if form & WITH_DICTIONARY == 0 {
            None
        } else {
            Some(u32::from_be_bytes(*payload.get(6..)?.first_chunk()?))
        };
        // `compress` only keeps a block that is shorter than the payload.
        (payload.len() < length.into()).then_some(Self {
            algorithm,
            length,
            dictionary,
        })
    }
}

/// The marker in front of a stored payload.
pub(crate) const STORED_MARKER: [u8; MARKER_LEN] = (MARKER | STORED).to_be_bytes();

/// Returns whether a payload begins like a marker, so that `compress` must not send it unchanged.
#[inline]
pub fn is_marked(payload: &[u8]) -> bool {
    read_marker(payload).is_some()
}

/// Returns the form bits of a payload's marker, if it begins with a marker.
#[inline]
fn read_marker(payload: &[u8]) -> Option<u32> {
    let word = u32::from_be_bytes(*payload.first_chunk()?);
    (word & !FORM_MASK == MARKER).then_some(word & FORM_MASK)
}

/// Determines the form of a payload.
#[inline]
pub fn payload_form(payload: &[u8]) -> PayloadForm {
    match read_marker(payload) {
        None => PayloadForm::Untouched,
        Some(STORED) => PayloadForm::Stored,
        Some(form) => {
            Header::read(form, payload).map_or(PayloadForm::Malformed, PayloadForm::Compressed)
        }
    }
}

/// Identifies a dictionary: FNV-1a (Fowler, Noll, Vo), 32 bits.
pub fn dictionary_id(dictionary: &[u8]) -> u32 {
    dictionary.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dictionary_id_matches_the_published_test_vectors() {
        // Test vectors of FNV-1a, 32 bits.
        assert_eq!(dictionary_id(b""), 0x811c_9dc5);
        assert_eq!(dictionary_id(b"a"), 0xe40c_292c);
        assert_eq!(dictionary_id(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn each_marker_has_its_form_and_others_are_malformed() {
        for bits in 0..=FORM_MASK {
            let mut payload = (MARKER | bits).to_be_bytes().to_vec();
            assert!(is_marked(&payload));
            if bits != STORED {
                assert_eq!(payload_form(&payload), PayloadForm::Malformed, "truncated");
            }
            payload.extend([0xff; 20]);
            let found = match payload_form(&payload) {
                PayloadForm::Stored => "stored",
                PayloadForm::Compressed(_) => "compressed",
                PayloadForm::Malformed => "malformed",
                PayloadForm::Untouched => "untouched",
            };
            let expected = match bits {
                0 => "stored",
                1 | 2 | 5 | 6 => "compressed",
                _ => "malformed",
            };
            assert_eq!(found, expected, "{bits}");
        }
        assert_eq!(
            payload_form(&(MARKER ^ 8).to_be_bytes()),
            PayloadForm::Untouched
        );
        assert_eq!(payload_form(&STORED_MARKER[..3]), PayloadForm::Untouched);
    }

    proptest! {
        #[test]
        fn headers_round_trip(
            is_lz4: bool,
            length: u16,
            dictionary: Option<u32>,
            block in 0..80_usize,
        ) {
            let algorithm = if is_lz4 { CompressionAlgorithm::Lz4 } else { CompressionAlgorithm::Zstd };
            let header = Header { algorithm, length, dictionary };
            let len = Header::len(dictionary.is_some());
            let mut payload = vec![0; len + block];
            prop_assert_eq!(header.write(&mut payload[..len - 1]), None);
            prop_assert_eq!(header.write(&mut payload), Some(()));
            let expected = if payload.len() < usize::from(length) {
                PayloadForm::Compressed(header)
            } else {
                PayloadForm::Malformed
            };
            prop_assert_eq!(payload_form(&payload), expected);
        }
    }
}
