//! The front doors' classifier: a table shared by all ports of a plane, and a list of masks for each port. Twin of
//! `classify.h`; what it finds is what [`myelin_packet::classifier`] says.

mod buckets;
pub(crate) mod keys;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use myelin_packet::Match;
use myelin_packet::classifier::{ClassifierError, Key, MAX_MASKS, Mask};

use self::keys::{BANK_WORDS, BANKS_WORDS, MASK_WORDS, MaskEntry, key_words};
pub(crate) use self::tables::Tables;
use crate::Error;
use crate::blocks::Block;
use crate::map::mapped;
use crate::mapping::Mapping;

/// A mask in use at a port.
#[derive(Debug)]
struct UsedMask {
    mask: Mask,
    /// Of this port's masks, below [`MAX_MASKS`].
    number: u8,
    keys: usize,
}

/// A chain that a match leads to. What packets find by the match is not used for anything else while the match is there,
/// even when the chain is gone.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) spi: u32,
    /// In the `chains` map.
    pub(crate) number: Block,
    /// Counter lines and slots that the entry there names; kept only to be held.
    _places: Vec<Arc<Block>>,
}

impl Target {
    pub(crate) fn new(spi: u32, number: Block, places: Vec<Arc<Block>>) -> Self {
        Self {
            spi,
            number,
            _places: places,
        }
    }
}

/// One port's matches.
#[derive(Debug)]
pub(crate) struct PortMatches {
    /// Name of the interface, for errors.
    interface: String,
    tables: Arc<Tables>,
    map: MapHandle,
    banks: Mapping,
    active: u64,
    /// The port's number in the keys.
    port: u16,
    /// By family, most specific first.
    masks: [Vec<UsedMask>; 2],
    /// The match that each key stands for, as it was given, and where it leads.
    entries: HashMap<(Mask, Key), (Match, Arc<Target>)>,
    /// How many of them lead to each chain, by its number.
    leading_to: HashMap<u32, usize>,
    keep: bool,
}

impl PortMatches {
    pub(crate) fn new(tables: &Arc<Tables>, interface: &str, port: u16) -> Result<Self, Error> {
        let (map, banks) = mapped("masks", BANKS_WORDS * 8, 1)?;
        Ok(Self {
            interface: interface.to_owned(),
            tables: Arc::clone(tables),
            map,
            banks,
            active: 0,
            port,
            masks: [Vec::new(), Vec::new()],
            entries: HashMap::new(),
            leading_to: HashMap::new(),
            keep: false,
        })
    }

