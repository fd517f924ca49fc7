//! Rings of descriptors between two processes: single producer, single consumer, without locks (Lamport, TOPLAS 1983), in a shared file.
//!
//! ```text
//! word  0  magic, entries, words of a slot
//! word 16  producer's index
//! word 32  consumer's index
//! word 48  1 while the consumer sleeps
//! word 64  slots
//! ```
//!
//! Words are 64 bits. Each index lies in a pair of cache lines of its own, since the adjacent line is prefetched with it, and only counts up: so it also is
//! the number of descriptors that went in or came out, and anyone who maps the file ([`Observer`]) sees both and what lies between,
//! without taking part. Each side keeps the other's index as last seen and looks again only when that does not suffice; it
//! publishes its own once a batch. The slots of a batch are in the other side's cache, so all are sent for before the first is touched
//! ([`Producer::reserve`], [`Consumer::peek`]): they come over at the same time instead of one after another.
//!
//! The other process may die at any point, or write anything into the file. Every access is to an atomic word within the
//! slice, so that is never out of bounds and never a data race; indices that lie further apart than the ring is long stop the ring.
//!
//! Nobody waits in here. A consumer that wants to sleep says so first ([`Consumer::arm`]) and looks once more; a producer that has published
//! looks whether it must wake somebody ([`Producer::must_wake`]). The fences between the two make it impossible that both miss each
//! other; `model` checks that over all interleavings of a few descriptors.

use std::ops::Deref;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

mod file;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use file::{RingFile, SharedConsumer, SharedObserver, SharedProducer};

/// A word that two processes see.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Puts all that this side did before and after it into one order that both sides agree upon.
    fn full_fence();
    /// Begins to bring it into this core's cache, to be read or to be written.
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
/// Words that move between caches at once.
const LINE: usize = 8;

/// Words of a ring of `entries` slots of `slot_words` words.
const fn len_of(entries: u32, slot_words: usize) -> usize {
    SLOTS + entries as usize * slot_words
}

/// The words of a ring, as one side sees them.
#[derive(Debug)]
struct Memory<M, const N: usize> {
    words: M,
    entries: u32,
}

impl<W: Word, M: Deref<Target = [W]>, const N: usize> Memory<M, N> {
    /// `None` when there are too few words, or `entries` is no power of two.
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

    /// Sends for `count` slots.
    #[inline]
    fn fetch(&self, index: u64, count: u32, for_writing: bool) {
        for ahead in (0..u64::from(count)).step_by((LINE / N).max(1)) {
            let slot = self.slot(index.wrapping_add(ahead));
            for word in slot.iter().step_by(LINE) {
                word.fetch(for_writing);
            }
        }
    }

    /// `ahead - behind`, where both are indices of the ring; `None` when they cannot be.
    #[inline]
    fn distance(&self, ahead: u64, behind: u64) -> Option<u32> {
        let distance = ahead.wrapping_sub(behind);
        (distance <= u64::from(self.entries)).then_some(distance as u32)
    }

    /// What lies between the indices now: all that is in the ring, and what the consumer has taken since this began to look.
    fn between(&self) -> impl Iterator<Item = [u64; N]> + '_ {
        let consumer = self.words[CONSUMER].load(Acquire);
        let producer = self.words[PRODUCER].load(Acquire);
        let waiting = self.distance(producer, consumer).unwrap_or(0);
        (0..u64::from(waiting)).map(move |i| self.read(consumer.wrapping_add(i)))
    }
}

/// The end that puts descriptors of `N` words in. There must be one of a ring.
#[derive(Debug)]
pub struct Producer<M, const N: usize> {
    memory: Memory<M, N>,
    /// Where the next write goes.
    next: u64,
    /// The shared index: what lies between it and `next` waits for `publish`.
    published: u64,
    /// Slots from `next` on that the consumer is known to have left.
    free: u32,
}

impl<W: Word, M: Deref<Target = [W]>, const N: usize> Producer<M, N> {
    /// The producer's end, going on where a predecessor ended. `None` when the words hold no ring of that size.
    pub fn new(words: M, entries: u32) -> Option<Self> {
        let memory = Memory::new(words, entries)?;
        let next = memory.words[PRODUCER].load(Relaxed);
        Some(Self {
            memory,
            next,
            published: next,
            free: 0,
        })
    }

    /// How many of `wanted` slots may be written.
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

