//! A ring in an anonymous file, for other processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{
    CONSUMER, Consumer, ENTRIES, MAGIC, MAX_ENTRIES, MAX_SLOT_WORDS, Observer, Producer,
    SLOT_WORDS, Word, len_of,
};
use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file, file_len, prefetch};

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn fetch(&self, for_writing: bool) {
        prefetch(self, for_writing);
    }
}

/// The words of a mapped file.
#[derive(Debug)]
pub struct SharedWords(SharedAtomics<AtomicU64>);

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// The producer's end of a ring in a file.
pub type SharedProducer<const N: usize> = Producer<SharedWords, N>;
/// The consumer's end of a ring in a file.
pub type SharedConsumer<const N: usize> = Consumer<SharedWords, N>;
/// An observer of a ring in a file.
pub type SharedObserver = Observer<SharedWords>;

/// The file of a ring. Open each end only once.
#[derive(Debug)]
pub struct RingFile {
    fd: OwnedFd,
    entries: u32,
    slot_words: usize,
}

impl RingFile {
    /// Makes an empty ring: `entries` slots (a power of two) of `slot_words` 64-bit words.
    pub fn create(entries: u32, slot_words: usize) -> Result<Self, Error> {
        check(entries, slot_words)?;
        let len = len_of(entries, slot_words) * size_of::<u64>();
        let fd = anonymous_file("myelin-ring", len).map_err(memory(len))?;
        let ring = Self {
            fd,
            entries,
            slot_words,
        };
        let words = ring.words()?;
        words[ENTRIES].store(entries.into(), Ordering::Relaxed);
        words[SLOT_WORDS].store(slot_words as u64, Ordering::Relaxed);
        words[0].store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// Opens the ring in a file that another process made.
    pub fn open(fd: OwnedFd) -> Result<Self, Error> {
        let found = file_len(fd.as_fd()).map_err(memory(0))?;
        let header = len_of(0, 0) * size_of::<u64>();
        let short = || memory(found)(io::ErrorKind::UnexpectedEof.into());
        if found < header {
            return Err(short());
        }
        let words = map(fd.as_fd(), header)?;
        let [magic, entries, slot_words] =
            [0, ENTRIES, SLOT_WORDS].map(|word| words[word].load(Ordering::Acquire));
        if magic != MAGIC {
            return Err(memory(found)(io::ErrorKind::InvalidData.into()));
        }
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        let slot_words = usize::try_from(slot_words).unwrap_or(usize::MAX);
        check(entries, slot_words)?;
        if found < len_of(entries, slot_words) * size_of::<u64>() {
            return Err(short());
        }
        Ok(Self {
            fd,
            entries,
            slot_words,
        })
    }

    /// Returns the capacity, descriptors.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens the producer's end.
    pub fn producer<const N: usize>(&self) -> Result<SharedProducer<N>, Error> {
        self.check_slot(N)?;
        Producer::new(self.words()?, self.entries).ok_or_else(|| self.mismatch())
    }

    /// Opens the consumer's end.
    pub fn consumer<const N: usize>(&self) -> Result<SharedConsumer<N>, Error> {
        self.check_slot(N)?;
        Consumer::new(self.words()?, self.entries).ok_or_else(|| self.mismatch())
    }

    /// Opens an observer.
    pub fn observer(&self) -> Result<SharedObserver, Error> {
        Observer::new(self.words()?, self.entries).ok_or_else(|| self.mismatch())
    }

    /// Advances the consumer's index over the first descriptors for which `taken` returns true. A
    /// dead consumer may have taken them without releasing their slots.
    pub(crate) fn skip<const N: usize>(
        &self,
        mut taken: impl FnMut([u64; N]) -> bool,
    ) -> Result<(), Error> {
        let mut consumer = self.consumer::<N>()?;
        for _ in 0..consumer.count_unread() {
            consumer.peek(1);
            let before = consumer.next;
            if !taken(consumer.read()) {
                consumer.next = before;
                break;
            }
        }
        self.words()?[CONSUMER].store(consumer.next, Ordering::Release);
        Ok(())
    }

    fn words(&self) -> Result<SharedWords, Error> {
        map(
            self.fd.as_fd(),
            len_of(self.entries, self.slot_words) * size_of::<u64>(),
        )
    }

    fn check_slot(&self, words: usize) -> Result<(), Error> {
        if words == self.slot_words {
            return Ok(());
        }
        Err(Error::Parameter {
            what: "slot of a ring, in words",
            value: words as u64,
            expected: "the slot size of the ring",
        })
    }

    fn mismatch(&self) -> Error {
        memory(self.entries as usize)(io::ErrorKind::InvalidData.into())
    }
}

fn check(entries: u32, slot_words: usize) -> Result<(), Error> {
    if !entries.is_power_of_two() || entries > MAX_ENTRIES {
        return Err(Error::Parameter {
            what: "length of a ring",
            value: entries.into(),
            expected: "a power of two, at most 1048576",
        });
    }
    if !(1..=MAX_SLOT_WORDS).contains(&slot_words) {
        return Err(Error::Parameter {
            what: "slot of a ring, in words",
            value: slot_words as u64,
            expected: "1 to 64",
        });
    }
    Ok(())
}

fn map(fd: BorrowedFd<'_>, len: usize) -> Result<SharedWords, Error> {
    let mapping = Mapping::new(fd, 0, len, true).map_err(memory(len))?;
    SharedAtomics::new(&Arc::new(mapping), 0, len / size_of::<u64>())
        .map(SharedWords)
        .ok_or_else(|| memory(len)(io::ErrorKind::InvalidData.into()))
}

fn memory(bytes: usize) -> impl Fn(io::Error) -> Error {
    move |source| Error::Memory {
        what: "descriptor ring",
        bytes,
        source,
    }
}
