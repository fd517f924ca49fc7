//! Ranges of numbered places: counter lines, program slots, chain numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::{Error, lock};

/// Gives out contiguous ranges of `0..capacity`. The search goes on where the last one ended, so that a range is used
/// again as late as possible: a packet in flight may still hold a number that was just given back.
#[derive(Debug)]
pub(crate) struct Blocks {
    what: &'static str,
    capacity: u32,
    /// Start and length of what is free, never two neighbours.
    free: BTreeMap<u32, u32>,
    cursor: u32,
}

impl Blocks {
    /// Ranges of `first..capacity`; `what` names them in errors.
    pub(crate) fn new(what: &'static str, first: u32, capacity: u32) -> Arc<Mutex<Self>> {
        let free = BTreeMap::from([(first, capacity.saturating_sub(first))]);
        Arc::new(Mutex::new(Self {
            what,
            capacity,
            free,
            cursor: first,
        }))
    }

    fn take(&mut self, count: u32) -> Option<u32> {
        let fits = |(&start, &len): (&u32, &u32)| {
            // The free range that holds the cursor is used from the cursor on.
            let from = start.max(self.cursor);
            (from < start + len && start + len - from >= count).then_some((start, from))
        };
        let (start, from) = self
            .free
            .range(..=self.cursor)
            .next_back()
            .and_then(fits)
            .or_else(|| self.free.range(self.cursor..).find_map(fits))
            .or_else(|| {
                self.free
                    .iter()
                    .find(|&(_, &len)| len >= count)
                    .map(|(&start, _)| (start, start))
            })?;
        let len = self.free.remove(&start)?;
        if from > start {
            self.free.insert(start, from - start);
        }
        if from + count < start + len {
            self.free.insert(from + count, start + len - from - count);
        }
        self.cursor = from + count;
        Some(from)
    }

    fn give_back(&mut self, start: u32, count: u32) {
        let (mut from, mut to) = (start, start + count);
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            from = before;
        }
        if let Some(len) = self.free.remove(&to) {
            to += len;
        }
        self.free.insert(from, to - from);
    }
}

/// A range, given back when dropped.
#[derive(Debug)]
pub(crate) struct Block {
    blocks: Arc<Mutex<Blocks>>,
    start: u32,
    count: u32,
}

impl Block {
    /// `count` places in a row.
    pub(crate) fn take(blocks: &Arc<Mutex<Blocks>>, count: u32) -> Result<Self, Error> {
        let mut inner = lock(blocks);
        let start = inner.take(count).ok_or(Error::Full {
            what: inner.what,
            wanted: count,
            capacity: inner.capacity,
        })?;
        Ok(Self {
            blocks: Arc::clone(blocks),
            start,
            count,
        })
    }

    /// The first place.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// The places.
    pub(crate) fn range(&self) -> std::ops::Range<u32> {
        self.start..self.start + self.count
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.blocks).give_back(self.start, self.count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_is_used_again_only_when_the_others_have_been() {
        let blocks = Blocks::new("places", 0, 4);
        let first = Block::take(&blocks, 1).unwrap().start();
        let second = Block::take(&blocks, 1).unwrap().start();
        assert_eq!((first, second), (0, 1));
        let kept = [
            Block::take(&blocks, 1).unwrap(),
            Block::take(&blocks, 1).unwrap(),
        ];
        assert_eq!(kept.map(|block| block.start()), [2, 3]);
        assert_eq!(Block::take(&blocks, 2).unwrap().start(), 0);
    }

    #[test]
    fn what_is_full_says_so() {
        let blocks = Blocks::new("places", 1, 4);
        let error = Block::take(&blocks, 4).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no room for 4 more places: the plane was made for 4"),
            "{error}"
        );
    }

    proptest! {
        /// Against a plain map of who holds which place.
        #[test]
        fn no_place_is_given_out_twice_and_none_is_lost(steps in prop::collection::vec((1_u32..6, any::<prop::sample::Index>()), 1..200)) {
            const CAPACITY: u32 = 24;
            let blocks = Blocks::new("places", 0, CAPACITY);
            let mut held: Vec<Block> = Vec::new();
            for (count, which) in steps {
                let mut taken = [false; CAPACITY as usize];
                for block in &held {
                    for place in block.range() {
                        prop_assert!(!taken[place as usize], "place {place} is held twice");
                        taken[place as usize] = true;
                    }
                }
                let longest = taken.split(|&taken| taken).map(<[bool]>::len).max().unwrap_or(0);
                if let Ok(block) = Block::take(&blocks, count) {
                    held.push(block);
                } else {
                    // The cursor may cut the longest range in two, which must not hide it.
                    prop_assert!(longest < count as usize, "{count} places were free");
                    held.swap_remove(which.index(held.len()));
                }
            }
        }
    }
}
