//! The matches of a port without their ports, for fragments whose ports are unknown. This module
//! writes the tables that `fragments.h` reads. [`myelin_packet::fragments`] specifies the matching.

use std::sync::Arc;

use libbpf_rs::{MapCore, MapHandle, MapType};
use myelin_packet::classifier::{MAX_MASKS, Mask};
use myelin_packet::fragment_table::DATAGRAMS;
use myelin_packet::fragments::{ChangedRule, FragmentRules};
use myelin_packet::{Family, FragmentHandling, Match};

use super::banks::MaskBanks;
use super::keys::{FRAGMENT_MASK, Words, key_words};
use super::tables::ClassifierTables;
use crate::Error;
use crate::map::{create, put};

/// `FRAGMENTS_DROP` and `FRAGMENTS_PASS`: bits of a number in the classifier's tables.
const FRAGMENTS_DROP: u32 = 1 << 31;
const FRAGMENTS_PASS: u32 = 1 << 30;

/// Returns the number of a match in the classifier's tables.
pub(super) fn number_of(rule: &Match, chain: u32) -> u32 {
    match rule.fragments {
        FragmentHandling::Drop => chain | FRAGMENTS_DROP,
        FragmentHandling::Pass if rule.names_ports() => chain | FRAGMENTS_PASS,
        FragmentHandling::Pass | FragmentHandling::Follow => chain,
    }
}

/// The maps that the ports of a plane share.
#[derive(Debug)]
pub(super) struct FragmentMaps {
    rules: MapHandle,
    datagrams: MapHandle,
}

impl FragmentMaps {
    /// Creates the maps for `capacity` matches of each family.
    pub(super) fn new(capacity: u32) -> Result<Self, Error> {
        let (key, number) = (size_of::<Words>(), size_of::<u32>());
        let no_preallocation = libbpf_sys::BPF_F_NO_PREALLOC;
        Ok(Self {
            rules: create(
                RULES,
                MapType::Hash,
                key,
                number,
                2 * capacity,
                no_preallocation,
            )?,
            // `struct datagram` and `struct first_fragment`.
            datagrams: create(DATAGRAMS_MAP, MapType::LruHash, 40, 16, DATAGRAMS as u32, 0)?,
        })
    }

    /// Returns the maps by their names in the programs.
    pub(super) fn named(&self) -> [(&'static str, &MapHandle); 2] {
        [(RULES, &self.rules), (DATAGRAMS_MAP, &self.datagrams)]
    }

    fn apply(&self, key: &Words, guarded: Option<bool>) -> Result<(), Error> {
        let bytes = bytemuck::bytes_of(key);
        if let Some(guarded) = guarded {
            let value = u32::from(guarded).to_ne_bytes();
            return put(&self.rules, (RULES, "add a match to"), bytes, &value);
        }
        match self.rules.delete(bytes) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::map(RULES, "remove a match from", &error))
            }
            _ => Ok(()),
        }
    }
}

const RULES: &str = "fragment_rules";
const DATAGRAMS_MAP: &str = "datagrams";

/// The matches of one port without their ports.
#[derive(Debug)]
pub(super) struct FragmentMatches {
    tables: Arc<ClassifierTables>,
    banks: MaskBanks,
    port: u16,
    rules: FragmentRules,
    /// The masks of each family with their numbers.
    numbers: [Vec<(Mask, u8)>; 2],
}

impl FragmentMatches {
    pub(super) fn new(tables: &Arc<ClassifierTables>, port: u16) -> Result<Self, Error> {
        Ok(Self {
            tables: Arc::clone(tables),
            banks: MaskBanks::new("fragment_masks")?,
            port,
            rules: FragmentRules::default(),
            numbers: [Vec::new(), Vec::new()],
        })
    }

    /// Returns the map of the masks.
    pub(super) fn map(&self) -> &MapHandle {
        self.banks.map()
    }

    /// Adds a match under one of its masks. The caller publishes the masks.
    pub(super) fn insert(&mut self, rule: &Match, mask: Mask) -> Result<(), Error> {
        let changed = self.rules.insert_under_mask(rule, mask);
        self.write(&changed)
    }

    /// Removes a match that was added. The caller publishes the masks.
    pub(super) fn remove(&mut self, rule: &Match, mask: Mask) -> Result<(), Error> {
        let changed = self.rules.remove_under_mask(rule, mask);
        self.write(&changed)
    }

    fn write(&mut self, changed: &ChangedRule) -> Result<(), Error> {
        let mask = changed.mask;
        let numbers = &mut self.numbers[mask.family as usize];
        let held = numbers.iter().find(|(held, _)| *held == mask);
        let number = match held {
            Some((_, number)) => *number,
            None if changed.guarded.is_none() => return Ok(()),
            None => {
                // A number is free, because there are fewer masks than numbers.
                let number = (0..MAX_MASKS as u8)
                    .find(|number| numbers.iter().all(|(_, used)| used != number))
                    .unwrap_or(0);
                numbers.push((mask, number));
                number
            }
        };
        let number = number | FRAGMENT_MASK;
        let key = key_words(mask.family, &changed.key, number, self.port);
        let applied = self.tables.fragments().apply(&key, changed.guarded);
        let used: Vec<Mask> = self.rules.masks(mask.family).copied().collect();
        self.numbers[mask.family as usize].retain(|(mask, _)| used.contains(mask));
        applied
    }

    /// Returns the masks that the programs search, most specific first. Programs skip a family
    /// without guarded matches.
    fn published(&self, family: Family) -> Vec<(Mask, u8)> {
        let numbers = &self.numbers[family as usize];
        let number_of = |mask: &Mask| {
            let (_, number) = numbers.iter().find(|(held, _)| held == mask)?;
            Some((*mask, number | FRAGMENT_MASK))
        };
        let masks = self.rules.masks(family).filter_map(number_of);
        masks.filter(|_| self.rules.is_guarded(family)).collect()
    }

    /// Lets the programs read the masks in use.
    pub(super) fn publish_masks(&mut self) {
        let masks = [Family::V4, Family::V6].map(|family| self.published(family));
        self.banks.publish(masks);
    }
}
