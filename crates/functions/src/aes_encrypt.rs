//! `aes-encrypt`: encrypts the UDP payload.

use aws_lc_rs::rand;
use myelin_spec::{AES_ENCRYPT, AesEncryptConfig, Cipher, SecretKey};

use crate::aes::{
    DropCounters, DropReason, KeyError, KeyId, SESSION_PACKETS, SessionKey, TRAILER_LEN, Trailer,
    key_id, overhead,
};
use crate::datagram::{self, Datagram};
use crate::wide::{self, SumBytes};
use crate::{Emitter, Packet, Stateful, Verdict};

/// The session of an encrypter.
pub struct EncryptSession {
    cipher: Cipher,
    file_key: SecretKey,
    key_id: KeyId,
    salt: [u8; 16],
    key: SessionKey,
    next_counter: u64,
    started: u64,
    /// Dropped packets, of all generations.
    drops: DropCounters,
}

impl EncryptSession {
    /// Starts a session with the first key of `config` and a random salt.
    pub fn new(config: &AesEncryptConfig) -> Result<Self, KeyError> {
        let file_key = config.keys.first().ok_or(KeyError::Missing)?.clone();
        let (salt, key) = start_session(config.cipher, &file_key)?;
        Ok(Self {
            cipher: config.cipher,
            key_id: key_id(&file_key)?,
            file_key,
            salt,
            key,
            next_counter: 0,
            started: 1,
            drops: DropCounters::default(),
        })
    }

    /// Returns the trailer of the next packet. Starts a new session when the session has no packet
    /// number left.
    #[inline]
    fn next_trailer(&mut self) -> Result<Trailer, KeyError> {
        if self.next_counter == SESSION_PACKETS {
            (self.salt, self.key) = start_session(self.cipher, &self.file_key)?;
            self.next_counter = 0;
            self.started += 1;
        }
        let counter = self.next_counter;
        self.next_counter += 1;
        Ok(Trailer {
            key_id: self.key_id,
            salt: self.salt,
            counter,
        })
    }
}

fn start_session(cipher: Cipher, file_key: &SecretKey) -> Result<([u8; 16], SessionKey), KeyError> {
    let mut salt = [0; 16];
    rand::fill(&mut salt)?;
    Ok((salt, SessionKey::derive(cipher, file_key, &salt)?))
}

/// Encrypts UDP payloads in place and appends the trailer of [`aes`](crate::aes). Corrects lengths
/// and checksums, and overwrites or removes Ethernet padding.
///
/// Drops and counts a packet that is not UDP, is a fragment, or has bytes after its datagram (RFC
/// 9868). Also drops and counts a packet that would exceed the MTU or its buffer. A UDP checksum of
/// zero means no checksum and stays zero.
pub struct AesEncrypt {
    mtu: usize,
    overhead: usize,
    sum: SumBytes,
}

impl AesEncrypt {
    /// Makes the function with this configuration.
    pub fn new(config: &AesEncryptConfig) -> Self {
        Self {
            mtu: config.mtu.into(),
            overhead: overhead(config.cipher),
            sum: wide::fastest_sum(),
        }
    }

    /// Encrypts the packet. After an error, the packet's contents are undefined.
    #[inline]
    fn encrypt(
        &self,
        session: &mut EncryptSession,
        packet: &mut Packet<'_>,
    ) -> Result<(), DropReason> {
        let mut datagram = Datagram::of(packet, self.sum)?;
        if datagram.ip_len() + self.overhead > self.mtu {
            return Err(DropReason::TooLong);
        }
        let new_end = datagram.end + self.overhead;
        datagram::resize_frame(packet, new_end).ok_or(DropReason::NoRoom)?;
        let old = datagram.payload_sum(packet);
        let trailer = session.next_trailer().map_err(|_| DropReason::NoSession)?;
        let (payload, behind) = packet
            .bytes_mut()
            .get_mut(datagram.payload..new_end)
            .and_then(|sealed| sealed.split_at_mut_checked(datagram.end - datagram.payload))
            .ok_or(DropReason::NoRoom)?;
        let (trailer_bytes, tag_bytes) = behind
            .split_first_chunk_mut::<TRAILER_LEN>()
            .ok_or(DropReason::NoRoom)?;
        *trailer_bytes = trailer.to_bytes();
        let tag = session
            .key
            .seal(trailer.counter, trailer_bytes, payload)
            .map_err(|_| DropReason::NoSession)?;
        // CTR has no tag.
        if let (Some(tag), Some(bytes)) = (tag, tag_bytes.first_chunk_mut()) {
            *bytes = tag;
        }
        datagram
            .finish(packet, new_end, old)
            .ok_or(DropReason::NoRoom)
    }
}

impl Stateful for AesEncrypt {
    type State = EncryptSession;

    #[inline]
    fn process(
        &mut self,
        session: &mut EncryptSession,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        let encrypted = self.encrypt(session, packet);
        session.drops.count_result(encrypted)
    }

    fn read_counters(&self, session: &EncryptSession, sink: &mut dyn FnMut(&'static str, u64)) {
        session.drops.read(&AES_ENCRYPT, sink);
        sink("sessions-started", session.started);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_session_starts_after_the_last_packet_number() {
        let config = AesEncryptConfig {
            cipher: Cipher::Aes128Gcm,
            keys: vec![SecretKey::new(vec![7; 16])],
            mtu: 1500,
        };
        let mut session = EncryptSession::new(&config).unwrap();
        session.next_counter = SESSION_PACKETS - 1;
        let last = session.next_trailer().unwrap();
        let first = session.next_trailer().unwrap();
        assert_eq!((last.counter, first.counter), (SESSION_PACKETS - 1, 0));
        assert_eq!(last.key_id, first.key_id);
        assert_ne!(last.salt, first.salt);
        let mut payloads = [[0; 16]; 2];
        let old = EncryptSession::new(&config).unwrap();
        for (payload, key) in payloads.iter_mut().zip([&session.key, &old.key]) {
            key.seal(0, &[0; TRAILER_LEN], payload).unwrap();
        }
        assert_ne!(payloads[0], payloads[1], "the key did not change");
        assert_eq!(session.started, 2);
    }
}
