//! The sessions of a decrypter.

use super::{DropCounters, DropReason, Freshness, KeyId, ReplayWindow, SessionKey};

/// A session is in use until it has received no packet for this time.
const IN_USE_NS: u64 = 10_000_000_000;
/// Number of evicted sessions whose salts are stored: 64 KiB of salts.
const MAX_EVICTED: usize = 4096;

/// A limited number of sessions with their replay windows. If no slot is free, a new session evicts
/// the least recently used session. If that session is in use, `add` refuses the new session.
///
/// The caller adds a session only after it has decrypted a packet of that session. So only a sender
/// with the key can evict a session (with a cipher that authenticates). An evicted session has lost
/// its window, so `add` refuses it. Otherwise an attacker could replay old packets of many sessions
/// in turn, and each session would evict another.
pub struct Sessions {
    slots: Vec<SessionSlot>,
    /// Replay windows of unused slots, allocated from the start.
    spare_windows: Vec<ReplayWindow>,
    /// Ring of the salts evicted last. Only [`add`](Self::add) reads it.
    evicted_salts: Vec<[u8; 16]>,
    /// Capacity of `evicted_salts`.
    max_evicted: usize,
    /// The latest stamp of a packet. Missing stamps (0) and older stamps do not change this time.
    now_ns: u64,
    /// The slot used last. The next search starts there.
    last: usize,
    /// Number of sessions added.
    pub(crate) started: u64,
    /// Number of sessions evicted.
    pub(crate) evicted: u64,
    /// Dropped packets, of all generations.
    pub(crate) drops: DropCounters,
}

struct SessionSlot {
    key_id: KeyId,
    salt: [u8; 16],
    /// `None` if the key file no longer contains the session's key.
    key: Option<SessionKey>,
    window: ReplayWindow,
    used_ns: u64,
}

impl Sessions {
    /// Makes slots for `count` sessions, at least one, with replay windows of `window` packets.
    /// With windows of 0, `add` accepts evicted sessions again.
    pub fn new(count: usize, window: u32) -> Self {
        let count = count.max(1);
        let max_evicted = if window == 0 { 0 } else { MAX_EVICTED };
        Self {
            slots: Vec::with_capacity(count),
            spare_windows: vec![ReplayWindow::new(window); count],
            evicted_salts: Vec::with_capacity(max_evicted),
            max_evicted,
            now_ns: 0,
            last: 0,
            started: 0,
            evicted: 0,
            drops: DropCounters::default(),
        }
    }

    /// Finds the index of a session.
    #[inline]
    pub(crate) fn find(&self, key_id: KeyId, salt: &[u8; 16]) -> Option<usize> {
        let is_same = |slot: &SessionSlot| slot.salt == *salt && slot.key_id == key_id;
        if self.slots.get(self.last).is_some_and(is_same) {
            return Some(self.last);
        }
        self.slots.iter().position(is_same)
    }

    /// Returns the key of the session at `index`, if that session exists and has a key.
    #[inline]
    pub(crate) fn key(&self, index: usize) -> Option<&SessionKey> {
        self.slots.get(index)?.key.as_ref()
    }

    /// Frees the keys that the key file no longer contains. The sessions keep their windows,
    /// because a later file may contain the key again, and the previous generation of the chain may
    /// still use the key.
    pub(crate) fn retain_keys(&mut self, is_accepted: impl Fn(KeyId) -> bool) {
        for slot in &mut self.slots {
            slot.key.take_if(|_| !is_accepted(slot.key_id));
        }
    }

    /// Checks whether the packet number `counter` of the session at `index` is new.
    #[inline]
    pub(crate) fn check(&self, index: usize, counter: u64) -> Freshness {
        self.slots
            .get(index)
            .map_or(Freshness::New, |slot| slot.window.check(counter))
    }

    /// Advances the clock to the stamp of a packet.
    #[inline]
    pub(crate) fn advance_clock(&mut self, stamp_ns: u64) {
        self.now_ns = self.now_ns.max(stamp_ns);
    }