    /// Whether the matches stay in the tables when the port is dropped: its front door may outlive the process.
    pub(crate) fn keep_on_drop(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// The port's list of masks.
    pub(crate) fn map(&self) -> &MapHandle {
        &self.map
    }

    /// Leads `rule` to `target`. The same match of the same chain is led to the new target in one step; any other that is
    /// equally specific and takes the same packets is a tie. On an error nothing has changed.
    pub(crate) fn insert(&mut self, rule: &Match, target: &Arc<Target>) -> Result<(), Error> {
        let key = Key::of(rule);
        let masks = masks_of(rule);
        if masks.is_empty() {
            return Err(self.error(ClassifierError::TakesNothing));
        }
        for mask in &masks {
            let used = &self.masks[mask.family as usize];
            if let Some((held, to)) = self.entries.get(&(*mask, key))
                && (held != rule || to.spi != target.spi)
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
            .map(|(_, to)| Arc::clone(to));
        for (i, mask) in masks.iter().enumerate() {
            if let Err(error) = self.put(*mask, rule, target) {
                for mask in &masks[..i] {
                    // As far as the kernel lets us: the error that made it necessary is the one to report.
                    let _ = match &before {
                        Some(before) => self.put(*mask, rule, before),
                        None => self.take_out(*mask, rule).map(drop),
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

    fn put(&mut self, mask: Mask, rule: &Match, target: &Arc<Target>) -> Result<(), Error> {
        let (family, key) = (mask.family, Key::of(rule));
        let used = &mut self.masks[family as usize];
        let at = used.binary_search_by(|u| mask.fields.cmp(&u.mask.fields));
        let number = match at {
            Ok(at) => used[at].number,
            // Some number is free: there are fewer masks than numbers.
            Err(_) => (0..MAX_MASKS as u8)
                .find(|n| used.iter().all(|u| u.number != *n))
                .unwrap_or(0),
        };
        let words = key_words(family, &key, number, self.port);
        let is_new = !self.entries.contains_key(&(mask, key));
        self.tables.put(family, &words, target.number.start())?;
        let before = self
            .entries
            .insert((mask, key), (*rule, Arc::clone(target)));
        *self.leading_to.entry(target.number.start()).or_default() += 1;
        if let Some((_, before)) = before {
            self.leave(&before);
        }
        let used = &mut self.masks[family as usize];
        match at {
            Ok(at) => used[at].keys += usize::from(is_new),
            // Only now, when its first key is there, are packets looked up under the mask.
            Err(at) => {
                used.insert(
                    at,
                    UsedMask {
                        mask,
                        number,
                        keys: 1,
                    },
                );
                self.publish();
            }
        }
        Ok(())
    }

    /// Takes `rule` out; false when it was not there.
    pub(crate) fn remove(&mut self, rule: &Match) -> Result<bool, Error> {
        let mut removed = false;
        for mask in masks_of(rule) {
            removed |= self.take_out(mask, rule)?;
        }
        Ok(removed)
    }

    fn take_out(&mut self, mask: Mask, rule: &Match) -> Result<bool, Error> {
        let key = Key::of(rule);
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
            self.publish();
        }
        let words = key_words(mask.family, &key, number, self.port);
        self.tables.take_out(mask.family, &words)?;
        if let Some((_, target)) = self.entries.remove(&(mask, key)) {
            self.leave(&target);
        }
        Ok(true)
    }

    /// Takes all matches out.
    pub(crate) fn clear(&mut self) {
        let entries: Vec<(Mask, Match)> = self
            .entries
            .iter()
            .map(|((mask, _), (rule, _))| (*mask, *rule))
            .collect();
        for (mask, rule) in entries {
            // Nobody is left to tell; a key that stays behind belongs to a port number that is used again late.
            let _ = self.take_out(mask, &rule);
        }
    }

    /// One match less leads to a chain.
    fn leave(&mut self, target: &Target) {
        let number = target.number.start();
        if let Some(left) = self.leading_to.get_mut(&number) {
            *left -= 1;
            if *left == 0 {
                self.leading_to.remove(&number);
            }
        }
    }

    /// Whether any match leads to the chain of this number.
    pub(crate) fn leads_to(&self, number: u32) -> bool {
        self.leading_to.contains_key(&number)
    }

    /// Writes the masks into the bank that no reader uses, then makes it the one they use.
    fn publish(&mut self) {
        let next = 1 - self.active;
        let mut bank = vec![0_u64; BANK_WORDS];
        let counts = [self.masks[0].len() as u32, self.masks[1].len() as u32];
        bank[0] = bytemuck::cast(counts);
        for (family, used) in self.masks.iter().enumerate() {
            for (i, mask) in used.iter().enumerate() {
                let at = 1 + (family * MAX_MASKS + i) * MASK_WORDS;
                bank[at..at + MASK_WORDS].copy_from_slice(bytemuck::cast_slice(&[MaskEntry::new(
                    mask.mask,
                    mask.number,
                )]));
            }
        }
        let at = 1 + next as usize * BANK_WORDS;
        self.banks.write(at * 8, bytemuck::cast_slice(&bank));
        let active: u64 = bytemuck::cast([next as u32, 0]);
        self.banks.words()[0].store(active, Ordering::Release);
        self.active = next;
    }
}

impl Drop for PortMatches {
    fn drop(&mut self) {
        if !self.keep {
            self.clear();
        }
    }
}

fn masks_of(rule: &Match) -> Vec<Mask> {
    rule.families()
        .filter_map(|family| Mask::of(rule, family))
        .collect()
}
