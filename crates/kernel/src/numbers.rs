//! Allocates ranges of numbers: counter lines, program slots, chain numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::{Error, lock};

/// Allocates contiguous ranges of `0..capacity`. Each search starts at the end of the previous
/// allocation. A number is thus reused late, because a packet in flight may still hold the number.
#[derive(Debug)]
pub(crate) struct NumberAllocator {
    items: &'static str,
    capacity: u32,
    /// Start and length of each free range. No two free ranges are adjacent.
    free_ranges: BTreeMap<u32, u32>,
    cursor: u32,
}

impl NumberAllocator {
    /// Creates an allocator of the numbers `first..capacity`. `items` names the numbers in errors.
    pub(crate) fn new(items: &'static str, first: u32, capacity: u32) -> Arc<Mutex<Self>> {
        let free_ranges = BTreeMap::from([(first, capacity.saturating_sub(first))]);
        Arc::new(Mutex::new(Self {
            items,
            capacity,
            free_ranges,
            cursor: first,
        }))
    }

    fn allocate(&mut self, count: u32) -> Option<u32> {
        let fits = |(&start, &len): (&u32, &u32)| {
            // In the free range that contains the cursor, allocate from the cursor on.
            let from = start.max(self.cursor);
            (from < start + len && start + len - from >= count).then_some((start, from))
        };
        let (start, from) = self
            .free_ranges
            .range(..=self.cursor)
            .next_back()
            .and_then(fits)
            .or_else(|| self.free_ranges.range(self.cursor..).find_map(fits))
            .or_else(|| {
                self.free_ranges
                    .iter()
                    .find(|&(_, &len)| len >= count)
                    .map(|(&start, _)| (start, start))
            })?;
        let len = self.free_ranges.remove(&start)?;
        if from > start {
            self.free_ranges.insert(start, from - start);
        }
        if from + count < start + len {
            self.free_ranges
                .insert(from + count, start + len - from - count);
        }
        self.cursor = from + count;
        Some(from)
    }

    fn free(&mut self, start: u32, count: u32) {
        let (mut from, mut to) = (start, start + count);
        if let Some((&before, &len)) = self.free_ranges.range(..start).next_back()
            && before + len == start
        {
            from = before;
        }
        if let Some(len) = self.free_ranges.remove(&to) {
            to += len;
        }
        self.free_ranges.insert(from, to - from);
    }
}

/// An allocated range. The drop frees the numbers.
#[derive(Debug)]
pub(crate) struct NumberRange {
    allocator: Arc<Mutex<NumberAllocator>>,
    start: u32,
    count: u32,
}

impl NumberRange {
    /// Allocates `count` contiguous numbers.
    pub(crate) fn allocate(
        allocator: &Arc<Mutex<NumberAllocator>>,
        count: u32,
    ) -> Result<Self, Error> {
        let mut inner = lock(allocator);
        let start = inner.allocate(count).ok_or(Error::Full {
            items: inner.items,
            wanted: count,
            capacity: inner.capacity,
        })?;
        Ok(Self {
            allocator: Arc::clone(allocator),
            start,
            count,
        })
    }

    /// Returns the first number.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// Returns all numbers of the range.
    pub(crate) fn range(&self) -> std::ops::Range<u32> {
        self.start..self.start + self.count
    }
}

impl Drop for NumberRange {
    fn drop(&mut self) {
        lock(&self.allocator).free(self.start, self.count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_freed_range_is_reused_last() {
        let blocks = NumberAllocator::new("slots", 0, 4);
        let first = NumberRange::allocate(&blocks, 1).unwrap().start();
        let second = NumberRange::allocate(&blocks, 1).unwrap().start();
        assert_eq!((first, second), (0, 1));
        let kept = [
            NumberRange::allocate(&blocks, 1).unwrap(),
            NumberRange::allocate(&blocks, 1).unwrap(),
        ];
        assert_eq!(kept.map(|block| block.start()), [2, 3]);
        assert_eq!(NumberRange::allocate(&blocks, 2).unwrap().start(), 0);
    }

    #[test]
    fn an_exhausted_allocator_returns_an_error() {
        let blocks = NumberAllocator::new("slots", 1, 4);
        let error = NumberRange::allocate(&blocks, 4).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no room for 4 more slots: the agent has a capacity of 4"),
            "{error}"
        );
    }

    proptest! {
        /// Compares the allocator with a plain list of taken numbers.
        #[test]
        fn ranges_do_not_overlap_and_freed_numbers_are_available(steps in prop::collection::vec((1_u32..6, any::<prop::sample::Index>()), 1..200)) {
            const CAPACITY: u32 = 24;
            let blocks = NumberAllocator::new("slots", 0, CAPACITY);
            let mut held: Vec<NumberRange> = Vec::new();
            for (count, freed) in steps {
                let mut taken = [false; CAPACITY as usize];
                for block in &held {
                    for number in block.range() {
                        prop_assert!(!taken[number as usize], "number {number} is allocated twice");
                        taken[number as usize] = true;
                    }
                }
                let longest = taken.split(|&taken| taken).map(<[bool]>::len).max().unwrap_or(0);
                if let Ok(block) = NumberRange::allocate(&blocks, count) {
                    held.push(block);
                } else {
                    // The cursor may split the longest range, but the allocator must still find the
                    // range.
                    prop_assert!(longest < count as usize, "{count} numbers were free");
                    held.swap_remove(freed.index(held.len()));
                }
            }
        }
    }
}
