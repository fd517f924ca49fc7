//! Rings of descriptors between two processes in a shared file: single producer, single consumer,
//! lock-free (Lamport, TOPLAS 1983).
//!
//! ```text
//! word  0  magic, entries, words of a slot
//! word 16  producer's index
//! word 32  consumer's index
//! word 48  1 if the consumer sleeps
//! word 64  slots
//! ```
//!
//! Words have 64 bits. Each index has a separate pair of cache lines, because the processor
//! prefetches adjacent lines. An index only counts up. So it is also the number of enqueued or
//! dequeued descriptors, which any process that maps the file can read ([`Observer`]). Each side
//! keeps a copy of the other side's index, and reads that index again only if the copy does not
//! suffice. A side publishes its own index once per batch. The slots of a batch are in the other
//! side's cache. So a side prefetches all of them before it accesses the first
//! ([`Producer::reserve`], [`Consumer::peek`]). Then the transfers overlap.
//!
//! The other process may die at any point, or write any value into the file. Every access is to an
//! atomic word within the slice, so no access is out of bounds or a data race. If the distance of
//! the indices exceeds the ring's length, the ring reports no free slot and no descriptor.
//!
//! No function here blocks. Before a consumer sleeps, it announces the sleep and checks the ring
//! once more ([`Consumer::arm`]). After a producer has published, it checks whether the consumer
//! sleeps ([`Producer::must_wake`]). The fences between these steps ensure that at least one side
//! sees the other's step. `model` checks all interleavings of a few descriptors.

use std::ops::Deref;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

mod file;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use file::{RingFile, SharedConsumer, SharedObserver, SharedProducer};

/// A word that two processes share.
pub trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Orders all accesses before it against all accesses after it, for both sides.
    fn full_fence();
    /// Prefetches the word, for reading or for writing.
    fn fetch(&self, _for_writing: bool) {}
}

/// Longest ring, entries.
pub const MAX_ENTRIES: u32 = 1 << 20;
/// Longest slot, words.
pub const MAX_SLOT_WORDS: usize = 64;

const MAGIC: u64 = u64::from_be_bytes(*b"MYELRNG1");
const ENTRIES: usize = 1;
const SLOT_WORDS: usize = 2;
const PRODUCER: usize = 16;
const CONSUMER: usize = 32;
const ASLEEP: usize = 48;
const SLOTS: usize = 64;
/// Words of a cache line.
const LINE: usize = 8;

/// Returns the number of words of a ring with `entries` slots of `slot_words` words.
const fn len_of(entries: u32, slot_words: usize) -> usize {
    SLOTS + entries as usize * slot_words
}

/// The words of a ring.
#[derive(Debug)]
struct RingWords<M, const N: usize> {
    words: M,
    entries: u32,
}

impl<W: Word, M: Deref<Target = [W]>, const N: usize> RingWords<M, N> {
    /// Returns `None` if there are too few words, or `entries` is no power of two.
    fn new(words: M, entries: u32) -> Option<Self> {
        let fits = entries.is_power_of_two()
            && entries <= MAX_ENTRIES
            && (1..=MAX_SLOT_WORDS).contains(&N)
            && words.len() >= len_of(entries, N);
        fits.then_some(Self { words, entries })
    }

    #[inline]
    fn slot(&self, index: u64) -> &[W] {
        let slot = (index & u64::from(self.entries - 1)) as usize;
        &self.words[SLOTS + slot * N..][..N]
    }

    #[inline]
    fn read(&self, index: u64) -> [u64; N] {
        let slot = self.slot(index);
        std::array::from_fn(|word| slot[word].load(Relaxed))
    }

    /// Prefetches `count` slots.
    #[inline]
    fn fetch(&self, index: u64, count: u32, for_writing: bool) {
        for ahead in (0..u64::from(count)).step_by((LINE / N).max(1)) {
            let slot = self.slot(index.wrapping_add(ahead));
            for word in slot.iter().step_by(LINE) {
                word.fetch(for_writing);
            }
        }
    }

    /// Returns `ahead - behind`; `None` if they cannot both be indices of the ring.
    #[inline]
    fn distance(&self, ahead: u64, behind: u64) -> Option<u32> {
        let distance = ahead.wrapping_sub(behind);
        (distance <= u64::from(self.entries)).then_some(distance as u32)
    }

