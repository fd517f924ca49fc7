//! A table of flows with a fixed capacity: the memory of a stateful function.
//!
//! `new` allocates and touches all memory of a table; no other operation allocates. When the
//! table is full, a new flow evicts the least recently used flow. The table counts evictions.
//!
//! A function may *protect* flows, for example established connections. A protected flow is evicted
//! only if no other flow is left, so a flood of new flows evicts none. At most 7/8 of the flows are
//! protected: beyond, the least recently used of them loses its protection (segmented LRU, Karedla
//! et al. 1994).
//!
//! An entry keeps its slot from insertion to removal. Two linked lists order the entries, protected
//! ones and others, from the most to the least recently used. An open-addressing index with linear
//! probing, at most half full, finds the entry of a flow. The hash has a random seed, so a sender
//! cannot choose flows that collide.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// Maximum number of flows in a table: about 200 MB with the largest entries in use.
pub const MAX_FLOWS: usize = 1 << 20;

/// Marks the absence of an entry.
const NONE: u32 = u32::MAX;

/// At most `capacity` flows, each with a value.
#[derive(Clone, Debug)]
pub struct FlowTable<K, V> {
    entries: Box<[FlowEntry<K, V>]>,
    /// A power of two, at least twice the capacity.
    index: Box<[IndexSlot]>,
    seed: u64,
    /// Head of the unused entries, linked by `older`.
    unused: u32,
    /// The flows without protection, then the protected flows.
    lists: [FlowList; 2],
    len: u32,
    evictions: u64,
}

#[derive(Clone, Copy, Debug)]
struct FlowEntry<K, V> {
    key: K,
    value: V,
    in_use: bool,
    is_protected: bool,
    newer: u32,
    older: u32,
}

/// A list of entries in order of use.
#[derive(Clone, Copy, Debug)]
struct FlowList {
    newest: u32,
    oldest: u32,
    len: u32,
}

impl FlowList {
    const EMPTY: Self = Self {
        newest: NONE,
        oldest: NONE,
        len: 0,
    };
}

/// A slot of the index. The stored hash avoids most reads of other flows' entries.
#[derive(Clone, Copy, Debug)]
struct IndexSlot {
    hash: u32,
    entry: u32,
}

