//! The front doors' classifier: a table for all ports of a plane, and a list of masks for each
//! port. This module writes the tables that `classify.h` reads. [`myelin_packet::classifier`]
//! specifies the matching.

mod buckets;
mod fragments;
pub(crate) mod keys;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use myelin_packet::Match;
use myelin_packet::classifier::{ClassifierError, MAX_MASKS, Mask, MatchKey};

use self::fragments::{FragmentMatches, number_of};
use self::keys::{BANK_WORDS, BANKS_WORDS, MASK_WORDS, MaskEntry, key_words};
pub(crate) use self::tables::ClassifierTables;
use crate::Error;
use crate::map::create_mapped;
use crate::mapped_array::MappedArray;
use crate::numbers::NumberRange;

/// A mask in use at a port.
#[derive(Debug)]
struct UsedMask {
    mask: Mask,
    /// Index into the port's masks, below [`MAX_MASKS`].
    number: u8,
    /// Number of the port's keys under this mask.
    keys: usize,
}

/// A chain as the target of a match. A match keeps the numbers of its chain allocated, even after
/// the removal of the chain.
#[derive(Debug)]
pub(crate) struct ChainTarget {
    pub(crate) spi: u32,
    /// Index in the `chains` map.
    pub(crate) number: NumberRange,
    /// Keeps the counter lines and slots of the chain's entry allocated.
    _numbers: Vec<Arc<NumberRange>>,
}

impl ChainTarget {
    pub(crate) fn new(spi: u32, number: NumberRange, numbers: Vec<Arc<NumberRange>>) -> Self {
        Self {
            spi,
            number,
            _numbers: numbers,
        }
    }
}

/// The path identifier of a [`Block`](crate::Block). No chain has it.
pub(crate) const BLOCK_SPI: u32 = 0;

/// The matches of one port.
#[derive(Debug)]
pub(crate) struct PortMatches {
    /// Name of the interface, for errors.
    interface: String,
    tables: Arc<ClassifierTables>,
    map: MapHandle,
    banks: MappedArray,
    /// Number of the bank that the programs read.
    active: u64,
    /// The port's number in the keys.
    port: u16,
    /// The masks of each family, the most specific mask first.
    masks: [Vec<UsedMask>; 2],
    /// The original match and the target of each key.
    entries: HashMap<(Mask, MatchKey), (Match, Arc<ChainTarget>)>,
    /// Number of matches for each chain number.
    match_counts: HashMap<u32, usize>,
    /// The matches without their ports.
    fragments: FragmentMatches,
    keep_on_drop: bool,
}

impl PortMatches {
    pub(crate) fn new(
        tables: &Arc<ClassifierTables>,
        interface: &str,
        port: u16,
    ) -> Result<Self, Error> {
        let (map, banks) = create_mapped("masks", BANKS_WORDS * 8, 1)?;
        Ok(Self {
            interface: interface.to_owned(),
            tables: Arc::clone(tables),
            map,
            banks,
            active: 0,
            port,
            masks: [Vec::new(), Vec::new()],
            entries: HashMap::new(),
            match_counts: HashMap::new(),
            fragments: FragmentMatches::new(tables, port)?,
            keep_on_drop: false,
        })
    }

    /// Sets whether the matches stay in the tables after the drop, because a pinned front door
    /// outlives the process.
    pub(crate) fn set_keep_on_drop(&mut self, keep: bool) {
        self.keep_on_drop = keep;
    }

    /// Returns the map of the port's masks.
    pub(crate) fn map(&self) -> &MapHandle {
        &self.map
    }

    /// Returns the map of the port's masks for fragments.
    pub(crate) fn fragment_map(&self) -> &MapHandle {
        self.fragments.map()
    }

    /// Redirects the packets of `rule` to `target`. If the chain already has this match, or a block
    /// has it, replaces the match's target atomically. Any other match of the same packets with
    /// equal specificity is a tie. An error leaves the tables unchanged.
    pub(crate) fn insert(&mut self, rule: &Match, target: &Arc<ChainTarget>) -> Result<(), Error> {
        self.replace(rule, target, target.spi)
    }

