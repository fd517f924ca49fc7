//! The front doors' classifier: a table for all ports of a plane, and a list of masks for each
//! port. This module writes the tables that `classify.h` reads. [`myelin_packet::classifier`]
//! specifies the matching.

mod banks;
mod buckets;
mod fragments;
pub(crate) mod keys;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;

use libbpf_rs::MapHandle;
use myelin_packet::Match;
use myelin_packet::classifier::{ClassifierError, MAX_MASKS, Mask, MatchKey};

use self::banks::MaskBanks;
use self::fragments::{FragmentMatches, number_of};
use self::keys::key_words;
pub(crate) use self::tables::ClassifierTables;
use crate::Error;
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
    banks: MaskBanks,
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
        Ok(Self {
            interface: interface.to_owned(),
            tables: Arc::clone(tables),
            banks: MaskBanks::new("masks")?,
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
        self.banks.map()
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
        let mut masks_left = masks.iter();
        let outcome = masks_left.try_for_each(|mask| self.put(*mask, rule, target));
        if outcome.is_err() {
            let done = &masks[..masks.len() - masks_left.len()];
            // Ignore a failure to restore: the caller gets the first error.
            let _ = match &before {
                Some((held, before)) => done
                    .iter()
                    .try_for_each(|mask| self.put(*mask, held, before)),
                None => self.remove_under_masks(done, rule).map(drop),
            };
        }
        // Each mask is published after its first key, so look-ups under the mask find the key.
        self.publish_masks();
        outcome
    }

    fn error(&self, cause: ClassifierError) -> Error {
        let interface = self.interface.clone();
        Error::Classifier { interface, cause }
    }

    /// Adds a match under one of its masks. The caller publishes the masks.
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
        let guarded = self.fragments.insert(rule, mask);
        if let Some((held, before)) = before {
            self.decrement_match_count(&before);
            self.fragments.remove(&held, mask)?;
        }
        let used = &mut self.masks[family as usize];
        match at {
            Ok(at) => used[at].keys += usize::from(is_new),
            Err(at) => {
                let keys = 1;
                used.insert(at, UsedMask { mask, number, keys });
            }
        }
        guarded
    }

    /// Removes `rule`. Returns false if the rule does not exist.
    pub(crate) fn remove(&mut self, rule: &Match) -> Result<bool, Error> {
        self.remove_under_masks(&list_masks(rule), rule)
    }

    /// Removes `rule` if it has this target.
    pub(crate) fn remove_from(
        &mut self,
        rule: &Match,
        target: &Arc<ChainTarget>,
    ) -> Result<(), Error> {
        let mut masks = list_masks(rule);
        masks.retain(|mask| {
            let held = self.entries.get(&(*mask, MatchKey::of(rule)));
            held.is_some_and(|(_, to)| Arc::ptr_eq(to, target))
        });
        self.remove_under_masks(&masks, rule).map(drop)
    }

    /// Removes `rule` under these masks. Returns false if the rule exists under none.
    fn remove_under_masks(&mut self, masks: &[Mask], rule: &Match) -> Result<bool, Error> {
        let key = MatchKey::of(rule);
        let mut numbers = Vec::with_capacity(masks.len());
        for mask in masks {
            let held = self.entries.get(&(*mask, key));
            if held.is_some_and(|(held, _)| held == rule) {
                numbers.extend(self.release_mask(*mask).map(|number| (*mask, number)));
            }
        }
        // A mask leaves before its last key.
        self.publish_masks();
        for (mask, number) in &numbers {
            let words = key_words(mask.family, &key, *number, self.port);
            self.tables.remove(mask.family, &words)?;
            if let Some((held, target)) = self.entries.remove(&(*mask, key)) {
                self.decrement_match_count(&target);
                self.fragments.remove(&held, *mask)?;
            }
        }
        self.fragments.publish_masks();
        Ok(!numbers.is_empty())
    }

    /// Counts one key less under a mask, and removes a mask without keys. Returns the mask's
    /// number. The caller publishes the masks.
    fn release_mask(&mut self, mask: Mask) -> Option<u8> {
        let used = &mut self.masks[mask.family as usize];
        let at = used.iter().position(|u| u.mask == mask)?;
        let number = used[at].number;
        used[at].keys -= 1;
        if used[at].keys == 0 {
            used.remove(at);
        }
        Some(number)
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
            let _ = self.remove_under_masks(&[mask], &rule);
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

    /// Lets the programs read the masks in use.
    fn publish_masks(&mut self) {
        // Guard a match before its mask is in use.
        self.fragments.publish_masks();
        let masks = self.masks.each_ref().map(|used| {
            let entries = used.iter().map(|mask| (mask.mask, mask.number));
            entries.collect()
        });
        self.banks.publish(masks);
    }
}

impl Drop for PortMatches {
    fn drop(&mut self) {
        if !self.keep_on_drop {
            self.remove_all();
        }
    }
}

fn list_masks(rule: &Match) -> Vec<Mask> {
    rule.families()
        .filter_map(|family| Mask::of(rule, family))
        .collect()
}
