//! The tables that all ports of a plane share.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use libbpf_rs::{MapCore, MapHandle, MapType};
use myelin_packet::Family;

use super::buckets::Buckets;
use super::fragments::FragmentMaps;
use super::keys::{Words, key_len};
use crate::map::{NamedMap, create, fds, put};
use crate::{Error, lock};

/// Maps keys to chains, for both families.
#[derive(Debug)]
pub(crate) struct ClassifierTables {
    families: [Mutex<FamilyTable>; 2],
    /// The maps by their names in the programs.
    maps: [NamedMap; 6],
    fragments: FragmentMaps,
}

/// The keys of one family. The hash table `matches` holds the keys whose bucket is full.
#[derive(Debug)]
struct FamilyTable {
    family: Family,
    buckets: Buckets,
    name: &'static str,
    matches: MapHandle,
    /// The bucket of each key in the hash table `matches`.
    overflow: HashMap<Words, usize>,
    keys: u32,
    capacity: u32,
}

impl ClassifierTables {
    /// Creates tables for `capacity` keys of each family.
    pub(crate) fn new(capacity: u32) -> Result<Self, Error> {
        let v4 = FamilyTable::new(Family::V4, capacity)?;
        let v6 = FamilyTable::new(Family::V6, capacity)?;
        let fragments = FragmentMaps::new(capacity)?;
        let [rules, datagrams] = fragments.named();
        let share = |(name, map): (&'static str, &MapHandle)| {
            let map = MapHandle::try_from(map).map_err(|cause| Error::map(name, "share", &cause));
            map.map(|map| (name, map))
        };
        let maps = [
            share(v4.buckets.map())?,
            share(v6.buckets.map())?,
            share((v4.name, &v4.matches))?,
            share((v6.name, &v6.matches))?,
            share(rules)?,
            share(datagrams)?,
        ];
        Ok(Self {
            families: [Mutex::new(v4), Mutex::new(v6)],
            maps,
            fragments,
        })
    }

    /// Returns the maps by their names in the programs.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        fds(&self.maps)
    }

    /// Returns the tables for fragments.
    pub(super) fn fragments(&self) -> &FragmentMaps {
        &self.fragments
    }

    /// Adds a key or changes its value, atomically for programs.
    pub(super) fn put(&self, family: Family, key: &Words, number: u32) -> Result<(), Error> {
        lock(&self.families[family as usize]).put(key, number)
    }

    pub(super) fn remove(&self, family: Family, key: &Words) -> Result<(), Error> {
        lock(&self.families[family as usize]).remove(key)
    }
}

impl FamilyTable {
    fn new(family: Family, capacity: u32) -> Result<Self, Error> {
        let name = match family {
            Family::V4 => "matches4",
            Family::V6 => "matches6",
        };
        Ok(Self {
            family,
            buckets: Buckets::new(family)?,
            name,
            matches: create(
                name,
                MapType::Hash,
                key_len(family),
                size_of::<u32>(),
                capacity,
                // Few keys overflow their bucket, so allocate memory per inserted key.
                NO_PREALLOCATION,
            )?,
            overflow: HashMap::new(),
            keys: 0,
            capacity,
        })
    }

    fn put(&mut self, key: &Words, number: u32) -> Result<(), Error> {
        if self.overflow.contains_key(key) {
            return self.put_overflow(key, number);
        }
        let is_new = !self.buckets.contains(key);
        if is_new && self.keys == self.capacity {
            return Err(Error::Map {
                map: self.name,
                action: "add a match to",
                cause: io::Error::from_raw_os_error(libc::E2BIG),
            });
        }
        if !self.buckets.put(key, number) {
            self.put_overflow(key, number)?;
            self.overflow.insert(*key, self.buckets.bucket(key));
            self.write_overflow_count(key);
        }
        self.keys += u32::from(is_new);
        Ok(())
    }

    fn remove(&mut self, key: &Words) -> Result<(), Error> {
        if !self.buckets.remove(key) {
            let bytes = &bytemuck::bytes_of(key)[..key_len(self.family)];
            self.matches
                .delete(bytes)
                .map_err(|cause| Error::map(self.name, "remove a match from", &cause))?;
            self.overflow.remove(key);
            self.write_overflow_count(key);
        }
        self.keys -= 1;
        Ok(())
    }