impl<K: Copy + Default + Eq + Hash, V: Copy + Default> FlowTable<K, V> {
    /// Makes an empty table for `capacity` flows, at least one and at most [`MAX_FLOWS`].
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, MAX_FLOWS);
        let entries = (0..capacity as u32)
            .map(|number| FlowEntry {
                key: K::default(),
                value: V::default(),
                in_use: false,
                is_protected: false,
                newer: NONE,
                older: if number as usize + 1 < capacity {
                    number + 1
                } else {
                    NONE
                },
            })
            .collect();
        let empty = IndexSlot {
            hash: 0,
            entry: NONE,
        };
        Self {
            entries,
            index: vec![empty; (capacity * 2).next_power_of_two()].into(),
            // The standard library seeds this hasher with the system's random numbers.
            seed: RandomState::new().build_hasher().finish(),
            unused: 0,
            lists: [FlowList::EMPTY; 2],
            len: 0,
            evictions: 0,
        }
    }

    /// Returns the maximum number of flows.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of flows in the table.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of flows that new flows evicted from the full table.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns the value of a flow. Does not change the order of use.
    #[inline]
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(self.hash(key), key)?;
        Some(&self.entries[self.index[at].entry as usize].value)
    }

    /// Returns the value of a flow and marks the flow as most recently used.
    #[inline]
    pub fn use_flow(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(self.hash(key), key)?;
        let entry = self.index[at].entry;
        self.mark_newest(entry);
        Some(&mut self.entries[entry as usize].value)
    }

    /// Returns the value of a flow and whether the flow is new. `make` gives the first value of a
    /// new flow. Marks the flow as most recently used.
    #[inline]
    pub fn use_or_insert(&mut self, key: K, make: impl FnOnce() -> V) -> (&mut V, bool) {
        let hash = self.hash(&key);
        let (entry, is_new) = match self.find(hash, &key) {
            Some(at) => {
                let entry = self.index[at].entry;
                self.mark_newest(entry);
                (entry, false)
            }
            None => (self.insert_new(hash, key, make()).0, true),
        };
        (&mut self.entries[entry as usize].value, is_new)
    }

    /// Inserts a flow or replaces its value, and marks the flow as most recently used. Returns the
    /// evicted flow.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let hash = self.hash(&key);
        if let Some(at) = self.find(hash, &key) {
            let entry = self.index[at].entry;
            self.mark_newest(entry);
            self.entries[entry as usize].value = value;
            return None;
        }
        self.insert_new(hash, key, value).1
    }

    /// Protects a flow from eviction by flows without protection.
    pub fn protect(&mut self, key: &K) {
        let Some(at) = self.find(self.hash(key), key) else {
            return;
        };
        let entry = self.index[at].entry;
        if self.entries[entry as usize].is_protected {
            return;
        }
        self.move_to_newest(entry, true);
        let most = (self.capacity() - self.capacity() / 8) as u32;
        let protected = self.lists[1];
        if protected.len > most {
            self.move_to_newest(protected.oldest, false);
        }
    }

    /// Removes a flow.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(self.hash(key), key)?;
        let entry = self.index[at].entry;
        self.remove_from_index(at);
        self.unlink(entry);
        let freed = &mut self.entries[entry as usize];
        freed.in_use = false;
        freed.older = self.unused;
        self.unused = entry;
        self.len -= 1;
        Some(self.entries[entry as usize].value)
    }

    /// Returns the flow that a new flow evicts from a full table: the least recently used one, if
    /// possible without protection.
    pub fn oldest(&self) -> Option<(&K, &V)> {
        let mut oldest = self.lists.iter().map(|list| list.oldest as usize);
        let entry = oldest.find_map(|oldest| self.entries.get(oldest))?;
        Some((&entry.key, &entry.value))
    }

    /// Returns the flow in slot `slot` of `0..capacity`, if any. A flow keeps its slot, so a reader
    /// can pause between packets and continue there.
    pub fn flow_in_slot(&self, slot: usize) -> Option<(&K, &V)> {
        let entry = self.entries.get(slot).filter(|entry| entry.in_use)?;
        Some((&entry.key, &entry.value))
    }

    /// Returns all flows, unordered.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        (0..self.capacity()).filter_map(|slot| self.flow_in_slot(slot))
    }

    #[inline]
    fn hash(&self, key: &K) -> u32 {
        let mut hasher = FoldingHasher(self.seed);
        key.hash(&mut hasher);
        (hasher.finish() >> 32) as u32
    }

    /// Finds the flow's slot in the index.
    #[inline]
    fn find(&self, hash: u32, key: &K) -> Option<usize> {
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        // The index is at most half full, so an empty slot ends every search.
        loop {
            let slot = self.index[at];
            if slot.entry == NONE {
                return None;
            }
            if slot.hash == hash && self.entries[slot.entry as usize].key == *key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Inserts a flow that is not in the table. Returns the new entry and the evicted flow.
    fn insert_new(&mut self, hash: u32, key: K, value: V) -> (u32, Option<(K, V)>) {
        let mut evicted = None;
        if self.unused == NONE
            && let Some((&oldest, _)) = self.oldest()
        {
            evicted = self.remove(&oldest).map(|value| (oldest, value));
            self.evictions += 1;
        }
        let entry = self.unused;
        let free = &mut self.entries[entry as usize];
        self.unused = free.older;
        *free = FlowEntry {
            key,
            value,
            in_use: true,
            is_protected: false,
            newer: NONE,
            older: NONE,
        };
        self.link_newest(entry);
        self.len += 1;
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        while self.index[at].entry != NONE {
            at = (at + 1) & mask;
        }
        self.index[at] = IndexSlot { hash, entry };
        (entry, evicted)
    }

    /// Empties a slot of the index. Moves later slots forward, so that no search ends too early
    /// (Knuth, TAOCP 3, 6.4, algorithm R).
    fn remove_from_index(&mut self, mut hole: usize) {
        let mask = self.index.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.index[at];
            if slot.entry == NONE {
                break;
            }
            let home = slot.hash as usize & mask;
            // The entry may move into the hole, unless the hole is before the entry's home slot.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.index[hole] = slot;
                hole = at;
            }
        }
        self.index[hole].entry = NONE;
    }

    #[inline]
    fn mark_newest(&mut self, entry: u32) {
        let is_protected = self.entries[entry as usize].is_protected;
        if self.lists[usize::from(is_protected)].newest != entry {
            self.move_to_newest(entry, is_protected);
        }
    }

    /// Moves an entry to the front of the list of protected entries, or of the others.
    fn move_to_newest(&mut self, entry: u32, is_protected: bool) {
        self.unlink(entry);
        self.entries[entry as usize].is_protected = is_protected;
        self.link_newest(entry);
    }

    fn unlink(&mut self, entry: u32) {
        let FlowEntry {
            newer,
            older,
            is_protected,
            ..
        } = self.entries[entry as usize];
        let list = &mut self.lists[usize::from(is_protected)];
        list.len -= 1;
        match self.entries.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => list.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => list.oldest = newer,
        }
    }

    fn link_newest(&mut self, entry: u32) {
        let linked = &mut self.entries[entry as usize];
        let list = &mut self.lists[usize::from(linked.is_protected)];
        let before = std::mem::replace(&mut list.newest, entry);
        list.len += 1;
        linked.newer = NONE;
        linked.older = before;
        match self.entries.get_mut(before as usize) {
            Some(before) => before.newer = entry,
            None => list.oldest = entry,
        }
    }
}

