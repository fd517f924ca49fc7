//! The four rings of an AF_XDP socket as safe types (`Documentation/networking/af_xdp.rst`). Each
//! has one producer and one consumer. One end belongs to the worker, the other to the kernel.
//!
//! A producer reserves, writes and submits. A consumer peeks, reads and releases. Each side
//! publishes its index once per batch, because every access to a shared index transfers a cache
//! line between cores.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::shm::Mapping;

/// An entry of the TX and RX rings: `struct xdp_desc`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// Byte offset of the packet in the UMEM.
    pub(crate) address: u64,
    /// Length of the packet, bytes.
    pub(crate) len: u32,
    /// Option bits, unused.
    pub(crate) options: u32,
}

/// An entry of a ring.
///
/// # Safety
/// Every bit pattern is a valid value.
pub(crate) unsafe trait Slot: Copy {}

// SAFETY: every bit pattern is a valid integer.
unsafe impl Slot for u64 {}
// SAFETY: the type consists of integers without padding (8 + 4 + 4 bytes).
unsafe impl Slot for Descriptor {}

/// Byte offsets of a ring's parts in its mapping (`XDP_MMAP_OFFSETS`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) producer: usize,
    pub(crate) consumer: usize,
    pub(crate) flags: usize,
    pub(crate) slots: usize,
}

impl Layout {
    /// Returns the length of the mapping of a ring with `entries`, bytes.
    pub(crate) fn len<T: Slot>(&self, entries: u32) -> usize {
        self.slots + entries as usize * size_of::<T>()
    }
}

/// The shared memory of one ring.
#[derive(Debug)]
struct RingMemory<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<T>,
    entries: u32,
    _mapping: Mapping,
}

// SAFETY: the value owns its mapping, which is Send. Only the one owner of this end of the ring
// writes slots, through `&mut`.
unsafe impl<T: Slot> Send for RingMemory<T> {}

impl<T: Slot> RingMemory<T> {
    /// Returns `None` if a part lies outside the mapping or is misaligned, or `entries` is no power
    /// of two.
    fn new(mapping: Mapping, layout: Layout, entries: u32) -> Option<Self> {
        let index_fits = |offset: usize| {
            offset.is_multiple_of(align_of::<AtomicU32>())
                && offset
                    .checked_add(size_of::<AtomicU32>())
                    .is_some_and(|end| end <= mapping.len())
        };
        let valid = entries.is_power_of_two()
            && layout.slots.is_multiple_of(align_of::<T>())
            && layout.len::<T>(entries) <= mapping.len()
            && [layout.producer, layout.consumer, layout.flags]
                .into_iter()
                .all(index_fits);
        if !valid {
            return None;
        }
        // SAFETY: every offset lies in the mapping, as checked above.
        let at = |offset| unsafe { mapping.start().add(offset) };
        Some(Self {
            producer: at(layout.producer).cast(),
            consumer: at(layout.consumer).cast(),
            flags: at(layout.flags).cast(),
            slots: at(layout.slots).cast(),
            entries,
            _mapping: mapping,
        })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned, in the mapping, which lives as long as `self`.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: aligned, in the mapping, which lives as long as `self`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: aligned, in the mapping, which lives as long as `self`.
        unsafe { self.flags.as_ref() }
    }

    #[inline]
    fn read(&self, index: u32) -> T {
        // SAFETY: the masked index is below `entries`, so the slot lies in the mapping. Every bit
        // pattern is a valid `T`.
        unsafe { self.slots.add((index & (self.entries - 1)) as usize).read() }
    }

    #[inline]
    fn write(&mut self, index: u32, value: T) {
        // SAFETY: the masked index is below `entries`, so the slot lies in the mapping. Only the
        // one owner of this end writes slots.
        unsafe {
            self.slots
                .add((index & (self.entries - 1)) as usize)
                .write(value);
        }
    }

    /// Returns the unread entries. The other side may change its index during the call.
    fn unread_entries(&self) -> impl Iterator<Item = T> + '_ {
        let consumer = self.consumer().load(Ordering::Acquire);
        let producer = self.producer().load(Ordering::Acquire);
        let count = producer.wrapping_sub(consumer).min(self.entries);
        (0..count).map(move |i| self.read(consumer.wrapping_add(i)))
    }
}

/// The worker's end of a ring that the kernel consumes: fill, TX.
#[derive(Debug)]
pub(crate) struct XskProducer<T> {
    memory: RingMemory<T>,
    /// Index of the next write.
    next: u32,
    /// The shared index. Entries from here to `next` wait for `submit`.
    submitted: u32,
    /// First index that must not be written: the last seen consumer index plus the ring size.
    limit: u32,
}

