//! The tables that all ports of a plane share.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use myelin_packet::Family;

use super::keys::{PRESENCE_BITS, Words, key_len, presence_bit};
use crate::map::{MMAPABLE, create};
use crate::mapping::Mapping;
use crate::{Error, lock};

/// Hash tables from key to chain, and the bits that tell that a key is absent.
#[derive(Debug)]
pub(crate) struct Tables {
    matches: [MapHandle; 2],
    presence: MapHandle,
    bits: Mapping,
    /// Keys behind each bit that is set.
    keys: Mutex<HashMap<usize, u32>>,
}

impl Tables {
    /// Tables for `entries` keys of each family.
    pub(crate) fn new(entries: u32) -> Result<Self, Error> {
        let table = |name, family| {
            create(
                name,
                MapType::Hash,
                key_len(family),
                size_of::<u32>(),
                entries,
                0,
            )
        };
        let bytes = PRESENCE_BITS / 8;
        let presence = create(
            "presence",
            MapType::Array,
            size_of::<u32>(),
            bytes,
            1,
            MMAPABLE,
        )?;
        let bits = Mapping::new(presence.as_fd(), "presence", bytes)?;
        Ok(Self {
            matches: [
                table("matches4", Family::V4)?,
                table("matches6", Family::V6)?,
            ],
            presence,
            bits,
            keys: Mutex::default(),
        })
    }

    /// The maps by the names that the programs give them.
    pub(crate) fn maps(&self) -> [(&'static str, &MapHandle); 3] {
        [
            ("matches4", &self.matches[0]),
            ("matches6", &self.matches[1]),
            ("presence", &self.presence),
        ]
    }

    fn table(&self, family: Family) -> (&'static str, &MapHandle) {
        match family {
            Family::V4 => ("matches4", &self.matches[0]),
            Family::V6 => ("matches6", &self.matches[1]),
        }
    }

    /// Adds a key, or changes its value, for readers in one step.
    pub(super) fn put(
        &self,
        family: Family,
        key: &Words,
        number: u32,
        is_new: bool,
    ) -> Result<(), Error> {
        let (name, table) = self.table(family);
        let bytes = &bytemuck::bytes_of(key)[..key_len(family)];
        table
            .update(bytes, &number.to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| Error::map(name, "add a match to", &cause))?;
        if is_new {
            let bit = presence_bit(family, key);
            let mut keys = lock(&self.keys);
            *keys.entry(bit).or_default() += 1;
            self.bits.words()[bit / 64].fetch_or(1 << (bit % 64), Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn take_out(&self, family: Family, key: &Words) -> Result<(), Error> {
        let (name, table) = self.table(family);
        let bytes = &bytemuck::bytes_of(key)[..key_len(family)];
        table
            .delete(bytes)
            .map_err(|cause| Error::map(name, "remove a match from", &cause))?;
        let bit = presence_bit(family, key);
        let mut keys = lock(&self.keys);
        if let Some(count) = keys.get_mut(&bit) {
            *count -= 1;
            if *count == 0 {
                keys.remove(&bit);
                self.bits.words()[bit / 64].fetch_and(!(1 << (bit % 64)), Ordering::Release);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use myelin_packet::classifier::Key;

    use super::super::keys::key_words;
    use super::*;

    #[test]
    fn a_bit_is_set_exactly_while_a_key_stands_behind_it() {
        if !crate::sys::is_root() {
            println!("SKIP: needs root to make eBPF maps");
            return;
        }
        let family = Family::V4;
        let key = |i: u32| {
            let mut source = [0; 16];
            source[..4].copy_from_slice(&i.to_be_bytes());
            key_words(
                family,
                &Key {
                    source,
                    ..Key::default()
                },
                3,
                9,
            )
        };
        // Among some thousand keys two share one of the 2^20 bits.
        let mut seen = HashMap::new();
        let (one, other) = (0..)
            .find_map(|i| {
                seen.insert(presence_bit(family, &key(i)), i)
                    .map(|earlier| (key(earlier), key(i)))
            })
            .unwrap();
        let tables = Tables::new(16).unwrap();
        let bit = presence_bit(family, &one);
        let is_set =
            || tables.bits.words()[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1;
        assert!(!is_set());
        for key in [&one, &other] {
            tables.put(family, key, 1, true).unwrap();
            tables.put(family, key, 2, false).unwrap();
            assert!(is_set());
        }
        tables.take_out(family, &one).unwrap();
        assert!(is_set(), "the other key cannot be found any more");
        tables.take_out(family, &other).unwrap();
        assert!(!is_set());
        assert!(tables.take_out(family, &other).is_err());
    }
}
