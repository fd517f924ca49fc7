//! A bounded table of flows: what a stateful function remembers.
//!
//! All memory is taken, and touched, when the table is made; no operation allocates. A flow that
//! comes when the table is full puts out the one that was used longest ago, and this is counted.
//!
//! The entries stay where they are from insertion to removal, linked from the newest to the oldest
//! by use; beside them an open-addressing index with linear probing, at most half full. The hash is
//! seeded at random, so that nobody outside can choose flows that collide.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// Most flows of one table: with the largest entries in use some 200 MB.
pub const MAX_FLOWS: usize = 1 << 20;

/// No entry.
const NONE: u32 = u32::MAX;

/// At most `capacity` flows, with what is known of each.
#[derive(Clone, Debug)]
pub struct FlowTable<K, V> {
    entries: Box<[Entry<K, V>]>,
    /// A power of two, at least twice the capacity.
    index: Box<[Place]>,
    seed: u64,
    /// Head of the unused entries, linked by `older`.
    unused: u32,
    newest: u32,
    oldest: u32,
    len: u32,
    evictions: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    in_use: bool,
    newer: u32,
    older: u32,
}

/// An element of the index. Its hash spares most looks at entries of other flows.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    entry: u32,
}

impl<K: Copy + Default + Eq + Hash, V: Copy + Default> FlowTable<K, V> {
    /// An empty table for that many flows, at least one and at most [`MAX_FLOWS`].
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, MAX_FLOWS);
        let entries = (0..capacity as u32)
            .map(|number| Entry {
                key: K::default(),
                value: V::default(),
                in_use: false,
                newer: NONE,
                older: if number as usize + 1 < capacity {
                    number + 1
                } else {
                    NONE
                },
            })
            .collect();
        let empty = Place {
            hash: 0,
            entry: NONE,
        };
        Self {
            entries,
            index: vec![empty; (capacity * 2).next_power_of_two()].into(),
            // The standard library's hasher starts from the system's random numbers.
            seed: RandomState::new().build_hasher().finish(),
            unused: 0,
            newest: NONE,
            oldest: NONE,
            len: 0,
            evictions: 0,
        }
    }

    /// Flows it can hold.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Flows it holds.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Flows that were put out because others came when the table was full.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// What is known of a flow. It does not get newer by that.
    #[inline]
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(self.hash(key), key)?;
        Some(&self.entries[self.index[at].entry as usize].value)
    }

    /// What is known of a flow, to be changed; the flow becomes the newest.
    #[inline]
    pub fn use_flow(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(self.hash(key), key)?;
        let entry = self.index[at].entry;
        self.renew(entry);
        Some(&mut self.entries[entry as usize].value)
    }

    /// The value of a flow and whether it is new; a new flow starts with what `make` gives. The
    /// flow becomes the newest.
    #[inline]
    pub fn use_or_insert(&mut self, key: K, make: impl FnOnce() -> V) -> (&mut V, bool) {
        let hash = self.hash(&key);
        let (entry, is_new) = match self.find(hash, &key) {
            Some(at) => {
                let entry = self.index[at].entry;
                self.renew(entry);
                (entry, false)
            }
            None => (self.insert_new(hash, key, make()).0, true),
        };
        (&mut self.entries[entry as usize].value, is_new)
    }

    /// Inserts a flow or replaces what is known of it; it becomes the newest. Gives the flow that
    /// was put out to make room.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let hash = self.hash(&key);
        if let Some(at) = self.find(hash, &key) {
            let entry = self.index[at].entry;
            self.renew(entry);
            self.entries[entry as usize].value = value;
            return None;
        }
        self.insert_new(hash, key, value).1
    }

    /// Removes a flow.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(self.hash(key), key)?;
        let entry = self.index[at].entry;
        self.unindex(at);
        self.unlink(entry);
        let freed = &mut self.entries[entry as usize];
        freed.in_use = false;
        freed.older = self.unused;
        self.unused = entry;
        self.len -= 1;
        Some(self.entries[entry as usize].value)
    }

    /// The flow that was used longest ago.
    pub fn oldest(&self) -> Option<(&K, &V)> {
        let entry = self.entries.get(self.oldest as usize)?;
        Some((&entry.key, &entry.value))
    }

    /// The flow in place `place` of `0..capacity`, if there is one. A flow keeps its place as long
    /// as the table holds it, so a reader may come back between packets and go on where it was.
    pub fn at(&self, place: usize) -> Option<(&K, &V)> {
        let entry = self.entries.get(place).filter(|entry| entry.in_use)?;
        Some((&entry.key, &entry.value))
    }

    /// All flows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        (0..self.capacity()).filter_map(|place| self.at(place))
    }

    #[inline]
    fn hash(&self, key: &K) -> u32 {
        let mut hasher = Folded(self.seed);
        key.hash(&mut hasher);
        (hasher.finish() >> 32) as u32
    }

    /// Where in the index a flow is.
    #[inline]
    fn find(&self, hash: u32, key: &K) -> Option<usize> {
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        // At most half full: an empty place ends every search.
        loop {
            let place = self.index[at];
            if place.entry == NONE {
                return None;
            }
            if place.hash == hash && self.entries[place.entry as usize].key == *key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Inserts a flow that is not there; its entry, and the flow that was put out.
    fn insert_new(&mut self, hash: u32, key: K, value: V) -> (u32, Option<(K, V)>) {
        let mut put_out = None;
        if self.unused == NONE
            && let Some((&oldest, _)) = self.oldest()
        {
            put_out = self.remove(&oldest).map(|value| (oldest, value));
            self.evictions += 1;
        }
        let entry = self.unused;
        let free = &mut self.entries[entry as usize];
        self.unused = free.older;
        *free = Entry {
            key,
            value,
            in_use: true,
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
        self.index[at] = Place { hash, entry };
        (entry, put_out)
    }

    /// Empties a place of the index. Those behind it move up, so that no search ends too early
    /// (Knuth, TAOCP 3, 6.4, algorithm R).
    fn unindex(&mut self, mut hole: usize) {
        let mask = self.index.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let place = self.index[at];
            if place.entry == NONE {
                break;
            }
            let home = place.hash as usize & mask;
            // It may move into the hole unless it would then stand before its home.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.index[hole] = place;
                hole = at;
            }
        }
        self.index[hole].entry = NONE;
    }

    #[inline]
    fn renew(&mut self, entry: u32) {
        if self.newest != entry {
            self.unlink(entry);
            self.link_newest(entry);
        }
    }

    fn unlink(&mut self, entry: u32) {
        let Entry { newer, older, .. } = self.entries[entry as usize];
        match self.entries.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, entry: u32) {
        let before = std::mem::replace(&mut self.newest, entry);
        let linked = &mut self.entries[entry as usize];
        linked.newer = NONE;
        linked.older = before;
        match self.entries.get_mut(before as usize) {
            Some(before) => before.newer = entry,
            None => self.oldest = entry,
        }
    }
}

