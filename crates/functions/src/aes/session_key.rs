//! The key of a session, and encryption and decryption with it.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{self, HKDF_SHA256, KeyType};
use aws_lc_rs::iv::FixedLength;
use myelin_spec::{Cipher, SecretKey};
use zeroize::Zeroizing;

use super::{TAG_LEN, TRAILER_LEN};

/// Identifies a key of a key file on the wire. HKDF derives the identifier from the key, so the
/// identifier reveals nothing about the key.
pub(crate) type KeyId = [u8; 4];

/// Length of a nonce, bytes.
const NONCE_LEN: usize = 12;
/// Length of the longest key, bytes.
const KEY_MAX: usize = 32;

/// The reason why an AES function has no usable key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The configuration contains no key.
    #[error("the configuration contains no key; name a file with a key in `keyFile`")]
    Missing,
    /// The key in the file is shorter than the cipher needs.
    #[error(
        "the key has {found} bytes, but {cipher} needs {needed}: make a key with `openssl rand -hex {needed}`"
    )]
    Short {
        /// Length of the key, bytes.
        found: usize,
        /// Length that the cipher needs, bytes.
        needed: usize,
        /// The cipher.
        cipher: Cipher,
    },
    /// Two keys have the same identifier on the wire. The probability is 2^-32.
    #[error("two keys have the same identifier; replace one of them")]
    Ambiguous,
    /// The library has no memory or no random numbers.
    #[error("the cryptographic library made no key: it lacks memory or random numbers; try again")]
    Library,
}

impl From<Unspecified> for KeyError {
    fn from(_: Unspecified) -> Self {
        Self::Library
    }
}

/// A session's key and the base of its nonces: HKDF-SHA256 (RFC 5869) of the file's key, with the
/// session's salt as salt and the cipher's name as info. The nonce of a packet is the base XOR its
/// counter (as in TLS, RFC 8446, section 5.3).
pub struct SessionKey {
    key: CipherKey,
    nonce_base: [u8; NONCE_LEN],
}

enum CipherKey {
    Gcm(LessSafeKey),
    Ctr(Box<EncryptingKey>),
}

/// The output length of HKDF, bytes.
struct OutputLength(usize);

impl KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

impl SessionKey {
    /// Derives the key of the session with salt `salt`.
    pub fn derive(cipher: Cipher, key: &SecretKey, salt: &[u8; 16]) -> Result<Self, KeyError> {
        let key_len = cipher.key_len();
        if key.expose().len() < key_len {
            return Err(KeyError::Short {
                found: key.expose().len(),
                needed: key_len,
                cipher,
            });
        }
        let info = [b"myelin aes 1 ", cipher.as_str().as_bytes()];
        let mut material = Zeroizing::new([0; KEY_MAX + NONCE_LEN]);
        let material = &mut material[..key_len + NONCE_LEN];
        hkdf::Salt::new(HKDF_SHA256, salt)
            .extract(key.expose())
            .expand(&info, OutputLength(material.len()))?
            .fill(material)?;
        let (key, base) = material.split_at(key_len);
        let gcm = |algorithm| UnboundKey::new(algorithm, key).map(LessSafeKey::new);
        let ctr = |algorithm| {
            UnboundCipherKey::new(algorithm, key)
                .and_then(EncryptingKey::ctr)
                .map(Box::new)
        };
        let key = match cipher {
            Cipher::Aes128Gcm => CipherKey::Gcm(gcm(&AES_128_GCM)?),
            Cipher::Aes256Gcm => CipherKey::Gcm(gcm(&AES_256_GCM)?),
            Cipher::Aes128Ctr => CipherKey::Ctr(ctr(&AES_128)?),
            Cipher::Aes256Ctr => CipherKey::Ctr(ctr(&AES_256)?),
        };
        let mut nonce_base = [0; NONCE_LEN];
        nonce_base.copy_from_slice(base);
        Ok(Self { key, nonce_base })
    }

    /// Encrypts the payload of packet `counter` in place and returns the tag, which also covers
    /// `trailer`. CTR has no tag.
    ///
    /// The caller must never repeat a counter.
    #[inline]
    pub fn seal(
        &self,
        counter: u64,
        trailer: &[u8; TRAILER_LEN],
        payload: &mut [u8],
    ) -> Result<Option<[u8; TAG_LEN]>, KeyError> {
        let nonce = self.nonce(counter);
        match &self.key {
            CipherKey::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(trailer), payload)?;
                Ok(tag.as_ref().first_chunk().copied())
            }
            CipherKey::Ctr(key) => apply_ctr(key, &nonce, payload).map(|()| None),
        }
    }

    /// Decrypts the payload of packet `counter` in place. Returns whether the tag matches; CTR has
    /// no tag and always matches. If the tag does not match, the contents of the payload are
    /// undefined.
    #[inline]
    pub fn open(
        &self,
        counter: u64,
        trailer: &[u8; TRAILER_LEN],
        tag: &[u8],
        payload: &mut [u8],
    ) -> bool {
        let nonce = self.nonce(counter);
        match &self.key {
            CipherKey::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place_separate_tag(nonce, Aad::from(trailer), tag, payload)
                    .is_ok()
            }
            CipherKey::Ctr(key) => apply_ctr(key, &nonce, payload).is_ok(),
        }
    }

    #[inline]
    fn nonce(&self, counter: u64) -> [u8; NONCE_LEN] {
        let mut nonce = self.nonce_base;
        if let Some((_, last)) = nonce.split_last_chunk_mut::<8>() {
            *last = (u64::from_be_bytes(*last) ^ counter).to_be_bytes();
        }
        nonce
    }
}

/// Encrypts with a counter block of the nonce and the block's number, from 0. A packet has fewer
/// than 2^32 blocks.
#[inline]
fn apply_ctr(
    key: &EncryptingKey,
    nonce: &[u8; NONCE_LEN],
    payload: &mut [u8],
) -> Result<(), KeyError> {
    let mut block = [0; 16];
    block[..NONCE_LEN].copy_from_slice(nonce);
    let context = EncryptionContext::Iv128(FixedLength::from(block));
    key.less_safe_encrypt(payload, context)?;
    Ok(())
}

/// Derives the identifier of `key`.
pub(crate) fn key_id(key: &SecretKey) -> Result<KeyId, KeyError> {
    let mut id = [0; 4];
    hkdf::Salt::none(HKDF_SHA256)
        .extract(key.expose())
        .expand(&[b"myelin aes 1 key identifier"], OutputLength(id.len()))?
        .fill(&mut id)?;
    Ok(id)
}