    /// Writes the next reserved slot; the consumer sees it after [`Self::publish`]. Nothing is written where nothing was reserved.
    #[inline]
    pub fn write(&mut self, descriptor: &[u64; N]) {
        debug_assert!(self.free > 0, "a slot was written that was not reserved");
        let Some(free) = self.free.checked_sub(1) else {
            return;
        };
        self.free = free;
        for (word, value) in self.memory.slot(self.next).iter().zip(descriptor) {
            word.store(*value, Relaxed);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the consumer everything written.
    #[inline]
    pub fn publish(&mut self) {
        self.memory.words[PRODUCER].store(self.next, Release);
        self.published = self.next;
    }

    /// Whether something is written that is not published.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.next != self.published
    }

    /// Whether the consumer sleeps, or is about to, and must be woken. To be asked after [`Self::publish`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        W::full_fence();
        self.memory.words[ASLEEP].load(Relaxed) != 0
    }

    /// Puts in and publishes as many as there is room for; returns how many.
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

    /// At least what the consumer has not taken yet, of what is published.
    pub fn entries(&self) -> impl Iterator<Item = [u64; N]> + '_ {
        self.memory.between()
    }
}

/// The end that takes descriptors out. There must be one of a ring.
#[derive(Debug)]
pub struct Consumer<M, const N: usize> {
    memory: Memory<M, N>,
    /// What is read next; ahead of the shared index until `release`.
    next: u64,
    /// Descriptors from `next` on that are known to be there.
    known: u32,
}

impl<W: Word, M: Deref<Target = [W]>, const N: usize> Consumer<M, N> {
    /// The consumer's end, going on where a predecessor ended. `None` when the words hold no ring of that size.
    pub fn new(words: M, entries: u32) -> Option<Self> {
        let memory = Memory::new(words, entries)?;
        let next = memory.words[CONSUMER].load(Relaxed);
        let consumer = Self {
            memory,
            next,
            known: 0,
        };
        consumer.disarm();
        Some(consumer)
    }

    /// How many descriptors, at most `wanted`, may be read.
    #[inline]
    pub fn peek(&mut self, wanted: u32) -> u32 {
        if self.known < wanted {
            self.known = self.waiting();
        }
        let promised = self.known.min(wanted);
        self.memory.fetch(self.next, promised, false);
        promised
    }

    /// The next descriptor that [`Self::peek`] has promised; zeros where it has promised none.
    #[inline]
    pub fn read(&mut self) -> [u64; N] {
        debug_assert!(self.known > 0, "a slot was read that was not there");
        let Some(known) = self.known.checked_sub(1) else {
            return [0; N];
        };
        self.known = known;
        let descriptor = self.memory.read(self.next);
        self.next = self.next.wrapping_add(1);
        descriptor
    }

    /// Gives the slots of all that was read back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.memory.words[CONSUMER].store(self.next, Release);
    }

    /// Takes out as many as there are, at most as `descriptors` holds; returns how many.
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

    /// Descriptors that may be read now.
    #[inline]
    pub fn waiting(&self) -> u32 {
        let producer = self.memory.words[PRODUCER].load(Acquire);
        self.memory.distance(producer, self.next).unwrap_or(0)
    }

    /// Announces that this side is about to sleep. Returns whether it may: not when a descriptor has come in meanwhile.
    pub fn arm(&self) -> bool {
        self.memory.words[ASLEEP].store(1, Relaxed);
        W::full_fence();
        self.waiting() == 0
    }

    /// This side is awake; the producer need not wake it.
    pub fn disarm(&self) {
        self.memory.words[ASLEEP].store(0, Relaxed);
    }
}

/// Looks at a ring without taking part in it.
#[derive(Debug)]
pub struct Observer<M>(M, u32);

impl<W: Word, M: Deref<Target = [W]>> Observer<M> {
    /// Looks at the ring in these words; `None` when they hold none of that size.
    pub fn new(words: M, entries: u32) -> Option<Self> {
        (words.len() >= SLOTS).then_some(Self(words, entries))
    }

    /// Entries it can hold.
    pub fn capacity(&self) -> u32 {
        self.1
    }

    /// Descriptors that were put in since the ring was made.
    pub fn enqueued(&self) -> u64 {
        self.0[PRODUCER].load(Acquire)
    }

    /// Descriptors that were taken out since the ring was made.
    pub fn dequeued(&self) -> u64 {
        self.0[CONSUMER].load(Acquire)
    }

    /// Descriptors in the ring: exact while one side rests, else as many as there were at some time during the call or a few more.
    pub fn occupancy(&self) -> u32 {
        // In this order: the consumer never is ahead of the producer, so neither is what was read of it before.
        let dequeued = self.dequeued();
        let occupancy = self.enqueued().wrapping_sub(dequeued);
        occupancy.min(self.1.into()) as u32
    }
}