/// Eight bytes at a time, each mixed by one wide multiplication whose halves are folded together
/// (the step of wyhash and its kin).
struct Folded(u64);

impl Folded {
    #[inline]
    fn mix(&mut self, word: u64) {
        // 2^64 divided by the golden ratio, as in Fibonacci hashing.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Folded {
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

    /// Oldest first.
    #[derive(Default)]
    struct Model {
        flows: Vec<(u64, u32)>,
        evictions: u64,
    }

    impl Model {
        fn take(&mut self, key: u64) -> Option<u32> {
            let at = self.flows.iter().position(|flow| flow.0 == key)?;
            Some(self.flows.remove(at).1)
        }

        fn put(&mut self, capacity: usize, key: u64, value: u32) -> Option<(u64, u32)> {
            let full = self.flows.len() == capacity;
            let put_out = full.then(|| self.flows.remove(0));
            self.evictions += u64::from(full);
            self.flows.push((key, value));
            put_out
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        UseOrInsert(u64),
        Use(u64),
        Get(u64),
        Remove(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0_u64..40;
        prop_oneof![
            3 => key.clone().prop_map(Step::Insert),
            4 => key.clone().prop_map(Step::UseOrInsert),
            3 => key.clone().prop_map(Step::Use),
            1 => key.clone().prop_map(Step::Get),
            2 => key.prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_map_in_the_order_of_use(
            capacity in 1_usize..33,
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let mut table = FlowTable::<u64, u32>::new(capacity);
            // One hash for many keys: every search goes past others.
            table.seed &= 1;
            let mut model = Model::default();
            for (number, step) in steps.into_iter().enumerate() {
                let value = number as u32;
                match step {
                    Step::Insert(key) => {
                        let expected = match model.take(key) {
                            Some(_) => {
                                model.flows.push((key, value));
                                None
                            }
                            None => model.put(capacity, key, value),
                        };
                        prop_assert_eq!(table.insert(key, value), expected);
                    }
                    Step::UseOrInsert(key) => {
                        let found = model.take(key);
                        match found {
                            Some(old) => model.flows.push((key, old + 1)),
                            None => drop(model.put(capacity, key, value + 1)),
                        }
                        let (held, is_new) = table.use_or_insert(key, || value);
                        prop_assert_eq!((*held, is_new), (found.unwrap_or(value), found.is_none()));
                        *held += 1;
                    }
                    Step::Use(key) => {
                        let found = model.take(key);
                        model.flows.extend(found.map(|value| (key, value)));
                        prop_assert_eq!(table.use_flow(&key).copied(), found);
                    }
                    Step::Get(key) => {
                        let held = model.flows.iter().find(|flow| flow.0 == key);
                        prop_assert_eq!(table.get(&key).copied(), held.map(|flow| flow.1));
                    }
                    Step::Remove(key) => prop_assert_eq!(table.remove(&key), model.take(key)),
                }
                let oldest = table.oldest().map(|(key, value)| (*key, *value));
                prop_assert_eq!(oldest, model.flows.first().copied());
                prop_assert_eq!(table.len(), model.flows.len());
                prop_assert_eq!(table.evictions(), model.evictions);
            }
            let mut held: Vec<_> = table.iter().map(|(key, value)| (*key, *value)).collect();
            held.sort_unstable();
            model.flows.sort_unstable();
            prop_assert_eq!(held, model.flows);
        }
    }

    #[test]
    fn a_flow_keeps_its_place() {
        let mut table = FlowTable::<u64, u32>::new(4);
        for key in 0..4 {
            table.insert(key, 0);
        }
        let place = (0..4).find(|&place| table.at(place) == Some((&2, &0)));
        table.remove(&1);
        table.insert(9, 1);
        *table.use_flow(&2).unwrap() = 7;
        assert_eq!(table.at(place.unwrap()), Some((&2, &7)));
        assert_eq!(table.at(4), None);
    }

    #[test]
    fn a_table_has_room_for_one_flow_at_least_and_not_without_end() {
        assert_eq!(FlowTable::<u64, ()>::new(0).capacity(), 1);
        assert_eq!(FlowTable::<u64, ()>::new(usize::MAX).capacity(), MAX_FLOWS);
    }

    #[test]
    fn keys_that_differ_little_spread() {
        let table = FlowTable::<[u64; 5], ()>::new(1);
        let mut seen = std::collections::HashSet::new();
        for byte in 0..40 {
            for value in 0..=255 {
                let mut key = [0; 5];
                key[byte / 8] = value << (byte % 8 * 8);
                seen.insert(table.hash(&key) & 0xffff);
            }
        }
        // 40 * 255 + 1 keys thrown at random into 65536 places fill 9450 of them or so.
        assert!(seen.len() > 9000, "{} places", seen.len());
    }
}
