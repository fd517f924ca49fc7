//! `aes-encrypt`: encrypts the UDP payload.

use aws_lc_rs::rand;
use myelin_spec::{AES_ENCRYPT, AesEncryptConfig, Cipher, SecretKey};

use crate::aes::{
    KeyError, KeyId, Refusal, Refusals, SESSION_PACKETS, SessionKey, TRAILER_LEN, Trailer, key_id,
    overhead,
};
use crate::datagram::{self, Datagram};
use crate::wide::{self, Sum};
use crate::{Emitter, Packet, Stateful, Verdict};

/// The session of an encrypter: its key and which number the next packet gets.
pub struct Session {
    cipher: Cipher,
    file_key: SecretKey,
    key_id: KeyId,
    salt: [u8; 16],
    key: SessionKey,
    next: u64,
    begun: u64,
    /// Packets that were dropped, by all generations.
    refusals: Refusals,
}

impl Session {
    /// A session with the first key of `config` and a random salt.
    pub fn new(config: &AesEncryptConfig) -> Result<Self, KeyError> {
        let file_key = config.keys.first().ok_or(KeyError::Missing)?.clone();
        let (salt, key) = begin(config.cipher, &file_key)?;
        Ok(Self {
            cipher: config.cipher,
            key_id: key_id(&file_key)?,
            file_key,
            salt,
            key,
            next: 0,
            begun: 1,
            refusals: Refusals::default(),
        })
    }

    /// What the next packet is sent with; a new session begins when this one is used up.
    #[inline]
    fn next(&mut self) -> Result<Trailer, KeyError> {
        if self.next == SESSION_PACKETS {
            (self.salt, self.key) = begin(self.cipher, &self.file_key)?;
            self.next = 0;
            self.begun += 1;
        }
        let counter = self.next;
        self.next += 1;
        Ok(Trailer {
            key_id: self.key_id,
            salt: self.salt,
            counter,
        })
    }
}

fn begin(cipher: Cipher, file_key: &SecretKey) -> Result<([u8; 16], SessionKey), KeyError> {
    let mut salt = [0; 16];
    rand::fill(&mut salt)?;
    Ok((salt, SessionKey::derive(cipher, file_key, &salt)?))
}

/// Encrypts UDP payloads in place and appends the trailer of [`aes`](crate::aes). Lengths and checksums follow; Ethernet
/// padding is used up or cut off.
///
/// A packet is dropped and counted when it is a fragment or not UDP, when something follows its datagram (RFC 9868), and
/// when it would become longer than the MTU or its buffer. A UDP checksum of zero means none and stays.
pub struct AesEncrypt {
    mtu: usize,
    overhead: usize,
    sum: Sum,
}

impl AesEncrypt {
    /// The function of that configuration.
    pub fn new(config: &AesEncryptConfig) -> Self {
        Self {
            mtu: config.mtu.into(),
            overhead: overhead(config.cipher),
            sum: wide::fastest_sum(),
        }
    }

    /// Encrypts; after an error the packet is in any state.
    #[inline]
    fn seal(&self, session: &mut Session, packet: &mut Packet<'_>) -> Result<(), Refusal> {
        let mut datagram = Datagram::of(packet, self.sum)?;
        if datagram.ip_len() + self.overhead > self.mtu {
            return Err(Refusal::TooLong);
        }
        let new_end = datagram.end + self.overhead;
        datagram::fit(packet, new_end).ok_or(Refusal::NoRoom)?;
        let old = datagram.payload_sum(packet);
        let trailer = session.next().map_err(|_| Refusal::NoSession)?;
        let (payload, behind) = packet
            .bytes_mut()
            .get_mut(datagram.payload..new_end)
            .and_then(|sealed| sealed.split_at_mut_checked(datagram.end - datagram.payload))
            .ok_or(Refusal::NoRoom)?;
        let (trailer_place, tag_place) = behind
            .split_first_chunk_mut::<TRAILER_LEN>()
            .ok_or(Refusal::NoRoom)?;
        *trailer_place = trailer.to_bytes();
        let tag = session
            .key
            .seal(trailer.counter, trailer_place, payload)
            .map_err(|_| Refusal::NoSession)?;
        // With CTR there is neither.
        if let (Some(tag), Some(place)) = (tag, tag_place.first_chunk_mut()) {
            *place = tag;
        }
        datagram.finish(packet, new_end, old).ok_or(Refusal::NoRoom)
    }
}

impl Stateful for AesEncrypt {
    type State = Session;

    #[inline]
    fn process(
        &mut self,
        session: &mut Session,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        let sealed = self.seal(session, packet);
        session.refusals.verdict(sealed)
    }

    fn read_counters(&self, session: &Session, sink: &mut dyn FnMut(&'static str, u64)) {
        session.refusals.read(&AES_ENCRYPT, sink);
        sink("sessions-begun", session.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_used_up_is_followed_by_another() {
        let config = AesEncryptConfig {
            cipher: Cipher::Aes128Gcm,
            keys: vec![SecretKey::new(vec![7; 16])],
            mtu: 1500,
        };
        let mut session = Session::new(&config).unwrap();
        session.next = SESSION_PACKETS - 1;
        let last = session.next().unwrap();
        let first = session.next().unwrap();
        assert_eq!((last.counter, first.counter), (SESSION_PACKETS - 1, 0));
        assert_eq!(last.key_id, first.key_id);
        assert_ne!(last.salt, first.salt);
        let mut payloads = [[0; 16]; 2];
        let old = Session::new(&config).unwrap();
        for (payload, key) in payloads.iter_mut().zip([&session.key, &old.key]) {
            key.seal(0, &[0; TRAILER_LEN], payload).unwrap();
        }
        assert_ne!(payloads[0], payloads[1], "the key stayed");
        assert_eq!(session.begun, 2);
    }
}
