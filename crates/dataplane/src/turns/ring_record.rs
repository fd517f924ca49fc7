//! The record of a ring in the table of a shared core: when its packets arrived.

use std::sync::atomic::{AtomicU64, Ordering};

/// Times at which the arrival of packets in one ring is known.
pub(super) const MARKS: usize = 16;

const WRITTEN: usize = 0;
const READ: usize = 1;
const FIRST_MARK: usize = 2;
const MARK_COUNT: usize = 3;
const MARK: usize = 4;
/// Words of a record.
pub(super) const RING: usize = MARK + 2 * MARKS;

/// What the tasks know of a ring: its indices, and when packets arrived.
///
/// A *mark* says that the packets up to an index were there at a time. Marks come with looks at the
/// ring, so a packet's time is late by at most the time between two looks. Two marks have a least
/// distance, so that the marks reach back far enough. A packet between them has the earlier time.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingRecord<'t>(&'t [AtomicU64]);

impl<'t> RingRecord<'t> {
    /// The record in these words of a core's table.
    pub(super) fn new(words: &'t [AtomicU64]) -> Self {
        Self(words)
    }

    fn load(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    fn store(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }

    /// Extends indices of 32 bits to 64, with the last ones seen. Returns packets written and read.
    #[inline]
    pub(super) fn extend(&self, written: u32, read: u32) -> (u64, u64) {
        let extend = |word, now: u32| {
            let before = self.load(word);
            let extended = before.wrapping_add(now.wrapping_sub(before as u32).into());
            self.store(word, extended);
            extended
        };
        (extend(WRITTEN, written), extend(READ, read))
    }

    fn mark(&self, index: usize) -> (u64, u64) {
        let at = MARK + 2 * (index % MARKS);
        (self.load(at), self.load(at + 1))
    }

    fn set_mark(&self, index: usize, (ns, written): (u64, u64)) {
        let at = MARK + 2 * (index % MARKS);
        self.store(at, ns);
        self.store(at + 1, written);
    }

    /// The packets in the ring at the last look, and the time at which the oldest of them was
    /// there, ns.
    pub(super) fn level(&self) -> (u64, Option<u64>) {
        let packets = self.load(WRITTEN).saturating_sub(self.load(READ));
        let first = self.load(FIRST_MARK) as usize % MARKS;
        let has_mark = packets > 0 && self.load(MARK_COUNT) > 0;
        (packets, has_mark.then(|| self.mark(first).0))
    }

    /// Looks at the ring at `now_ns`. Returns the time at which its oldest packet was there, ns;
    /// `None` without a packet. Two marks are at least `spacing_ns` apart.
    #[inline]
    pub(super) fn look(
        &self,
        now_ns: u64,
        written: u64,
        read: u64,
        spacing_ns: u64,
    ) -> Option<u64> {
        let mut first = self.load(FIRST_MARK) as usize % MARKS;
        let mut count = (self.load(MARK_COUNT) as usize).min(MARKS);
        // All packets of a mark are gone.
        while count > 0 && self.mark(first).1 <= read {
            first = (first + 1) % MARKS;
            count -= 1;
        }
        let newest = (count > 0).then(|| self.mark(first + count - 1));
        if written > newest.map_or(read, |(_, written)| written) {
            let is_close = |(ns, _): (u64, u64)| now_ns.saturating_sub(ns) < spacing_ns;
            let last = newest.filter(|mark| count == MARKS || is_close(*mark));
            if let Some((ns, _)) = last {
                // The newest mark takes the packets too. So they seem older than they are.
                self.set_mark(first + count - 1, (ns, written));
            } else {
                self.set_mark(first + count, (now_ns, written));
                count += 1;
            }
        }
        self.store(FIRST_MARK, first as u64);
        self.store(MARK_COUNT, count as u64);
        (count > 0).then(|| self.mark(first).0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A ring's oldest packet is never older than the table says by more than the time between
        /// two looks. It is younger by less than the distance of two marks, unless there are more
        /// marks than room.
        #[test]
        fn marks_know_the_age_of_the_oldest_packet(
            start in any::<u32>(),
            spacing_ns in 0_u64..9,
            steps in prop::collection::vec((0_u32..40, 0_u32..40), 1..200),
        ) {
            let words = [const { AtomicU64::new(0) }; RING];
            let record = RingRecord::new(&words);
            let (mut written, mut read) = (start, start);
            record.extend(start, start);
            let mut queue = VecDeque::new();
            for (now_ns, (puts, takes)) in (1_u64..).zip(steps) {
                let puts = puts.min(64 - queue.len() as u32);
                queue.extend((0..puts).map(|_| now_ns));
                let takes = takes.min(queue.len() as u32);
                queue.drain(..takes as usize);
                written = written.wrapping_add(puts);
                read = read.wrapping_add(takes);
                let (written, read) = record.extend(written, read);
                prop_assert_eq!(written - read, queue.len() as u64);
                let told = record.look(now_ns, written, read, spacing_ns);
                prop_assert_eq!(told.is_some(), !queue.is_empty());
                prop_assert!(told.is_none_or(|ns| ns <= queue[0]));
                let distinct = queue.iter().collect::<std::collections::BTreeSet<_>>().len();
                if let (Some(told), Some(oldest)) = (told, queue.front())
                    && distinct < MARKS / 2
                {
                    prop_assert!(oldest - told <= spacing_ns.saturating_sub(1));
                }
            }
        }
    }
}