/// Hashes eight bytes at a time. A step is a wide multiplication, whose two halves are then folded
/// (the step of wyhash).
struct FoldingHasher(u64);

impl FoldingHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        // 2^64 divided by the golden ratio, as in Fibonacci hashing.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for FoldingHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_ne_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_ne_bytes(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference: flows from the least to the most recently used, without and with protection.
    #[derive(Default)]
    struct Model {
        lists: [Vec<(u64, u32)>; 2],
        evictions: u64,
    }

    impl Model {
        fn find(&self, key: u64) -> Option<(usize, usize)> {
            let find = |list: &Vec<(u64, u32)>| list.iter().position(|flow| flow.0 == key);
            (0..2).find_map(|list| Some((list, find(&self.lists[list])?)))
        }

        /// Uses a flow. Returns its value and sets the new one.
        fn touch(&mut self, key: u64, change: impl FnOnce(u32) -> u32) -> Option<u32> {
            let (list, at) = self.find(key)?;
            let (_, value) = self.lists[list].remove(at);
            self.lists[list].push((key, change(value)));
            Some(value)
        }

        fn put(&mut self, capacity: usize, key: u64, value: u32) -> Option<(u64, u32)> {
            let full = self.lists[0].len() + self.lists[1].len() == capacity;
            let list = usize::from(self.lists[0].is_empty());
            let evicted = full.then(|| self.lists[list].remove(0));
            self.evictions += u64::from(full);
            self.lists[0].push((key, value));
            evicted
        }

        fn protect(&mut self, capacity: usize, key: u64) {
            if let Some((0, at)) = self.find(key) {
                let flow = self.lists[0].remove(at);
                self.lists[1].push(flow);
                if self.lists[1].len() > capacity - capacity / 8 {
                    let demoted = self.lists[1].remove(0);
                    self.lists[0].push(demoted);
                }
            }
        }

        fn all(&self) -> Vec<(u64, u32)> {
            self.lists.concat()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        UseOrInsert(u64),
        Use(u64),
        Get(u64),
        Protect(u64),
        Remove(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0_u64..40;
        prop_oneof![
            3 => key.clone().prop_map(Step::Insert),
            4 => key.clone().prop_map(Step::UseOrInsert),
            3 => key.clone().prop_map(Step::Use),
            1 => key.clone().prop_map(Step::Get),
            2 => key.clone().prop_map(Step::Protect),
            2 => key.prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn table_equals_a_bounded_map_in_order_of_use(
            capacity in 1_usize..33,
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let mut table = FlowTable::<u64, u32>::new(capacity);
            // Many keys share one hash, so each search passes other flows.
            table.seed &= 1;
            let mut model = Model::default();
            for (number, step) in steps.into_iter().enumerate() {
                let value = number as u32;
                match step {
                    Step::Insert(key) => {
                        let expected = match model.touch(key, |_| value) {
                            Some(_) => None,
                            None => model.put(capacity, key, value),
                        };
                        prop_assert_eq!(table.insert(key, value), expected);
                    }
                    Step::UseOrInsert(key) => {
                        let found = model.touch(key, |old| old + 1);
                        if found.is_none() {
                            model.put(capacity, key, value + 1);
                        }
                        let (held, is_new) = table.use_or_insert(key, || value);
                        prop_assert_eq!((*held, is_new), (found.unwrap_or(value), found.is_none()));
                        *held += 1;
                    }
                    Step::Use(key) => {
                        let found = model.touch(key, |value| value);
                        prop_assert_eq!(table.use_flow(&key).copied(), found);
                    }
                    Step::Get(key) => {
                        let held = model.find(key).map(|(list, at)| model.lists[list][at].1);
                        prop_assert_eq!(table.get(&key).copied(), held);
                    }
                    Step::Protect(key) => {
                        table.protect(&key);
                        model.protect(capacity, key);
                    }
                    Step::Remove(key) => {
                        let found = model.find(key);
                        let removed = found.map(|(list, at)| model.lists[list].remove(at).1);
                        prop_assert_eq!(table.remove(&key), removed);
                    }
                }
                let oldest = table.oldest().map(|(key, value)| (*key, *value));
                prop_assert_eq!(oldest, model.all().first().copied());
                prop_assert_eq!(table.len(), model.all().len());
                prop_assert_eq!(table.evictions(), model.evictions);
            }
            let mut held: Vec<_> = table.iter().map(|(key, value)| (*key, *value)).collect();
            held.sort_unstable();
            let mut flows = model.all();
            flows.sort_unstable();
            prop_assert_eq!(held, flows);
        }
    }

    #[test]
    fn a_flow_keeps_its_slot() {
        let mut table = FlowTable::<u64, u32>::new(4);
        for key in 0..4 {
            table.insert(key, 0);
        }
        let slot = (0..4).find(|&slot| table.flow_in_slot(slot) == Some((&2, &0)));
        table.remove(&1);
        table.insert(9, 1);
        *table.use_flow(&2).unwrap() = 7;
        assert_eq!(table.flow_in_slot(slot.unwrap()), Some((&2, &7)));
        assert_eq!(table.flow_in_slot(4), None);
    }

    #[test]
    fn capacity_has_a_minimum_and_a_maximum() {
        assert_eq!(FlowTable::<u64, ()>::new(0).capacity(), 1);
        assert_eq!(FlowTable::<u64, ()>::new(usize::MAX).capacity(), MAX_FLOWS);
    }

    #[test]
    fn similar_keys_have_different_hashes() {
        let table = FlowTable::<[u64; 5], ()>::new(1);
        let mut seen = std::collections::HashSet::new();
        for byte in 0..40 {
            for value in 0..=255 {
                let mut key = [0; 5];
                key[byte / 8] = value << (byte % 8 * 8);
                seen.insert(table.hash(&key) & 0xffff);
            }
        }
        // 40 * 255 + 1 keys, placed at random in 65536 slots, fill about 9450 of them.
        assert!(seen.len() > 9000, "{} slots", seen.len());
    }
}