    /// Returns the unread entries, and those that the consumer takes during the call.
    fn unread_entries(&self) -> impl Iterator<Item = [u64; N]> + '_ {
        let consumer = self.words[CONSUMER].load(Acquire);
        let producer = self.words[PRODUCER].load(Acquire);
        let count = self.distance(producer, consumer).unwrap_or(0);
        (0..u64::from(count)).map(move |i| self.read(consumer.wrapping_add(i)))
    }
}

/// The producer's end, for descriptors of `N` words. A ring must have only one.
#[derive(Debug)]
pub struct Producer<M, const N: usize> {
    memory: RingWords<M, N>,
    /// Index of the next write.
    next: u64,
    /// The shared index. Entries from here to `next` wait for `publish`.
    published: u64,
    /// Known number of free slots from `next` on.
    free: u32,
}

impl<W: Word, M: Deref<Target = [W]>, const N: usize> Producer<M, N> {
    /// Opens the producer's end, and continues after the entries of a predecessor. Returns `None`
    /// if the words hold no ring of that size.
    pub fn new(words: M, entries: u32) -> Option<Self> {
        let memory = RingWords::new(words, entries)?;
        let next = memory.words[PRODUCER].load(Relaxed);
        Some(Self {
            memory,
            next,
            published: next,
            free: 0,
        })
    }

    /// Returns how many slots the caller may write, at most `wanted`.
    #[inline]
    pub fn reserve(&mut self, wanted: u32) -> u32 {
        if self.free < wanted {
            let consumer = self.memory.words[CONSUMER].load(Acquire);
            let used = self.memory.distance(self.next, consumer);
            self.free = used.map_or(0, |used| self.memory.entries - used);
        }
        let granted = self.free.min(wanted);
        self.memory.fetch(self.next, granted, true);
        granted
    }

    /// Writes the next reserved slot. The consumer sees the slot after [`Self::publish`]. Without a
    /// reservation this writes nothing.
    #[inline]
    pub fn write(&mut self, descriptor: &[u64; N]) {
        debug_assert!(
            self.free > 0,
            "the caller wrote a slot without a reservation"
        );
        let Some(free) = self.free.checked_sub(1) else {
            return;
        };
        self.free = free;
        for (word, value) in self.memory.slot(self.next).iter().zip(descriptor) {
            word.store(*value, Relaxed);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes all written descriptors to the consumer.
    #[inline]
    pub fn publish(&mut self) {
        self.memory.words[PRODUCER].store(self.next, Release);
        self.published = self.next;
    }

    /// Returns whether a written descriptor is not yet published.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.next != self.published
    }

    /// Returns whether the consumer sleeps or is about to sleep, so that it needs a wake-up. Call
    /// this method after [`Self::publish`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        W::full_fence();
        self.memory.words[ASLEEP].load(Relaxed) != 0
    }

    /// Enqueues and publishes as many descriptors as fit. Returns the number of enqueued ones.
    #[inline]
    pub fn enqueue(&mut self, descriptors: &[[u64; N]]) -> usize {
        let count = self.reserve(descriptors.len().try_into().unwrap_or(u32::MAX)) as usize;
        for descriptor in &descriptors[..count] {
            self.write(descriptor);
        }
        if count > 0 {
            self.publish();
        }
        count
    }

    /// Returns the published descriptors that the consumer has not taken, and maybe some that it is
    /// taking.
    pub fn entries(&self) -> impl Iterator<Item = [u64; N]> + '_ {
        self.memory.unread_entries()
    }
}

/// The consumer's end. A ring must have only one.
#[derive(Debug)]
pub struct Consumer<M, const N: usize> {
    memory: RingWords<M, N>,
    /// Index of the next read; ahead of the shared index until `release`.
    next: u64,
    /// Known number of descriptors from `next` on.
    known: u32,
}

impl<W: Word, M: Deref<Target = [W]>, const N: usize> Consumer<M, N> {
    /// Opens the consumer's end, and continues after the entries that a predecessor released.
    /// Returns `None` if the words hold no ring of that size.
    pub fn new(words: M, entries: u32) -> Option<Self> {
        let memory = RingWords::new(words, entries)?;
        let next = memory.words[CONSUMER].load(Relaxed);
        let consumer = Self {
            memory,
            next,
            known: 0,
        };
        consumer.disarm();
        Some(consumer)
    }

