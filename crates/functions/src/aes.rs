//! The wire format and the cryptography that `aes-encrypt` and `aes-decrypt` share.
//!
//! The encrypter encrypts the UDP payload in place and appends a [`Trailer`]: key, session and
//! number of the packet. With GCM, a tag follows, which covers the payload and the trailer:
//!
//! ```text
//! ciphertext | key identifier, 4 | salt, 16 | counter, 8 | tag, 16
//! ```
//!
//! A *session* contains the packets that one encrypter sends from its start, or a change of keys,
//! to the next. The file's key and a random salt give the session's key ([`SessionKey`]). So each
//! session numbers its packets from 0, and no nonce repeats.

mod drop_reason;
mod replay_window;
mod session_key;
mod sessions;
mod trailer;

pub(crate) use drop_reason::DropCounters;
pub use drop_reason::DropReason;
pub use replay_window::{Freshness, ReplayWindow};
pub use session_key::{KeyError, SessionKey};
pub(crate) use session_key::{KeyId, key_id};
pub use sessions::Sessions;
pub use trailer::{TAG_LEN, TRAILER_LEN, Trailer};

use myelin_spec::Cipher;

/// Maximum number of packets in a session. At 1500 bytes each, the packets have fewer than 2^39
/// blocks. An observer who sees that no block repeats can tell the ciphertext from noise with a
/// probability of at most 2^-51.
pub const SESSION_PACKETS: u64 = 1 << 32;

/// Returns the number of bytes that encryption adds to a payload.
pub fn overhead(cipher: Cipher) -> usize {
    if cipher.is_authenticated() {
        TRAILER_LEN + TAG_LEN
    } else {
        TRAILER_LEN
    }
}