impl<T: Slot> XskProducer<T> {
    pub(crate) fn new(mapping: Mapping, layout: Layout, entries: u32) -> Option<Self> {
        let memory = RingMemory::new(mapping, layout, entries)?;
        let next = memory.producer().load(Ordering::Relaxed);
        let limit = memory
            .consumer()
            .load(Ordering::Acquire)
            .wrapping_add(entries);
        Some(Self {
            memory,
            next,
            submitted: next,
            limit,
        })
    }

    /// Returns how many slots the caller may write, at most `wanted`. Reads the kernel's index only
    /// if its last known value does not suffice.
    #[inline]
    pub(crate) fn reserve(&mut self, wanted: u32) -> u32 {
        if self.limit.wrapping_sub(self.next) < wanted {
            self.limit = self
                .memory
                .consumer()
                .load(Ordering::Acquire)
                .wrapping_add(self.memory.entries);
        }
        self.limit.wrapping_sub(self.next).min(wanted)
    }

    /// Writes the next reserved slot. The kernel sees the slot after [`Self::submit`].
    #[inline]
    pub(crate) fn write(&mut self, value: T) {
        debug_assert_ne!(
            self.next, self.limit,
            "the caller wrote a slot without a reservation"
        );
        self.memory.write(self.next, value);
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes all written entries to the kernel. Returns the index of the first entry.
    #[inline]
    pub(crate) fn submit(&mut self) -> u32 {
        self.memory.producer().store(self.next, Ordering::Release);
        std::mem::replace(&mut self.submitted, self.next)
    }

    /// Returns the index of the first entry that is not submitted.
    #[inline]
    pub(crate) fn submitted(&self) -> u32 {
        self.submitted
    }

    /// Returns the entries written from index `start` on, at most as many as the ring holds.
    #[inline]
    pub(crate) fn written_from(&self, start: u32) -> impl Iterator<Item = T> + '_ {
        (0..self.next.wrapping_sub(start)).map(move |i| self.memory.read(start.wrapping_add(i)))
    }

    /// Returns the number of entries that the kernel has not taken, including unsubmitted entries.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.next
            .wrapping_sub(self.memory.consumer().load(Ordering::Acquire))
    }

    /// Returns whether the kernel sleeps and needs a kick. Always true for TX in copy mode.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.memory.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Returns the entries that the kernel has not taken.
    pub(crate) fn entries(&self) -> impl Iterator<Item = T> + '_ {
        self.memory.unread_entries()
    }
}

/// The worker's end of a ring that the kernel produces: RX, completion.
#[derive(Debug)]
pub(crate) struct XskConsumer<T> {
    memory: RingMemory<T>,
    /// Index of the next read; ahead of the shared index until `release`.
    next: u32,
    /// The last seen producer index.
    limit: u32,
}

impl<T: Slot> XskConsumer<T> {
    pub(crate) fn new(mapping: Mapping, layout: Layout, entries: u32) -> Option<Self> {
        let memory = RingMemory::new(mapping, layout, entries)?;
        let next = memory.consumer().load(Ordering::Relaxed);
        Some(Self {
            limit: next,
            memory,
            next,
        })
    }

    /// Returns how many entries the caller may read, at most `wanted`. Reads the kernel's index
    /// only if its last known value does not suffice.
    #[inline]
    pub(crate) fn peek(&mut self, wanted: u32) -> u32 {
        if self.limit.wrapping_sub(self.next) < wanted {
            self.limit = self.memory.producer().load(Ordering::Acquire);
        }
        self.limit.wrapping_sub(self.next).min(wanted)
    }

    /// Returns the number of unread entries, from the last known value of the kernel's index.
    #[inline]
    pub(crate) fn known(&self) -> u32 {
        self.limit.wrapping_sub(self.next)
    }

    /// Reads the next peeked entry.
    #[inline]
    pub(crate) fn read(&mut self) -> T {
        debug_assert_ne!(
            self.next, self.limit,
            "the caller read an entry without a peek"
        );
        let value = self.memory.read(self.next);
        self.next = self.next.wrapping_add(1);
        value
    }

