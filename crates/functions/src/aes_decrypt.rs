//! `aes-decrypt`: decrypts what `aes-encrypt` encrypted.

use myelin_spec::{AES_DECRYPT, AesDecryptConfig, Cipher, SecretKey};

use crate::aes::{
    Arrival, KeyError, KeyId, Refusal, SessionKey, Sessions, TAG_LEN, TRAILER_LEN, Trailer, key_id,
    overhead,
};
use crate::datagram::Datagram;
use crate::wide::{self, Sum};
use crate::{Emitter, Packet, Stateful, Verdict};

/// Decrypts UDP payloads in place and takes the trailer of [`aes`](crate::aes) off. Lengths and checksums follow.
///
/// A packet is dropped and counted when it cannot have been encrypted (a fragment, not UDP, too short), when its key is none of
/// the key file's, when it is not authentic, and when it came before or too late. A session is remembered once a packet of
/// it was decrypted; the packets of one for which there is no place are dropped too.
pub struct AesDecrypt {
    cipher: Cipher,
    sum: Sum,
    /// Those of the key file.
    keys: Vec<(KeyId, SecretKey)>,
    /// Whether the sessions were rid of keys that are not in the file. Not in `new`, which another thread calls than the one that is in
    /// the sessions.
    is_rid: bool,
}

impl AesDecrypt {
    /// The function of that configuration.
    pub fn new(config: &AesDecryptConfig) -> Result<Self, KeyError> {
        let mut keys: Vec<(KeyId, SecretKey)> = Vec::with_capacity(config.keys.len());
        for key in &config.keys {
            // Too short a key is found here, not when a packet asks for it.
            SessionKey::derive(config.cipher, key, &[0; 16])?;
            let id = key_id(key)?;
            if keys.iter().any(|(other, _)| *other == id) {
                return Err(KeyError::Ambiguous);
            }
            keys.push((id, key.clone()));
        }
        if keys.is_empty() {
            return Err(KeyError::Missing);
        }
        Ok(Self {
            cipher: config.cipher,
            sum: wide::fastest_sum(),
            keys,
            is_rid: false,
        })
    }

    /// Decrypts; after an error the packet is in any state.
    #[inline]
    fn open(&self, sessions: &mut Sessions, packet: &mut Packet<'_>) -> Result<(), Refusal> {
        sessions.advance(packet.meta().stamp_ns);
        let mut datagram = Datagram::of(packet, self.sum)?;
        let old = datagram.payload_sum(packet);
        let sealed = packet
            .bytes_mut()
            .get_mut(datagram.payload..datagram.end)
            .ok_or(Refusal::TooShort)?;
        let payload_len = sealed
            .len()
            .checked_sub(overhead(self.cipher))
            .ok_or(Refusal::TooShort)?;
        let (payload, behind) = sealed.split_at_mut(payload_len);
        let (trailer_bytes, tag) = behind
            .split_first_chunk::<TRAILER_LEN>()
            .ok_or(Refusal::TooShort)?;
        debug_assert!(tag.is_empty() || tag.len() == TAG_LEN);
        let trailer = Trailer::from_bytes(trailer_bytes);
        let (_, file_key) = self
            .keys
            .iter()
            .find(|(id, _)| *id == trailer.key_id)
            .ok_or(Refusal::UnknownKey)?;

        let known = sessions.find(trailer.key_id, &trailer.salt);
        match known.map_or(Arrival::New, |at| sessions.look(at, trailer.counter)) {
            Arrival::New => {}
            Arrival::Replayed => return Err(Refusal::Replayed),
            Arrival::TooOld => return Err(Refusal::TooOld),
        }
        let opened = |key: &SessionKey, payload| {
            if key.open(trailer.counter, trailer_bytes, tag, payload) {
                Ok(())
            } else {
                Err(Refusal::NotAuthentic)
            }
        };
        let known = known.and_then(|at| Some((at, sessions.key(at)?)));
        let at = if let Some((at, key)) = known {
            opened(key, payload).map(|()| at)
        } else {
            let key = SessionKey::derive(self.cipher, file_key, &trailer.salt)
                .map_err(|_| Refusal::NoSession)?;
            opened(&key, payload)?;
            sessions.add(trailer.key_id, trailer.salt, key)
        }?;
        sessions.note(at, trailer.counter);
        let new_end = datagram.payload + payload_len;
        datagram
            .finish(packet, new_end, old)
            .ok_or(Refusal::TooShort)
    }
}

impl Stateful for AesDecrypt {
    type State = Sessions;

    /// Once, frees the keys of sessions of other keys.
    #[inline]
    fn begin(&mut self, sessions: &mut Sessions) {
        if !self.is_rid {
            sessions.keep_keys(|key_id| self.keys.iter().any(|(id, _)| *id == key_id));
            self.is_rid = true;
        }
    }

    #[inline]
    fn process(
        &mut self,
        sessions: &mut Sessions,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        let opened = self.open(sessions, packet);
        sessions.refusals.verdict(opened)
    }

    fn read_counters(&self, sessions: &Sessions, sink: &mut dyn FnMut(&'static str, u64)) {
        sessions.refusals.read(&AES_DECRYPT, sink);
        sink("sessions-begun", sessions.begun);
        sink("sessions-forgotten", sessions.forgotten);
    }
}