    fn put_overflow(&self, key: &Words, number: u32) -> Result<(), Error> {
        let bytes = &bytemuck::bytes_of(key)[..key_len(self.family)];
        let action = (self.name, "add a match to");
        put(&self.matches, action, bytes, &number.to_ne_bytes())
    }

    /// Counts the keys in `matches` that belong to the bucket of `key`. Writes the count into that
    /// bucket.
    fn write_overflow_count(&self, key: &Words) {
        let bucket = self.buckets.bucket(key);
        let count = self.overflow.values().filter(|at| **at == bucket).count();
        self.buckets.set_overflow_count(key, count as u32);
    }
}

const NO_PREALLOCATION: u32 = libbpf_sys::BPF_F_NO_PREALLOC;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use myelin_packet::classifier::MatchKey;

    use super::super::keys::key_words;
    use libbpf_rs::MapFlags;

    use super::*;

    fn key(i: u32) -> Words {
        let mut source = [0; 16];
        source[..4].copy_from_slice(&i.to_be_bytes());
        let key = MatchKey {
            source,
            ..MatchKey::default()
        };
        key_words(Family::V4, &key, 3, 9)
    }

    /// Looks up a key as a front door does.
    fn look_up(table: &FamilyTable, key: &Words) -> Option<u32> {
        match table.buckets.look_up(key) {
            (Some(0), _) | (None, 0) => None,
            (Some(number), _) => Some(number),
            (None, _) => {
                let bytes = &bytemuck::bytes_of(key)[..key_len(table.family)];
                let value = table.matches.lookup(bytes, MapFlags::ANY).unwrap();
                value.map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap()))
            }
        }
    }

    #[test]
    fn keys_beyond_a_full_bucket_are_in_the_hash_table() {
        if !myelin_linux::capability::is_root() {
            println!("SKIP: needs root to make eBPF maps");
            return;
        }
        let mut table = FamilyTable::new(Family::V4, 6).unwrap();
        let bucket = table.buckets.bucket(&key(0));
        let same: Vec<Words> = (0..)
            .map(key)
            .filter(|key| table.buckets.bucket(key) == bucket)
            .take(7)
            .collect();
        for (i, key) in same.iter().enumerate().take(6) {
            table.put(key, 1 + i as u32).unwrap();
            table.put(key, 10 + i as u32).unwrap();
        }
        assert_eq!((table.keys, table.overflow.len()), (6, 3));
        for (i, key) in same.iter().enumerate().take(6) {
            assert_eq!(look_up(&table, key), Some(10 + i as u32));
        }
        let error = table.put(&same[6], 9).unwrap_err().to_string();
        assert!(error.contains("matches4"), "{error}");
        assert_eq!(look_up(&table, &same[6]), None);

        // Remove a key of the bucket and a key of the hash table. Another key then takes the
        // bucket's free entry.
        table.remove(&same[1]).unwrap();
        table.remove(&same[4]).unwrap();
        assert_eq!(
            same.iter()
                .map(|key| look_up(&table, key))
                .collect::<Vec<_>>(),
            [Some(10), None, Some(12), Some(13), None, Some(15), None]
        );
        table.put(&same[6], 9).unwrap();
        table.put(&same[1], 8).unwrap();
        assert_eq!(
            same.iter()
                .map(|key| look_up(&table, key))
                .collect::<Vec<_>>(),
            [
                Some(10),
                Some(8),
                Some(12),
                Some(13),
                None,
                Some(15),
                Some(9)
            ]
        );
        for i in [0, 1, 2, 3, 5, 6] {
            table.remove(&same[i]).unwrap();
        }
        assert_eq!((table.keys, table.overflow.len()), (0, 0));
        assert!(table.remove(&same[0]).is_err());
        assert!(same.iter().all(|key| look_up(&table, key).is_none()));
    }

    #[test]
    fn fewer_than_100_of_10000_keys_overflow_their_bucket() {
        if !myelin_linux::capability::is_root() {
            println!("SKIP: needs root to make eBPF maps");
            return;
        }
        let mut table = FamilyTable::new(Family::V4, 16_384).unwrap();
        for i in 0..10_000 {
            table.put(&key(i), i + 1).unwrap();
        }
        assert!(table.overflow.len() < 100, "{}", table.overflow.len());
        let wrong: HashSet<u32> = (0..10_001)
            .filter(|i| look_up(&table, &key(*i)) != (*i < 10_000).then_some(i + 1))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