    /// Returns the slots of all read entries to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.memory.consumer().store(self.next, Ordering::Release);
    }

    /// Returns the number of unread entries.
    pub(crate) fn count_unread(&self) -> u32 {
        self.memory
            .producer()
            .load(Ordering::Acquire)
            .wrapping_sub(self.next)
    }

    /// Returns the indices in shared memory: of the kernel, and of the receiver.
    #[inline]
    pub(crate) fn shared_indices(&self) -> (u32, u32) {
        let read = self.memory.consumer().load(Ordering::Acquire);
        (self.memory.producer().load(Ordering::Acquire), read)
    }

    /// Returns the entries that this end has not released.
    pub(crate) fn entries(&self) -> impl Iterator<Item = T> + '_ {
        self.memory.unread_entries()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::shm::anonymous_file;

    const LAYOUT: Layout = Layout {
        producer: 0,
        consumer: 64,
        flags: 128,
        slots: 192,
    };

    /// Returns both ends of one ring, whose indices start at `start`.
    fn make_both_ends(entries: u32, start: u32) -> (XskProducer<u64>, XskConsumer<u64>) {
        let len = LAYOUT.len::<u64>(entries);
        let fd = anonymous_file("myelin-test", len).unwrap();
        let map = || Mapping::new(fd.as_fd(), 0, len, false).unwrap();
        let indices = RingMemory::<u64>::new(map(), LAYOUT, entries).unwrap();
        indices.producer().store(start, Ordering::Relaxed);
        indices.consumer().store(start, Ordering::Relaxed);
        (
            XskProducer::new(map(), LAYOUT, entries).unwrap(),
            XskConsumer::new(map(), LAYOUT, entries).unwrap(),
        )
    }

    proptest! {
        /// Compares with a plain queue across the wrap of the 32-bit indices. No entry is visible
        /// before it is submitted.
        #[test]
        fn a_ring_is_a_bounded_queue(
            start in prop_oneof![Just(0), Just(u32::MAX - 5), any::<u32>()],
            steps in prop::collection::vec((0_u32..12, 0_u32..12), 1..60),
        ) {
            let (mut producer, mut consumer) = make_both_ends(8, start);
            let mut model = VecDeque::new();
            let mut value = 0_u64;
            for (write, read) in steps {
                let granted = producer.reserve(write);
                prop_assert_eq!(granted, write.min(8 - model.len() as u32));
                for _ in 0..granted {
                    value += 1;
                    producer.write(value);
                }
                prop_assert_eq!(consumer.count_unread() as usize, model.len());
                let written: Vec<u64> = producer.written_from(producer.submitted()).collect();
                prop_assert_eq!(&written, &(value - u64::from(granted) + 1..=value).collect::<Vec<_>>());
                let start = producer.submit();
                prop_assert_eq!(&producer.written_from(start).collect::<Vec<_>>(), &written);
                model.extend(value - u64::from(granted) + 1..=value);
                prop_assert_eq!(producer.outstanding() as usize, model.len());
                let seen: Vec<u64> = consumer.entries().collect();
                prop_assert_eq!(&seen, &Vec::from(model.clone()));
                let granted = consumer.peek(read);
                prop_assert_eq!(granted, read.min(model.len() as u32));
                for _ in 0..granted {
                    prop_assert_eq!(Some(consumer.read()), model.pop_front());
                }
                consumer.release();
            }
        }
    }

    #[test]
    fn entries_cross_threads_complete_and_in_order() {
        pass_entries(10_000);
    }

    #[test]
    #[ignore = "thorough: passes 200000 entries between two threads"]
    fn many_entries_cross_threads_complete_and_in_order() {
        pass_entries(200_000);
    }

    fn pass_entries(count: u64) {
        let (mut producer, mut consumer) = make_both_ends(64, u32::MAX - 1000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < count {
                    for _ in 0..producer.reserve(16) {
                        producer.write(next);
                        next += 1;
                    }
                    producer.submit();
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < count {
                for _ in 0..consumer.peek(32) {
                    assert_eq!(consumer.read(), expected);
                    expected += 1;
                }
                consumer.release();
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_new_owner_continues_at_the_last_published_index() {
        let len = LAYOUT.len::<u64>(4);
        let fd = anonymous_file("myelin-test", len).unwrap();
        let map = || Mapping::new(fd.as_fd(), 0, len, false).unwrap();
        let mut dead = XskProducer::<u64>::new(map(), LAYOUT, 4).unwrap();
        assert_eq!(dead.reserve(3), 3);
        dead.write(10);
        dead.write(11);
        dead.submit();
        dead.write(99); // never submitted
        drop(dead);
        let mut successor = XskProducer::<u64>::new(map(), LAYOUT, 4).unwrap();
        assert_eq!(successor.outstanding(), 2);
        assert_eq!(successor.reserve(4), 2);
        successor.write(12);
        successor.submit();
        assert_eq!(successor.entries().collect::<Vec<_>>(), [10, 11, 12]);
    }

    #[test]
    fn an_invalid_layout_is_refused() {
        let fd = anonymous_file("myelin-test", 4096).unwrap();
        let map = || Mapping::new(fd.as_fd(), 0, 4096, false).unwrap();
        assert!(XskConsumer::<Descriptor>::new(map(), LAYOUT, 128).is_some());
        assert!(
            XskConsumer::<Descriptor>::new(map(), LAYOUT, 256).is_none(),
            "too long"
        );
        assert!(
            XskConsumer::<Descriptor>::new(map(), LAYOUT, 100).is_none(),
            "no power of two"
        );
        let misaligned = Layout {
            producer: 2,
            ..LAYOUT
        };
        assert!(XskProducer::<u64>::new(map(), misaligned, 4).is_none());
        let outside = Layout {
            flags: 4096,
            ..LAYOUT
        };
        assert!(XskProducer::<u64>::new(map(), outside, 4).is_none());
    }
}
