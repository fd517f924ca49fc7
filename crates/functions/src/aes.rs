//! What `aes-encrypt` and `aes-decrypt` have in common: the wire format and its cryptography.
//!
//! The UDP payload is encrypted where it lies, and followed by a [`Trailer`]: which key, which session,
//! which packet of it. With GCM the tag comes last, which covers the payload and the trailer:
//!
//! ```text
//! ciphertext | key identifier, 4 | salt, 16 | counter, 8 | tag, 16
//! ```
//!
//! A *session* is what one encrypter sends between its start, or change of keys, and the next. It has a key of
//! its own, which follows from the file's key and the session's random salt ([`SessionKey`]), so its packets can be
//! numbered from 0 and no nonce comes twice.

mod refusal;
mod replay_window;
mod session_key;
mod sessions;
mod trailer;

pub use refusal::Refusal;
pub(crate) use refusal::Refusals;
pub use replay_window::{Arrival, ReplayWindow};
pub use session_key::{KeyError, SessionKey};
pub(crate) use session_key::{KeyId, key_id};
pub use sessions::Sessions;
pub use trailer::{TAG_LEN, TRAILER_LEN, Trailer};

use myelin_spec::Cipher;

/// Packets of one session at most. Of 1500 bytes each they are fewer than 2^39 blocks: what an observer then learns
/// from no block having come twice gives it a chance of at most 2^-51 to tell the ciphertext from noise.
pub const SESSION_PACKETS: u64 = 1 << 32;

/// By how much an encrypted payload is longer, bytes.
pub fn overhead(cipher: Cipher) -> usize {
    if cipher.is_authenticated() {
        TRAILER_LEN + TAG_LEN
    } else {
        TRAILER_LEN
    }
}