    /// Returns how many descriptors the caller may read, at most `wanted`.
    #[inline]
    pub fn peek(&mut self, wanted: u32) -> u32 {
        if self.known < wanted {
            self.known = self.count_unread();
        }
        let readable = self.known.min(wanted);
        self.memory.fetch(self.next, readable, false);
        readable
    }

    /// Reads the next descriptor that [`Self::peek`] reported. Returns zeros if none is left.
    #[inline]
    pub fn read(&mut self) -> [u64; N] {
        debug_assert!(self.known > 0, "the caller read a slot without a peek");
        let Some(known) = self.known.checked_sub(1) else {
            return [0; N];
        };
        self.known = known;
        let descriptor = self.memory.read(self.next);
        self.next = self.next.wrapping_add(1);
        descriptor
    }

    /// Returns the slots of all read descriptors to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.memory.words[CONSUMER].store(self.next, Release);
    }

    /// Dequeues up to `descriptors.len()` descriptors. Returns the number of dequeued ones.
    #[inline]
    pub fn dequeue(&mut self, descriptors: &mut [[u64; N]]) -> usize {
        let count = self.peek(descriptors.len().try_into().unwrap_or(u32::MAX)) as usize;
        for descriptor in &mut descriptors[..count] {
            *descriptor = self.read();
        }
        if count > 0 {
            self.release();
        }
        count
    }

    /// Returns the number of unread descriptors.
    #[inline]
    pub fn count_unread(&self) -> u32 {
        let producer = self.memory.words[PRODUCER].load(Acquire);
        self.memory.distance(producer, self.next).unwrap_or(0)
    }

    /// Announces that the consumer is about to sleep. Returns whether the consumer may sleep: not
    /// if a descriptor has arrived.
    pub fn arm(&self) -> bool {
        self.memory.words[ASLEEP].store(1, Relaxed);
        W::full_fence();
        self.count_unread() == 0
    }

    /// Announces that the consumer is awake.
    pub fn disarm(&self) {
        self.memory.words[ASLEEP].store(0, Relaxed);
    }
}

/// Reads the state of a ring, from outside its two ends.
#[derive(Debug)]
pub struct Observer<M>(M, u32);

impl<W: Word, M: Deref<Target = [W]>> Observer<M> {
    /// Makes an observer of the ring in these words. Returns `None` if there are too few words.
    pub fn new(words: M, entries: u32) -> Option<Self> {
        (words.len() >= SLOTS).then_some(Self(words, entries))
    }

    /// Returns the capacity in entries.
    pub fn capacity(&self) -> u32 {
        self.1
    }

    /// Returns the number of descriptors enqueued since the ring was made.
    pub fn enqueued(&self) -> u64 {
        self.0[PRODUCER].load(Acquire)
    }

    /// Returns the number of descriptors dequeued since the ring was made.
    pub fn dequeued(&self) -> u64 {
        self.0[CONSUMER].load(Acquire)
    }

    /// Reads one word of the oldest descriptor, in a ring with slots of `N` words. Returns `None`
    /// without a descriptor. If the consumer takes it meanwhile, the word may be that of a later
    /// one.
    #[inline]
    pub fn oldest<const N: usize>(&self, word: usize) -> Option<u64> {
        let dequeued = self.dequeued();
        if self.enqueued() == dequeued {
            return None;
        }
        let slot = (dequeued & u64::from(self.1.saturating_sub(1))) as usize;
        self.0
            .get(SLOTS + slot * N + word)
            .map(|word| word.load(Relaxed))
    }

    /// Returns the number of descriptors in the ring. The number is exact if one side pauses.
    /// Otherwise it is the number at some time during the call, or slightly larger.
    pub fn occupancy(&self) -> u32 {
        // Read the consumer first: it is never ahead of the producer.
        let dequeued = self.dequeued();
        let occupancy = self.enqueued().wrapping_sub(dequeued);
        occupancy.min(self.1.into()) as u32
    }
}