    /// Records a packet of the session at `index`.
    #[inline]
    pub(crate) fn record_packet(&mut self, index: usize, counter: u64) {
        self.last = index;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.used_ns = self.now_ns;
            slot.window.record(counter);
        }
    }

    /// Adds a session, or the key of a session without a key, and returns the session's index.
    /// Evicts the least recently used session if no slot is free.
    ///
    /// Refuses a session that was evicted before, and any new session while all slots are in use.
    pub(crate) fn add(
        &mut self,
        key_id: KeyId,
        salt: [u8; 16],
        key: SessionKey,
    ) -> Result<usize, DropReason> {
        if let Some(index) = self.find(key_id, &salt) {
            self.slots[index].key = Some(key);
            return Ok(index);
        }
        if self.evicted_salts.contains(&salt) {
            return Err(DropReason::SessionEvicted);
        }
        if let Some(window) = self.spare_windows.pop() {
            self.started += 1;
            self.slots.push(SessionSlot {
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
            .ok_or(DropReason::SessionsFull)?;
        let evicted = std::mem::replace(&mut slot.salt, salt);
        slot.key_id = key_id;
        slot.key = Some(key);
        slot.window.clear();
        if self.evicted_salts.len() < self.max_evicted {
            self.evicted_salts.push(evicted);
        } else if let Some(oldest) = self.evicted.checked_rem(self.max_evicted as u64) {
            self.evicted_salts[oldest as usize] = evicted;
        }
        self.started += 1;
        self.evicted += 1;
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

    /// Adds session `number` and records its first packet.
    fn start_session(sessions: &mut Sessions, number: usize) -> Result<usize, DropReason> {
        let key = SecretKey::new(vec![7; 16]);
        let key = SessionKey::derive(Cipher::Aes128Gcm, &key, &salt(number)).unwrap();
        sessions.add([0; 4], salt(number), key).inspect(|&at| {
            sessions.record_packet(at, 0);
        })
    }

    #[test]
    fn a_session_in_use_is_not_evicted_by_older_or_missing_stamps() {
        let mut sessions = Sessions::new(2, 64);
        sessions.advance_clock(5 * IN_USE_NS);
        assert_eq!(start_session(&mut sessions, 0), Ok(0));
        sessions.advance_clock(0);
        assert_eq!(start_session(&mut sessions, 1), Ok(1));
        assert_eq!(
            start_session(&mut sessions, 2),
            Err(DropReason::SessionsFull)
        );
        sessions.advance_clock(6 * IN_USE_NS - 1);
        assert_eq!(
            start_session(&mut sessions, 2),
            Err(DropReason::SessionsFull)
        );
        sessions.record_packet(0, 1);
        sessions.advance_clock(3);
        sessions.advance_clock(6 * IN_USE_NS);
        assert_eq!(
            start_session(&mut sessions, 2),
            Ok(1),
            "the slot of the least recently used session"
        );
        assert_eq!(
            start_session(&mut sessions, 3),
            Err(DropReason::SessionsFull)
        );
        sessions.advance_clock(u64::MAX);
        assert_eq!(start_session(&mut sessions, 3), Ok(0));
        assert_eq!((sessions.started, sessions.evicted), (4, 2));
    }

    #[test]
    fn sessions_evicted_last_are_not_accepted_again() {
        let mut sessions = Sessions::new(1, 64);
        let mut step = |number| {
            sessions.advance_clock(sessions.now_ns + IN_USE_NS);
            start_session(&mut sessions, number)
        };
        for number in 0..=MAX_EVICTED {
            assert_eq!(step(number), Ok(0), "{number}");
        }
        for number in 0..MAX_EVICTED {
            assert_eq!(step(number), Err(DropReason::SessionEvicted), "{number}");
        }
        // Each further eviction replaces the oldest salt.
        for number in 0..3 {
            assert_eq!(step(MAX_EVICTED + 1 + number), Ok(0));
            assert_eq!(step(MAX_EVICTED + number), Err(DropReason::SessionEvicted));
            assert_eq!(step(number + 1), Err(DropReason::SessionEvicted));
        }
        assert_eq!(
            step(0),
            Ok(0),
            "the ring no longer contains the oldest salt"
        );
        assert_eq!(sessions.evicted_salts.capacity(), MAX_EVICTED);
    }

    #[test]
    fn a_replay_window_survives_the_removal_of_its_key() {
        let mut sessions = Sessions::new(2, 64);
        start_session(&mut sessions, 0).unwrap();
        sessions.retain_keys(|id| id == [0; 4]);
        assert!(sessions.key(0).is_some());
        sessions.retain_keys(|id| id == [1; 4]);
        assert!(sessions.key(0).is_none());
        assert_eq!(sessions.check(0, 0), Freshness::Replayed);
        sessions.record_packet(0, 1);
        assert_eq!(start_session(&mut sessions, 0), Ok(0), "another slot");
        assert!(sessions.key(0).is_some());
        assert_eq!(sessions.check(0, 1), Freshness::Replayed);
        assert_eq!(sessions.started, 1);
    }

    #[test]
    fn without_windows_an_evicted_session_is_accepted_again() {
        let mut sessions = Sessions::new(1, 0);
        for number in [0, 1, 0, 1] {
            sessions.advance_clock(sessions.now_ns + IN_USE_NS);
            assert_eq!(start_session(&mut sessions, number), Ok(0));
        }
    }
}