    /// Does the same as [`insert`](Self::insert), but replaces the target of the chain `from`.
    pub(crate) fn replace(
        &mut self,
        rule: &Match,
        target: &Arc<ChainTarget>,
        from: u32,
    ) -> Result<(), Error> {
        let key = MatchKey::of(rule);
        let masks = list_masks(rule);
        if masks.is_empty() {
            return Err(self.error(ClassifierError::MixedFamilies));
        }
        for mask in &masks {
            let used = &self.masks[mask.family as usize];
            if let Some((held, to)) = self.entries.get(&(*mask, key))
                && (!held.has_same_fields(rule) || to.spi != from && to.spi != BLOCK_SPI)
            {
                return Err(self.error(ClassifierError::Tie));
            }
            if used.len() == MAX_MASKS && used.iter().all(|u| u.mask != *mask) {
                let family = mask.family;
                return Err(self.error(ClassifierError::TooManyMasks { family }));
            }
        }
        let before = self
            .entries
            .get(&(masks[0], key))
            .map(|(held, to)| (*held, Arc::clone(to)));
        for (i, mask) in masks.iter().enumerate() {
            if let Err(error) = self.put(*mask, rule, target) {
                for mask in &masks[..i] {
                    // Ignore a failure to restore: the caller gets the first error.
                    let _ = match &before {
                        Some((held, before)) => self.put(*mask, held, before),
                        None => self.remove_under_mask(*mask, rule).map(drop),
                    };
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn error(&self, cause: ClassifierError) -> Error {
        let interface = self.interface.clone();
        Error::Classifier { interface, cause }
    }

    fn put(&mut self, mask: Mask, rule: &Match, target: &Arc<ChainTarget>) -> Result<(), Error> {
        let (family, key) = (mask.family, MatchKey::of(rule));
        let used = &mut self.masks[family as usize];
        let at = used.binary_search_by(|u| mask.fields.cmp(&u.mask.fields));
        let number = match at {
            Ok(at) => used[at].number,
            // A number is free, because there are fewer masks than numbers.
            Err(_) => (0..MAX_MASKS as u8)
                .find(|n| used.iter().all(|u| u.number != *n))
                .unwrap_or(0),
        };
        let words = key_words(family, &key, number, self.port);
        let is_new = !self.entries.contains_key(&(mask, key));
        let value = number_of(rule, target.number.start());
        self.tables.put(family, &words, value)?;
        let before = self
            .entries
            .insert((mask, key), (*rule, Arc::clone(target)));
        *self.match_counts.entry(target.number.start()).or_default() += 1;
        // Guard the match before its mask is in use.
        let guarded = self.fragments.insert(rule, mask);
        if let Some((held, before)) = before {
            self.decrement_match_count(&before);
            self.fragments.remove(&held, mask)?;
        }
        let used = &mut self.masks[family as usize];
        match at {
            Ok(at) => used[at].keys += usize::from(is_new),
            // Add the mask after its first key, so look-ups under the mask find the key.
            Err(at) => {
                used.insert(
                    at,
                    UsedMask {
                        mask,
                        number,
                        keys: 1,
                    },
                );
                self.publish_masks();
            }
        }
        guarded
    }

    /// Removes `rule`. Returns false if the rule does not exist.
    pub(crate) fn remove(&mut self, rule: &Match) -> Result<bool, Error> {
        let mut removed = false;
        for mask in list_masks(rule) {
            removed |= self.remove_under_mask(mask, rule)?;
        }
        Ok(removed)
    }

    /// Removes `rule` if it has this target.
    pub(crate) fn remove_from(
        &mut self,
        rule: &Match,
        target: &Arc<ChainTarget>,
    ) -> Result<(), Error> {
        for mask in list_masks(rule) {
            let held = self.entries.get(&(mask, MatchKey::of(rule)));
            if held.is_some_and(|(_, to)| Arc::ptr_eq(to, target)) {
                self.remove_under_mask(mask, rule)?;
            }
        }
        Ok(())
    }

    fn remove_under_mask(&mut self, mask: Mask, rule: &Match) -> Result<bool, Error> {
        let key = MatchKey::of(rule);
        if self
            .entries
            .get(&(mask, key))
            .is_none_or(|(held, _)| held != rule)
        {
            return Ok(false);
        }
        let used = &mut self.masks[mask.family as usize];
        let Some(at) = used.iter().position(|u| u.mask == mask) else {
            return Ok(false);
        };
        let number = used[at].number;
        used[at].keys -= 1;
        if used[at].keys == 0 {
            used.remove(at);
            self.publish_masks();
        }
        let words = key_words(mask.family, &key, number, self.port);
        self.tables.remove(mask.family, &words)?;
        if let Some((held, target)) = self.entries.remove(&(mask, key)) {
            self.decrement_match_count(&target);
            self.fragments.remove(&held, mask)?;
        }
        Ok(true)
    }

    /// Removes all matches.
    pub(crate) fn remove_all(&mut self) {
        let entries: Vec<(Mask, Match)> = self
            .entries
            .iter()
            .map(|((mask, _), (rule, _))| (*mask, *rule))
            .collect();
        for (mask, rule) in entries {
            // A failure is harmless: the key has a port number that the plane reuses late.
            let _ = self.remove_under_mask(mask, &rule);
        }
    }

    fn decrement_match_count(&mut self, target: &ChainTarget) {
        let number = target.number.start();
        if let Some(left) = self.match_counts.get_mut(&number) {
            *left -= 1;
            if *left == 0 {
                self.match_counts.remove(&number);
            }
        }
    }

    /// Returns whether a match has this chain number as its target.
    pub(crate) fn has_match(&self, number: u32) -> bool {
        self.match_counts.contains_key(&number)
    }

    /// Writes the masks into the inactive bank, then activates that bank.
    fn publish_masks(&mut self) {
        let next = 1 - self.active;
        let masks = self.masks.each_ref().map(|used| {
            let entries = used.iter().map(|mask| (mask.mask, mask.number));
            entries.collect::<Vec<_>>()
        });
        write_bank(&self.banks, next, &masks);
        let active: u64 = bytemuck::cast([next as u32, 0]);
        self.banks.words()[0].store(active, Ordering::Release);
        self.active = next;
    }
}

impl Drop for PortMatches {
    fn drop(&mut self) {
        if !self.keep_on_drop {
            self.remove_all();
        }
    }
}

/// Writes the masks of both families with their numbers into the bank `bank`.
fn write_bank(banks: &MappedArray, bank: u64, masks: &[Vec<(Mask, u8)>; 2]) {
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
    banks.write(at * 8, bytemuck::cast_slice(&words));
}

fn list_masks(rule: &Match) -> Vec<Mask> {
    rule.families()
        .filter_map(|family| Mask::of(rule, family))
        .collect()
}
