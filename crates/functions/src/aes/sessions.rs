//! The sessions that a decrypter knows.

use super::{Arrival, KeyId, ReplayWindow, SessionKey};

/// Sessions with their replay windows: a bounded number, of which the one used longest ago goes when one more comes.
///
/// Whoever adds one has decrypted a packet of it. So nobody without the key can put one out (with a cipher that
/// authenticates), and who replays packets of old sessions puts out none that is in use.
pub struct Sessions {
    slots: Vec<Slot>,
    /// Replay windows of slots that are still to come; all memory is there from the start.
    spare: Vec<ReplayWindow>,
    /// Grows with each use.
    time: u64,
    /// The slot used last, where the next look begins.
    last: usize,
    /// Sessions that were added.
    pub(crate) begun: u64,
    /// Sessions that were put out.
    pub(crate) forgotten: u64,
}

struct Slot {
    key_id: KeyId,
    salt: [u8; 16],
    key: SessionKey,
    window: ReplayWindow,
    used: u64,
}

impl Sessions {
    /// Room for that many sessions, at least one, with replay windows of that many packets.
    pub fn new(count: usize, window: u32) -> Self {
        let count = count.max(1);
        Self {
            slots: Vec::with_capacity(count),
            spare: vec![ReplayWindow::new(window); count],
            time: 0,
            last: 0,
            begun: 0,
            forgotten: 0,
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

    /// The key of the session at `index`, if that is one.
    #[inline]
    pub(crate) fn key(&self, index: usize) -> Option<&SessionKey> {
        self.slots.get(index).map(|slot| &slot.key)
    }

    /// What the number of a packet of the session at `index` says of it.
    #[inline]
    pub(crate) fn look(&self, index: usize, counter: u64) -> Arrival {
        self.slots
            .get(index)
            .map_or(Arrival::New, |slot| slot.window.look(counter))
    }

    /// Notes that a packet of the session at `index` came.
    #[inline]
    pub(crate) fn note(&mut self, index: usize, counter: u64) {
        self.time += 1;
        self.last = index;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.used = self.time;
            slot.window.note(counter);
        }
    }

    /// Adds a session and gives its place; the one used longest ago goes when there is no other.
    pub(crate) fn add(&mut self, key_id: KeyId, salt: [u8; 16], key: SessionKey) -> usize {
        self.begun += 1;
        if let Some(window) = self.spare.pop() {
            self.slots.push(Slot {
                key_id,
                salt,
                key,
                window,
                used: self.time,
            });
            return self.slots.len() - 1;
        }
        self.forgotten += 1;
        let slots = (0..).zip(&mut self.slots);
        let Some((index, slot)) = slots.min_by_key(|(_, slot)| slot.used) else {
            return 0;
        };
        slot.key_id = key_id;
        slot.salt = salt;
        slot.key = key;
        slot.window.clear();
        index
    }
}
