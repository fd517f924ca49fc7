//! The trailer of an encrypted payload.

use super::KeyId;

/// Length of a trailer without the tag, bytes.
pub const TRAILER_LEN: usize = 28;
/// Length of a tag, bytes: the longest that GCM gives.
pub const TAG_LEN: usize = 16;

/// Identifies key, session and number of an encrypted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Identifies the file's key.
    pub key_id: KeyId,
    /// Identifies the session, and is the salt of the session's key.
    pub salt: [u8; 16],
    /// The packet's number in its session.
    pub counter: u64,
}

impl Trailer {
    /// Returns the wire format.
    #[inline]
    pub fn to_bytes(self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..4].copy_from_slice(&self.key_id);
        bytes[4..20].copy_from_slice(&self.salt);
        bytes[20..].copy_from_slice(&self.counter.to_be_bytes());
        bytes
    }

    /// Reads the wire format. All bytes are valid.
    #[inline]
    pub fn from_bytes(bytes: &[u8; TRAILER_LEN]) -> Self {
        let (mut key_id, mut salt, mut counter) = ([0; 4], [0; 16], [0; 8]);
        key_id.copy_from_slice(&bytes[..4]);
        salt.copy_from_slice(&bytes[4..20]);
        counter.copy_from_slice(&bytes[20..]);
        Self {
            key_id,
            salt,
            counter: u64::from_be_bytes(counter),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn layout_matches_the_documentation() {
        let trailer = Trailer {
            key_id: [1; 4],
            salt: [2; 16],
            counter: 3,
        };
        let expected = [&[1; 4][..], &[2; 16], &[0, 0, 0, 0, 0, 0, 0, 3]].concat();
        assert_eq!(trailer.to_bytes()[..], expected);
    }

    proptest! {
        #[test]
        fn bytes_round_trip(bytes: [u8; TRAILER_LEN]) {
            prop_assert_eq!(Trailer::from_bytes(&bytes).to_bytes(), bytes);
        }
    }
}
