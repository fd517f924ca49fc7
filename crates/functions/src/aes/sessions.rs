//! The sessions that a decrypter knows.

use super::{Arrival, KeyId, Refusal, Refusals, ReplayWindow, SessionKey};

/// A session is in use until none of its packets came for this long.
const IN_USE_NS: u64 = 10_000_000_000;
/// Sessions that are known to have been put out: 64 KiB of salts.
const PUT_OUT: usize = 4096;

/// Sessions with their replay windows: a bounded number, of which the one used longest ago goes when one more comes, if it is no longer
/// in use. Else the new one is refused.
///
/// Whoever adds one has decrypted a packet of it. So nobody without the key can put one out (with a cipher that
/// authenticates). A session that was put out has lost its window, so it is never taken again: else old packets of
/// many sessions, replayed in turns, would make each other new.
pub struct Sessions {
    slots: Vec<Slot>,
    /// Replay windows of slots that are still to come; all memory is there from the start.
    spare: Vec<ReplayWindow>,
    /// Salts of the sessions put out last, a ring; looked at only when a session is to be added.
    put_out: Vec<[u8; 16]>,
    /// How many of these are kept.
    put_out_max: usize,
    /// The latest stamp of a packet: those that are missing (0) or go backwards do not turn it back.
    now_ns: u64,
    /// The slot used last, where the next look begins.
    last: usize,
    /// Sessions that were added.
    pub(crate) begun: u64,
    /// Sessions that were put out.
    pub(crate) forgotten: u64,
    /// Packets that were dropped, by all generations.
    pub(crate) refusals: Refusals,
}

struct Slot {
    key_id: KeyId,
    salt: [u8; 16],
    /// `None` after the file's key was taken away.
    key: Option<SessionKey>,
    window: ReplayWindow,
    used_ns: u64,
}

impl Sessions {
    /// Room for that many sessions, at least one, with replay windows of that many packets. With windows of none, sessions that were put
    /// out are taken again.
    pub fn new(count: usize, window: u32) -> Self {
        let count = count.max(1);
        let put_out_max = if window == 0 { 0 } else { PUT_OUT };
        Self {
            slots: Vec::with_capacity(count),
            spare: vec![ReplayWindow::new(window); count],
            put_out: Vec::with_capacity(put_out_max),
            put_out_max,
            now_ns: 0,
            last: 0,
            begun: 0,
            forgotten: 0,
            refusals: Refusals::default(),
        }
    }

    /// Where a session is.
    #[inline]
    pub(crate) fn find(&self, key_id: KeyId, salt: &[u8; 16]) -> Option<usize> {
        let is_it = |slot: &Slot| slot.salt == *salt && slot.key_id == key_id;
        if self.slots.get(self.last).is_some_and(is_it) {
            return Some(self.last);
        }
        self.slots.iter().position(is_it)
    }

    /// The key of the session at `index`, if that is one and has it.
    #[inline]
    pub(crate) fn key(&self, index: usize) -> Option<&SessionKey> {
        self.slots.get(index)?.key.as_ref()
    }

    /// Frees the keys of sessions whose file's key is no longer accepted. Their windows stay: it may be accepted again, and the former
    /// generation of the chain may still do so.
    pub(crate) fn keep_keys(&mut self, is_accepted: impl Fn(KeyId) -> bool) {
        for slot in &mut self.slots {
            slot.key.take_if(|_| !is_accepted(slot.key_id));
        }
    }

    /// What the number of a packet of the session at `index` says of it.
    #[inline]
    pub(crate) fn look(&self, index: usize, counter: u64) -> Arrival {
        self.slots
            .get(index)
            .map_or(Arrival::New, |slot| slot.window.look(counter))
    }

    /// Takes over the time from the stamp of a packet.
    #[inline]
    pub(crate) fn advance(&mut self, stamp_ns: u64) {
        self.now_ns = self.now_ns.max(stamp_ns);
    }

