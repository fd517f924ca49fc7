//! Maps the metadata of a packet to the segment that processes it.

use myelin_packet::Meta;

/// SPI, generation and position in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentKey(u64);

impl SegmentKey {
    #[inline]
    pub(crate) fn new(spi: u32, generation: u16, position: u8) -> Self {
        Self(u64::from(spi) << 24 | u64::from(generation) << 8 | u64::from(position))
    }

    #[inline]
    pub(crate) fn of(meta: &Meta) -> Self {
        Self::new(meta.spi, meta.generation, meta.position)
    }
}

/// An open-addressing hash table with linear probing, at most half full.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    /// The length is a power of two.
    slots: Box<[Option<(SegmentKey, u32)>]>,
    len: usize,
}

impl SegmentTable {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![None; 16].into(),
            len: 0,
        }
    }

    /// Returns the value of a key.
    #[inline]
    pub(crate) fn get(&self, key: SegmentKey) -> Option<u32> {
        let mut at = self.first_slot(key);
        // The table is at most half full, so an empty slot ends every search.
        while let Some((found, value)) = self.slots[at] {
            if found == key {
                return Some(value);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Inserts or replaces a value.
    pub(crate) fn insert(&mut self, key: SegmentKey, value: u32) {
        if self.get(key).is_none() {
            self.len += 1;
            if self.len * 2 > self.slots.len() {
                let larger = vec![None; self.slots.len() * 2].into();
                let old = std::mem::replace(&mut self.slots, larger);
                for &(key, value) in old.iter().flatten() {
                    self.write(key, value);
                }
            }
        }
        self.write(key, value);
    }

    /// Removes a key. Moves later entries into the free slot, so that no search ends early (Knuth,
    /// TAOCP 3, 6.4, algorithm R).
    pub(crate) fn remove(&mut self, key: SegmentKey) {
        let mask = self.slots.len() - 1;
        let mut hole = self.first_slot(key);
        loop {
            match self.slots[hole] {
                None => return,
                Some((found, _)) if found == key => break,
                Some(_) => hole = (hole + 1) & mask,
            }
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some((later, _)) = self.slots[at] else {
                break;
            };
            let wanted = self.first_slot(later);
            // The entry moves into the hole unless the hole lies before its first slot.
            if at.wrapping_sub(wanted) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = None;
        self.len -= 1;
    }

    fn write(&mut self, key: SegmentKey, value: u32) {
        let mut at = self.first_slot(key);
        while self.slots[at].is_some_and(|(found, _)| found != key) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Some((key, value));
    }

    /// Returns the first slot of a key, by Fibonacci hashing (Knuth, TAOCP 3, 6.4). Uses the high
    /// bits of the product, which are well mixed.
    #[inline]
    fn first_slot(&self, key: SegmentKey) -> usize {
        let product = key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (product >> (64 - self.slots.len().trailing_zeros())) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the table with a standard map. Few distinct keys cause replacements, removals
        /// and collisions.
        #[test]
        fn the_table_equals_a_standard_map(steps in prop::collection::vec((any::<bool>(), 0_u32..40, 0_u16..2, 0_u8..4), 1..400)) {
            let mut table = SegmentTable::new();
            let mut model = HashMap::new();
            for (number, (insert, spi, generation, position)) in steps.into_iter().enumerate() {
                let key = SegmentKey::new(spi, generation, position);
                if insert {
                    table.insert(key, number as u32);
                    model.insert(key.0, number as u32);
                } else {
                    table.remove(key);
                    model.remove(&key.0);
                }
                prop_assert_eq!(table.len, model.len());
                prop_assert!(table.len * 2 <= table.slots.len());
            }
            for spi in 0..40 {
                for generation in 0..2 {
                    for position in 0..4 {
                        let key = SegmentKey::new(spi, generation, position);
                        prop_assert_eq!(table.get(key), model.get(&key.0).copied());
                    }
                }
            }
        }
    }

    #[test]
    fn keys_differ_in_spi_generation_and_position() {
        let meta = Meta {
            spi: 0xff_ffff,
            generation: 0xffff,
            position: 255,
            flags: 7,
            ..Meta::default()
        };
        assert_eq!(
            SegmentKey::of(&meta),
            SegmentKey::new(0xff_ffff, 0xffff, 255)
        );
        assert_ne!(SegmentKey::new(1, 0, 0), SegmentKey::new(0, 1, 0));
        assert_ne!(SegmentKey::new(0, 1, 0), SegmentKey::new(0, 0, 1));
        assert_ne!(SegmentKey::new(0, 256, 0), SegmentKey::new(1, 0, 0));
    }
}
