//! `aes-decrypt`: decrypts packets of `aes-encrypt`.

use myelin_spec::{AES_DECRYPT, AesDecryptConfig, Cipher, SecretKey};

use crate::aes::{
    DropReason, Freshness, KeyError, KeyId, SessionKey, Sessions, TAG_LEN, TRAILER_LEN, Trailer,
    key_id, overhead,
};
use crate::datagram::Datagram;
use crate::wide::{self, SumBytes};
use crate::{Emitter, Packet, Stateful, Verdict};

/// Decrypts UDP payloads in place and removes the trailer of [`aes`](crate::aes). Corrects lengths
/// and checksums.
///
/// Drops and counts packets that are not encrypted (fragments, not UDP, too short) or whose key is
/// not in the key file. Also drops and counts packets that are not authentic, are replays, or are
/// too late. Stores a session after the session's first decrypted packet. Drops packets of a new
/// session if no slot is free.
pub struct AesDecrypt {
    cipher: Cipher,
    sum: SumBytes,
    /// Keys of the key file.
    keys: Vec<(KeyId, SecretKey)>,
    /// Whether this function has removed the keys that are not in the file from the sessions. `new`
    /// cannot remove these keys, because the thread that calls `new` does not borrow the sessions.
    has_pruned_keys: bool,
}

impl AesDecrypt {
    /// Makes the function with this configuration.
    pub fn new(config: &AesDecryptConfig) -> Result<Self, KeyError> {
        let mut keys: Vec<(KeyId, SecretKey)> = Vec::with_capacity(config.keys.len());
        for key in &config.keys {
            // Detects a short key here, not when the first packet arrives.
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
            has_pruned_keys: false,
        })
    }

    /// Decrypts the packet. After an error, the packet's contents are undefined.
    #[inline]
    fn decrypt(&self, sessions: &mut Sessions, packet: &mut Packet<'_>) -> Result<(), DropReason> {
        sessions.advance_clock(packet.meta().stamp_ns);
        let mut datagram = Datagram::of(packet, self.sum)?;
        let old = datagram.payload_sum(packet);
        let sealed = packet
            .bytes_mut()
            .get_mut(datagram.payload..datagram.end)
            .ok_or(DropReason::TooShort)?;
        let payload_len = sealed
            .len()
            .checked_sub(overhead(self.cipher))
            .ok_or(DropReason::TooShort)?;
        let (payload, behind) = sealed.split_at_mut(payload_len);
        let (trailer_bytes, tag) = behind
            .split_first_chunk::<TRAILER_LEN>()
            .ok_or(DropReason::TooShort)?;
        debug_assert!(tag.is_empty() || tag.len() == TAG_LEN);
        let trailer = Trailer::from_bytes(trailer_bytes);
        let (_, file_key) = self
            .keys
            .iter()
            .find(|(id, _)| *id == trailer.key_id)
            .ok_or(DropReason::UnknownKey)?;

        let known = sessions.find(trailer.key_id, &trailer.salt);
        match known.map_or(Freshness::New, |at| sessions.check(at, trailer.counter)) {
            Freshness::New => {}
            Freshness::Replayed => return Err(DropReason::Replayed),
            Freshness::TooOld => return Err(DropReason::TooOld),
        }
        let opened = |key: &SessionKey, payload| {
            if key.open(trailer.counter, trailer_bytes, tag, payload) {
                Ok(())
            } else {
                Err(DropReason::NotAuthentic)
            }
        };
        let known = known.and_then(|at| Some((at, sessions.key(at)?)));
        let at = if let Some((at, key)) = known {
            opened(key, payload).map(|()| at)
        } else {
            let key = SessionKey::derive(self.cipher, file_key, &trailer.salt)
                .map_err(|_| DropReason::NoSession)?;
            opened(&key, payload)?;
            sessions.add(trailer.key_id, trailer.salt, key)
        }?;
        sessions.record_packet(at, trailer.counter);
        let new_end = datagram.payload + payload_len;
        datagram
            .finish(packet, new_end, old)
            .ok_or(DropReason::TooShort)
    }
}

impl Stateful for AesDecrypt {
    type State = Sessions;

    /// Before the first batch, frees the keys that the key file no longer contains.
    #[inline]
    fn begin_batch(&mut self, sessions: &mut Sessions) {
        if !self.has_pruned_keys {
            sessions.retain_keys(|key_id| self.keys.iter().any(|(id, _)| *id == key_id));
            self.has_pruned_keys = true;
        }
    }

    #[inline]
    fn process(
        &mut self,
        sessions: &mut Sessions,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        let decrypted = self.decrypt(sessions, packet);
        sessions.drops.count_result(decrypted)
    }

    fn read_counters(&self, sessions: &Sessions, sink: &mut dyn FnMut(&'static str, u64)) {
        sessions.drops.read(&AES_DECRYPT, sink);
        sink("sessions-started", sessions.started);
        sink("sessions-evicted", sessions.evicted);
    }
}
