//! The masks of a port in two banks. Programs read one bank while the other one is written.

use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use myelin_packet::classifier::{MAX_MASKS, Mask};

use super::keys::{BANK_WORDS, BANKS_WORDS, MASK_WORDS, MaskEntry};
use crate::Error;
use crate::map::create_mapped;
use crate::mapped_array::MappedArray;

/// The masks of both families with their numbers, in the order of the search.
pub(super) type PublishedMasks = [Vec<(Mask, u8)>; 2];

/// Two banks of masks in a mapped map.
#[derive(Debug)]
pub(super) struct MaskBanks {
    map: MapHandle,
    words: MappedArray,
    /// Number of the bank that the programs read.
    active: u64,
    /// The masks in that bank.
    published: PublishedMasks,
}

impl MaskBanks {
    pub(super) fn new(name: &'static str) -> Result<Self, Error> {
        let (map, words) = create_mapped(name, BANKS_WORDS * 8, 1)?;
        Ok(Self {
            map,
            words,
            active: 0,
            published: PublishedMasks::default(),
        })
    }

    pub(super) fn map(&self) -> &MapHandle {
        &self.map
    }

    /// Writes the masks into the inactive bank, then activates that bank. Does nothing if programs
    /// read these masks already: a program that began before the last change may still read the
    /// inactive bank, so each change writes once, for both families.
    pub(super) fn publish(&mut self, masks: PublishedMasks) {
        if masks == self.published {
            return;
        }
        let next = 1 - self.active;
        self.write(next, &masks);
        let active: u64 = bytemuck::cast([next as u32, 0]);
        self.words.words()[0].store(active, Ordering::Release);
        self.active = next;
        self.published = masks;
    }

    fn write(&self, bank: u64, masks: &PublishedMasks) {
        let mut words = vec![0_u64; BANK_WORDS];
        let counts = masks.each_ref().map(|masks| masks.len() as u32);
        words[0] = bytemuck::cast(counts);
        for (family, masks) in masks.iter().enumerate() {
            for (i, (mask, number)) in masks.iter().enumerate() {
                let at = 1 + (family * MAX_MASKS + i) * MASK_WORDS;
                let entry = MaskEntry::new(*mask, *number);
                words[at..at + MASK_WORDS].copy_from_slice(bytemuck::cast_slice(&[entry]));
            }
        }
        let at = 1 + bank as usize * BANK_WORDS;
        self.words.write(at * 8, bytemuck::cast_slice(&words));
    }
}

#[cfg(test)]
mod tests {
    use myelin_packet::{Family, Match};

    use super::*;

    #[test]
    fn masks_that_programs_read_already_change_no_bank() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let mut banks = MaskBanks::new("masks").unwrap();
        let masks = [Family::V4, Family::V6].map(|family| {
            let mask = Mask::of(&Match::default(), family);
            vec![(mask.unwrap(), 0)]
        });
        banks.publish(masks.clone());
        assert_eq!(banks.active, 1);
        banks.publish(masks);
        assert_eq!(banks.active, 1);
        banks.publish(PublishedMasks::default());
        assert_eq!(banks.active, 0);
    }
}
