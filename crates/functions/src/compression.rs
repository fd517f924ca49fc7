//! How a compressed payload looks, for `compress` and `decompress`.
//!
//! ```text
//!  0 marker u32 | 4 length u16 | 6 [dictionary u32] | block ...      compressed
//!  0 marker u32 | payload ...                                        stored
//!  payload ...                                                       untouched
//! ```
//!
//! All big endian. The first 29 bits of the marker are fixed, the last three say what follows: a stored payload, an LZ4
//! block, a Zstandard frame (RFC 8878, without its magic number), the latter two also with a dictionary,
//! whose [`identity`] comes behind the length. `length` is that of the payload as it was, bytes.
//!
//! A payload that gets no smaller goes untouched, every byte of it. Who decompresses knows it for certain: a payload that
//! begins like a marker of its own accord never goes untouched, it is compressed or, with the 4 bytes of a
//! marker more, stored. So a payload is compressed or stored if, and only if, it begins like a marker. Of
//! random payloads one in 2^29 does; no UTF-8 text does, since its first byte is in none.
//!
//! The length is there so that a packet that would come out too long is known before anything is decompressed, and so
//! that a block that gives another length is known to be damaged.

pub mod lz4;
pub mod zstd;

use myelin_spec::CompressionAlgorithm;

/// The fixed bits of a marker.
const MARKER: u32 = 0xf54d_59b8;
/// The bits that say what follows.
const FORM: u32 = 0b111;
const STORED: u32 = 0;
const LZ4: u32 = 1;
const ZSTD: u32 = 2;
const WITH_DICTIONARY: u32 = 0b100;

/// Bytes of a marker: what a stored payload is longer than it was.
pub const MARKER_LEN: usize = 4;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 10;

/// Why the state of an algorithm cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// There is no memory for it.
    #[error("there is no memory for the state of {0}; use a smaller dictionary or fewer functions")]
    Memory(CompressionAlgorithm),
    /// The dictionary begins like one that `zstd --train` made, but is damaged.
    #[error(
        "the dictionary is damaged: it begins like one of `zstd --train`, but Zstandard cannot read it; make it anew"
    )]
    Dictionary,
}

/// The header of a compressed payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How the block was made.
    pub algorithm: CompressionAlgorithm,
    /// Bytes of the payload as it was.
    pub length: u16,
    /// The [`identity`] of the dictionary that it was made with.
    pub dictionary: Option<u32>,
}

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it was sent.
    Untouched,
    /// As it was sent, behind a marker.
    Stored,
    /// A block behind a header.
    Compressed(Header),
    /// It begins like a marker, and nothing that `compress` makes goes on like this.
    Malformed,
}

impl Header {
    /// Bytes of a header with a dictionary or without.
    pub const fn len(has_dictionary: bool) -> usize {
        if has_dictionary {
            MAX_HEADER_LEN
        } else {
            MAX_HEADER_LEN - 4
        }
    }

    /// Writes it to the front of `to`; `None` when it does not fit.
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

    /// Reads what follows the marker.
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
        // It was compressed because that made it shorter.
        (payload.len() < length.into()).then_some(Self {
            algorithm,
            length,
            dictionary,
        })
    }
}

/// The marker in front of a stored payload.
pub(crate) const STORED_MARKER: [u8; MARKER_LEN] = (MARKER | STORED).to_be_bytes();

/// Whether a payload begins like a marker, so that it must not go untouched.
#[inline]
pub fn is_marked(payload: &[u8]) -> bool {
    marker(payload).is_some()
}

/// What the marker of a payload says, if there is one.
#[inline]
fn marker(payload: &[u8]) -> Option<u32> {
    let word = u32::from_be_bytes(*payload.first_chunk()?);
    (word & !FORM == MARKER).then_some(word & FORM)
}

/// What a payload is.
#[inline]
pub fn form(payload: &[u8]) -> Form {
    match marker(payload) {
        None => Form::Untouched,
        Some(STORED) => Form::Stored,
        Some(form) => Header::read(form, payload).map_or(Form::Malformed, Form::Compressed),
    }
}

/// What tells a dictionary from others: FNV-1a (Fowler, Noll, Vo), 32 bits.
pub fn identity(dictionary: &[u8]) -> u32 {
    dictionary.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn identities_are_those_of_the_authors() {
        // Test vectors of FNV-1a, 32 bits.
        assert_eq!(identity(b""), 0x811c_9dc5);
        assert_eq!(identity(b"a"), 0xe40c_292c);
        assert_eq!(identity(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn what_begins_like_a_marker_and_goes_on_otherwise_is_malformed() {
        for bits in 0..=FORM {
            let mut payload = (MARKER | bits).to_be_bytes().to_vec();
            assert!(is_marked(&payload));
            if bits != STORED {
                assert_eq!(form(&payload), Form::Malformed, "cut");
            }
            payload.extend([0xff; 20]);
            let found = match form(&payload) {
                Form::Stored => "stored",
                Form::Compressed(_) => "compressed",
                Form::Malformed => "malformed",
                Form::Untouched => "untouched",
            };
            let expected = match bits {
                0 => "stored",
                1 | 2 | 5 | 6 => "compressed",
                _ => "malformed",
            };
            assert_eq!(found, expected, "{bits}");
        }
        assert_eq!(form(&(MARKER ^ 8).to_be_bytes()), Form::Untouched);
        assert_eq!(form(&STORED_MARKER[..3]), Form::Untouched);
    }

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_written(
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
                Form::Compressed(header)
            } else {
                Form::Malformed
            };
            prop_assert_eq!(form(&payload), expected);
        }
    }
}