    /// Notes that a packet of the session at `index` came.
    #[inline]
    pub(crate) fn note(&mut self, index: usize, counter: u64) {
        self.last = index;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.used_ns = self.now_ns;
            slot.window.note(counter);
        }
    }

    /// Adds a session, or the key to one that has none, and gives its place; where there is no other, that of the one used longest ago.
    ///
    /// Refused when the session was put out before, and when all that are kept are in use.
    pub(crate) fn add(
        &mut self,
        key_id: KeyId,
        salt: [u8; 16],
        key: SessionKey,
    ) -> Result<usize, Refusal> {
        if let Some(index) = self.find(key_id, &salt) {
            self.slots[index].key = Some(key);
            return Ok(index);
        }
        if self.put_out.contains(&salt) {
            return Err(Refusal::PutOut);
        }
        if let Some(window) = self.spare.pop() {
            self.begun += 1;
            self.slots.push(Slot {
                key_id,
                salt,
                key: Some(key),
                window,
                used_ns: self.now_ns,
            });
            return Ok(self.slots.len() - 1);
        }
        let now_ns = self.now_ns;
        let (index, slot) = (0..)
            .zip(&mut self.slots)
            .min_by_key(|(_, slot)| slot.used_ns)
            .filter(|(_, slot)| now_ns - slot.used_ns >= IN_USE_NS)
            .ok_or(Refusal::SessionsFull)?;
        let former = std::mem::replace(&mut slot.salt, salt);
        slot.key_id = key_id;
        slot.key = Some(key);
        slot.window.clear();
        if self.put_out.len() < self.put_out_max {
            self.put_out.push(former);
        } else if let Some(oldest) = self.forgotten.checked_rem(self.put_out_max as u64) {
            self.put_out[oldest as usize] = former;
        }
        self.begun += 1;
        self.forgotten += 1;
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::{Cipher, SecretKey};

    use super::*;

    fn salt(number: usize) -> [u8; 16] {
        (number as u128).to_be_bytes()
    }

    /// Adds session `number` and notes its first packet.
    fn begin(sessions: &mut Sessions, number: usize) -> Result<usize, Refusal> {
        let key = SecretKey::new(vec![7; 16]);
        let key = SessionKey::derive(Cipher::Aes128Gcm, &key, &salt(number)).unwrap();
        sessions.add([0; 4], salt(number), key).inspect(|&at| {
            sessions.note(at, 0);
        })
    }

    #[test]
    fn a_session_in_use_stays_whatever_the_stamps_say() {
        let mut sessions = Sessions::new(2, 64);
        sessions.advance(5 * IN_USE_NS);
        assert_eq!(begin(&mut sessions, 0), Ok(0));
        sessions.advance(0);
        assert_eq!(begin(&mut sessions, 1), Ok(1));
        assert_eq!(begin(&mut sessions, 2), Err(Refusal::SessionsFull));
        sessions.advance(6 * IN_USE_NS - 1);
        assert_eq!(begin(&mut sessions, 2), Err(Refusal::SessionsFull));
        sessions.note(0, 1);
        sessions.advance(3);
        sessions.advance(6 * IN_USE_NS);
        assert_eq!(begin(&mut sessions, 2), Ok(1), "the one used longest ago");
        assert_eq!(begin(&mut sessions, 3), Err(Refusal::SessionsFull));
        sessions.advance(u64::MAX);
        assert_eq!(begin(&mut sessions, 3), Ok(0));
        assert_eq!((sessions.begun, sessions.forgotten), (4, 2));
    }

    #[test]
    fn the_sessions_put_out_last_are_not_taken_again() {
        let mut sessions = Sessions::new(1, 64);
        let mut step = |number| {
            sessions.advance(sessions.now_ns + IN_USE_NS);
            begin(&mut sessions, number)
        };
        for number in 0..=PUT_OUT {
            assert_eq!(step(number), Ok(0), "{number}");
        }
        for number in 0..PUT_OUT {
            assert_eq!(step(number), Err(Refusal::PutOut), "{number}");
        }
        // Each that is put out from now on takes the place of the oldest.
        for number in 0..3 {
            assert_eq!(step(PUT_OUT + 1 + number), Ok(0));
            assert_eq!(step(PUT_OUT + number), Err(Refusal::PutOut));
            assert_eq!(step(number + 1), Err(Refusal::PutOut));
        }
        assert_eq!(step(0), Ok(0), "the bound");
        assert_eq!(sessions.put_out.capacity(), PUT_OUT);
    }

    #[test]
    fn a_key_goes_and_comes_back_and_the_window_stays() {
        let mut sessions = Sessions::new(2, 64);
        begin(&mut sessions, 0).unwrap();
        sessions.keep_keys(|id| id == [0; 4]);
        assert!(sessions.key(0).is_some());
        sessions.keep_keys(|id| id == [1; 4]);
        assert!(sessions.key(0).is_none());
        assert_eq!(sessions.look(0, 0), Arrival::Replayed);
        sessions.note(0, 1);
        assert_eq!(begin(&mut sessions, 0), Ok(0), "another place");
        assert!(sessions.key(0).is_some());
        assert_eq!(sessions.look(0, 1), Arrival::Replayed);
        assert_eq!(sessions.begun, 1);
    }

    #[test]
    fn without_windows_a_session_comes_back() {
        let mut sessions = Sessions::new(1, 0);
        for number in [0, 1, 0, 1] {
            sessions.advance(sessions.now_ns + IN_USE_NS);
            assert_eq!(begin(&mut sessions, number), Ok(0));
        }
    }
}
