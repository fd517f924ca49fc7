//! The configurations of `aes-encrypt` and `aes-decrypt`.

use serde::{Deserialize, Serialize};

use crate::secret::SecretKey;
use crate::words::word_enum;

/// Keys in one key file at most.
pub const MAX_KEYS: usize = 16;
/// Greatest value of `mtu`, bytes: jumbo frames.
pub const MAX_MTU: u16 = 9216;
/// Longest replay window, packets.
pub const MAX_REPLAY_WINDOW: u32 = 65_536;
/// Sessions that a decrypter keeps at most.
pub const MAX_SESSIONS: u16 = 256;

word_enum! {
    /// How payloads are encrypted.
    #[derive(Default, Hash)]
    pub enum Cipher {
        /// AES in Galois/Counter Mode (NIST SP 800-38D) with a key of 128 bits.
        #[default]
        Aes128Gcm = "aes-128-gcm",
        /// The same with 256 bits.
        Aes256Gcm = "aes-256-gcm",
        /// AES in Counter Mode (NIST SP 800-38A) with a key of 128 bits. Nothing is authenticated: whoever is on the way can flip
        /// any bit of the plaintext. For comparison with others that do the same.
        Aes128Ctr = "aes-128-ctr",
        /// The same with 256 bits.
        Aes256Ctr = "aes-256-ctr",
    }
}

impl Cipher {
    /// Length of its keys, bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes128Ctr => 16,
            Self::Aes256Gcm | Self::Aes256Ctr => 32,
        }
    }

    /// Whether what was changed on the way is recognised.
    pub fn is_authenticated(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm)
    }
}

/// Configuration of an `aes-encrypt` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AesEncryptConfig {
    /// The cipher.
    pub cipher: Cipher,
    /// Those of the key file, 1 to [`MAX_KEYS`], each at least as long as the cipher's; the first one encrypts.
    pub keys: Vec<SecretKey>,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
}

impl AesEncryptConfig {
    /// The part that a session depends on: cipher and key.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            cipher: self.cipher,
            keys: self.keys.iter().take(1).cloned().collect(),
            mtu: 0,
        }
    }
}

/// Configuration of an `aes-decrypt` function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AesDecryptConfig {
    /// The cipher.
    pub cipher: Cipher,
    /// Those of the key file, 1 to [`MAX_KEYS`], each at least as long as the cipher's; all are accepted.
    pub keys: Vec<SecretKey>,
    /// How far a packet may lie behind the newest of its session, packets, at most [`MAX_REPLAY_WINDOW`]; 0 accepts
    /// every packet, also one that came before.
    pub replay_window: u32,
    /// Encrypters that may be live at once, 1 to [`MAX_SESSIONS`]: as many sessions are kept, and each start begins one.
    pub sessions: u16,
}

impl AesDecryptConfig {
    /// The part that sessions depend on: keys may come and go under them.
    #[must_use]
    pub fn shape(&self) -> Self {
        Self {
            keys: Vec::new(),
            ..self.clone()
        }
    }
}
