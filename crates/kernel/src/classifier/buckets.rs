//! The table that a front door searches inline: an array of buckets of a few keys each. `struct
//! bucket4` and `struct bucket6` have the same layout.
//!
//! Programs read the table during writes. The writer stores an entry's key before the entry's
//! number. The number of a free entry is 0. A freed entry keeps its key. The writer reuses a freed
//! entry only after a grace period. Then no program is between the comparison of the old key and
//! the read of the number.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use myelin_packet::Family;

use super::keys::{Words, hash, key_len};
use crate::map::create_mapped;
use crate::mapped_array::MappedArray;
use crate::{Error, sys};

/// Number of buckets of each family, `BUCKETS`. With 10 000 IPv4 keys, one key in 300 finds its
/// bucket full.
pub(super) const BUCKETS: usize = 1 << 14;

/// Layout of a family's buckets, in 64-bit words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Name of the map.
    pub(super) name: &'static str,
    /// Number of keys in a bucket.
    pub(super) entries: usize,
    /// Number of words of a key.
    pub(super) key: usize,
    /// Number of words of a bucket.
    pub(super) words: usize,
}

impl Layout {
    pub(super) fn of(family: Family) -> Self {
        let (name, entries, words) = match family {
            Family::V4 => ("buckets4", 3, 8),
            Family::V6 => ("buckets6", 2, 16),
        };
        Self {
            name,
            entries,
            key: key_len(family) / 8,
            words,
        }
    }
}

/// One family's buckets.
#[derive(Debug)]
pub(super) struct Buckets {
    layout: Layout,
    family: Family,
    map: MapHandle,
    mapping: MappedArray,
    /// Bucket and index of each entry freed since the last grace period.
    freed: HashSet<(usize, usize)>,
}

impl Buckets {
    pub(super) fn new(family: Family) -> Result<Self, Error> {
        let layout = Layout::of(family);
        let (map, mapping) = create_mapped(layout.name, layout.words * 8, BUCKETS)?;
        Ok(Self {
            layout,
            family,
            map,
            mapping,
            freed: HashSet::new(),
        })
    }

    pub(super) fn map(&self) -> (&'static str, &MapHandle) {
        (self.layout.name, &self.map)
    }

    /// Returns whether a key has an entry.
    pub(super) fn contains(&self, key: &Words) -> bool {
        let bucket = self.bucket(key);
        self.find(bucket, key)
            .is_some_and(|entry| self.number(bucket, entry) != 0)
    }

    /// Looks up a key as a front door does. Returns the key's number, and the number of the
    /// bucket's keys in the hash table.
    #[cfg(test)]
    pub(super) fn look_up(&self, key: &Words) -> (Option<u32>, u32) {
        let bucket = self.bucket(key);
        let number = self
            .find(bucket, key)
            .map(|entry| self.number(bucket, entry));
        (number, self.number(bucket, self.layout.entries))
    }

    /// Sets the chain number of a key atomically. Returns false if the key's bucket is full.
    pub(super) fn put(&mut self, key: &Words, number: u32) -> bool {
        let bucket = self.bucket(key);
        if let Some(entry) = self.find(bucket, key) {
            self.freed.remove(&(bucket, entry));
            self.set_number(bucket, entry, number);
            return true;
        }
        let Some(entry) = self.find_free_entry(bucket) else {
            return false;
        };
        let at = bucket * self.layout.words + entry * self.layout.key;
        for (word, value) in self.mapping.words()[at..]
            .iter()
            .zip(&key[..self.layout.key])
        {
            word.store(*value, Ordering::Relaxed);
        }
        self.set_number(bucket, entry, number);
        true
    }

    /// Frees a key's entry. Returns false if the key has no entry.
    pub(super) fn remove(&mut self, key: &Words) -> bool {
        let bucket = self.bucket(key);
        let Some(entry) = self
            .find(bucket, key)
            .filter(|entry| self.number(bucket, *entry) != 0)
        else {
            return false;
        };
        self.set_number(bucket, entry, 0);
        self.freed.insert((bucket, entry));
        true
    }

    /// Sets the number of keys of this key's bucket that are in the hash table.
    pub(super) fn set_overflow_count(&self, key: &Words, count: u32) {
        let entries = self.layout.entries;
        self.set_half(self.bucket(key), entries, count);
    }

    /// Returns the bucket of a key. The programs compute the same bucket.
    pub(super) fn bucket(&self, key: &Words) -> usize {
        hash(self.family, key) as usize % BUCKETS
    }

    /// Returns the first entry with the key's bits, free or not. Programs use the same entry.
    fn find(&self, bucket: usize, key: &Words) -> Option<usize> {
        let words = self.mapping.words();
        (0..self.layout.entries).find(|entry| {
            let at = bucket * self.layout.words + entry * self.layout.key;
            words[at..]
                .iter()
                .zip(&key[..self.layout.key])
                .all(|(word, value)| word.load(Ordering::Relaxed) == *value)
        })
    }

    /// Returns an entry that no program can be reading for another key.
    fn find_free_entry(&mut self, bucket: usize) -> Option<usize> {
        let free: Vec<usize> = (0..self.layout.entries)
            .filter(|entry| self.number(bucket, *entry) == 0)
            .collect();
        let fresh = free
            .iter()
            .find(|entry| !self.freed.contains(&(bucket, **entry)));
        if fresh.is_none() && !free.is_empty() && sys::wait_for_grace_period().is_ok() {
            self.freed.clear();
            return free.first().copied();
        }
        fresh.copied()
    }

    fn number(&self, bucket: usize, entry: usize) -> u32 {
        let halves: [u32; 2] = bytemuck::cast(
            self.mapping.words()[self.number_word(bucket, entry)].load(Ordering::Relaxed),
        );
        halves[entry % 2]
    }

    fn set_number(&self, bucket: usize, entry: usize, number: u32) {
        self.set_half(bucket, entry, number);
    }

    /// Returns the word with the number of an entry. The position after the last entry holds the
    /// count of the bucket's keys in the hash table.
    fn number_word(&self, bucket: usize, entry: usize) -> usize {
        bucket * self.layout.words + self.layout.entries * self.layout.key + entry / 2
    }

    /// Writes half a word. This is safe because there is one writer, and readers read halves.
    fn set_half(&self, bucket: usize, entry: usize, value: u32) {
        let word = &self.mapping.words()[self.number_word(bucket, entry)];
        let mut halves: [u32; 2] = bytemuck::cast(word.load(Ordering::Relaxed));
        halves[entry % 2] = value;
        word.store(bytemuck::cast(halves), Ordering::Release);
    }
}
