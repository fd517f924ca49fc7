//! The tables that all ports of a plane share.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use libbpf_rs::{MapCore, MapHandle, MapType};
use myelin_packet::Family;

use super::buckets::Buckets;
use super::keys::{Words, key_len};
use crate::map::{Named, create, fds, put};
use crate::{Error, lock};

/// From key to chain, for both families.
#[derive(Debug)]
pub(crate) struct Tables {
    families: [Mutex<Table>; 2],
    /// The maps by the names that the programs give them.
    maps: [Named; 4],
}

/// One family's keys: those in buckets, and those that found their bucket full.
#[derive(Debug)]
struct Table {
    family: Family,
    buckets: Buckets,
    name: &'static str,
    matches: MapHandle,
    /// Keys in `matches`, with their buckets.
    elsewhere: HashMap<Words, usize>,
    keys: u32,
    capacity: u32,
}

impl Tables {
    /// Tables for `capacity` keys of each family.
    pub(crate) fn new(capacity: u32) -> Result<Self, Error> {
        let four = Table::new(Family::V4, capacity)?;
        let six = Table::new(Family::V6, capacity)?;
        let again = |(name, map): (&'static str, &MapHandle)| {
            let map = MapHandle::try_from(map).map_err(|cause| Error::map(name, "share", &cause));
            map.map(|map| (name, map))
        };
        let maps = [
            again(four.buckets.map())?,
            again(six.buckets.map())?,
            again((four.name, &four.matches))?,
            again((six.name, &six.matches))?,
        ];
        Ok(Self {
            families: [Mutex::new(four), Mutex::new(six)],
            maps,
        })
    }

    /// The maps by the names that the programs give them.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        fds(&self.maps)
    }

    /// Adds a key, or changes its value, for readers in one step.
    pub(super) fn put(&self, family: Family, key: &Words, number: u32) -> Result<(), Error> {
        lock(&self.families[family as usize]).put(key, number)
    }

    pub(super) fn take_out(&self, family: Family, key: &Words) -> Result<(), Error> {
        lock(&self.families[family as usize]).take_out(key)
    }
}

impl Table {
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
                // Most stay in the buckets: memory only for those that are there.
                NO_PREALLOCATION,
            )?,
            elsewhere: HashMap::new(),
            keys: 0,
            capacity,
        })
    }

    fn put(&mut self, key: &Words, number: u32) -> Result<(), Error> {
        if self.elsewhere.contains_key(key) {
            return self.update(key, number);
        }
        let is_new = !self.buckets.holds(key);
        if is_new && self.keys == self.capacity {
            return Err(Error::Map {
                map: self.name,
                action: "add a match to",
                cause: io::Error::from_raw_os_error(libc::E2BIG),
            });
        }
        if !self.buckets.put(key, number) {
            self.update(key, number)?;
            self.elsewhere.insert(*key, self.buckets.bucket(key));
            self.tell_more(key);
        }
        self.keys += u32::from(is_new);
        Ok(())
    }

    fn take_out(&mut self, key: &Words) -> Result<(), Error> {
        if !self.buckets.take_out(key) {
            let bytes = &bytemuck::bytes_of(key)[..key_len(self.family)];
            self.matches
                .delete(bytes)
                .map_err(|cause| Error::map(self.name, "remove a match from", &cause))?;
            self.elsewhere.remove(key);
            self.tell_more(key);
        }
        self.keys -= 1;
        Ok(())
    }

    fn update(&self, key: &Words, number: u32) -> Result<(), Error> {
        let bytes = &bytemuck::bytes_of(key)[..key_len(self.family)];
        let action = (self.name, "add a match to");
        put(&self.matches, action, bytes, &number.to_ne_bytes())
    }

    /// Tells readers of the key's bucket how many of its keys are in `matches`.
    fn tell_more(&self, key: &Words) {
        let bucket = self.buckets.bucket(key);
        let more = self.elsewhere.values().filter(|at| **at == bucket).count();
        self.buckets.set_more(key, more as u32);
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

    /// What a front door finds, by the same steps.
    fn found(table: &Table, key: &Words) -> Option<u32> {
        match table.buckets.look(key) {
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
    fn keys_that_find_their_bucket_full_are_found_elsewhere() {
        if !myelin_linux::capability::is_root() {
            println!("SKIP: needs root to make eBPF maps");
            return;
        }
        let mut table = Table::new(Family::V4, 6).unwrap();
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
        assert_eq!((table.keys, table.elsewhere.len()), (6, 3));
        for (i, key) in same.iter().enumerate().take(6) {
            assert_eq!(found(&table, key), Some(10 + i as u32));
        }
        let error = table.put(&same[6], 9).unwrap_err().to_string();
        assert!(error.contains("matches4"), "{error}");
        assert_eq!(found(&table, &same[6]), None);

        // One of the bucket, then one from elsewhere; the free place in the bucket is another key's
        // afterwards.
        table.take_out(&same[1]).unwrap();
        table.take_out(&same[4]).unwrap();
        assert_eq!(
            same.iter()
                .map(|key| found(&table, key))
                .collect::<Vec<_>>(),
            [Some(10), None, Some(12), Some(13), None, Some(15), None]
        );
        table.put(&same[6], 9).unwrap();
        table.put(&same[1], 8).unwrap();
        assert_eq!(
            same.iter()
                .map(|key| found(&table, key))
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
            table.take_out(&same[i]).unwrap();
        }
        assert_eq!((table.keys, table.elsewhere.len()), (0, 0));
        assert!(table.take_out(&same[0]).is_err());
        assert!(same.iter().all(|key| found(&table, key).is_none()));
    }

    #[test]
    fn nearly_all_of_ten_thousand_keys_lie_in_their_buckets() {
        if !myelin_linux::capability::is_root() {
            println!("SKIP: needs root to make eBPF maps");
            return;
        }
        let mut table = Table::new(Family::V4, 16_384).unwrap();
        for i in 0..10_000 {
            table.put(&key(i), i + 1).unwrap();
        }
        assert!(table.elsewhere.len() < 100, "{}", table.elsewhere.len());
        let wrong: HashSet<u32> = (0..10_001)
            .filter(|i| found(&table, &key(*i)) != (*i < 10_000).then_some(i + 1))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
