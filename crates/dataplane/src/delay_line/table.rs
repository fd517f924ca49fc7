//! The table of directions, in a shared file: profiles, which the agent writes, and counters, which
//! the worker writes.
//!
//! ```text
//! header     64 words: counters of the whole line
//! lateness   8 words (sum, complement of the minimum, maximum), then 1024 words of the histogram
//! directions 4095 blocks of 32 words: profile, counters
//! ```
//!
//! Words have 64 bits. Each word has one writer. The generation of a profile is odd while the agent
//! writes the profile. So a reader knows whether it has read one whole profile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};
use myelin_packet::link_model::LinkProfile;
use myelin_packet::loss_model::Loss;
use myelin_packet::sojourn::{self, Histogram};

use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file, file_len};
use crate::stats::{add, get, raise, read_all};

/// Largest number of a direction: the largest VLAN identifier of a tag. The smallest one is 1.
pub const MAX_DIRECTION: u16 = 4094;
/// Number of blocks. Block 0 is unused.
pub(super) const DIRECTIONS: usize = MAX_DIRECTION as usize + 1;

const HEADER_WORDS: usize = 64;
const LATENESS: usize = HEADER_WORDS;
const SUM: usize = LATENESS;
/// The complement of the minimum, so that zero means no packet.
const NOT_MIN: usize = LATENESS + 1;
const MAX: usize = LATENESS + 2;
const BUCKETS: usize = LATENESS + 8;
const FIRST_BLOCK: usize = BUCKETS + sojourn::BUCKETS;
const BLOCK_WORDS: usize = 32;
const WORDS: usize = FIRST_BLOCK + DIRECTIONS * BLOCK_WORDS;
const FILE_LEN: usize = WORDS * size_of::<u64>();

/// Words of a profile. Behind the generation: whether the direction exists, then [`ProfileWords`].
const GENERATION: usize = 0;
const EXISTS: usize = 1;
const PROFILE: usize = 2;
/// First word of the counters.
const COUNTERS: usize = 16;

/// A profile as words. Zero stands for `None`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProfileWords {
    seed: u64,
    delay_ns: u64,
    jitter_ns: u64,
    may_reorder: u64,
    rate_bps: u64,
    queue_ns: u64,
    loss_ppm: u64,
    burst: u64,
}

/// Counters of the whole line.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(super) enum Counter {
    Waiting,
    MostWaiting,
    Untagged,
    Unknown,
    Invalid,
    FreeFrames,
    Sleeps,
    Kicks,
}

/// Counters of a direction: their word, in the order of [`DirectionStats`].
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(super) enum DirectionCounter {
    Arrived,
    ArrivedBytes,
    Left,
    LeftBytes,
    QueueDrops,
    Lost,
    MemoryDrops,
    TransmitDrops,
    Died,
    Waiting,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HeaderWords {
    waiting: u64,
    most_waiting: u64,
    untagged: u64,
    unknown: u64,
    invalid: u64,
    free_frames: u64,
    sleeps: u64,
    kicks: u64,
}

/// Counters of one direction. `arrived` is the sum of `left`, all drops, `lost`, `died` and
/// `waiting`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DirectionStats {
    /// Packets that arrived.
    pub arrived: u64,
    /// Bytes of these packets, without the tag of the direction.
    pub arrived_bytes: u64,
    /// Packets that left.
    pub left: u64,
    /// Bytes of these packets.
    pub left_bytes: u64,
    /// Packets that found the queue of the link full.
    pub queue_drops: u64,
    /// Packets that the link lost.
    pub lost: u64,
    /// Packets that found the packet memory of the line full.
    pub memory_drops: u64,
    /// Packets that found the transmit ring of the line full.
    pub transmit_drops: u64,
    /// Packets that were waiting when the worker died.
    pub died: u64,
    /// Packets that wait now.
    pub waiting: u64,
}

/// Counters of a whole delay line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayLineStats {
    /// Packets that wait now.
    pub waiting: u64,
    /// Most packets that waited at the same time.
    pub most_waiting: u64,
    /// Dropped frames without the tag of a direction.
    pub untagged: u64,
    /// Dropped frames of a direction that does not exist.
    pub unknown: u64,
    /// Descriptors of the kernel that named no frame of the line.
    pub invalid: u64,
    /// Frames without a packet, outside the rings.
    pub free_frames: u64,
    /// Sleeps of the worker.
    pub sleeps: u64,
    /// System calls that transmitted packets.
    pub kicks: u64,
    /// The time from a packet's departure after the model until the worker passed the packet to
    /// the kernel.
    pub lateness: Histogram,
}

/// The agent's view of the table. Any thread may use it at any time, without the worker.
#[derive(Debug)]
pub struct DelayTable {
    file: TableFile,
    /// Serializes the writers of profiles.
    writing: Mutex<()>,
}

impl DelayTable {
    pub(super) fn create() -> Result<Self, Error> {
        let fd = anonymous_file("myelin-delay", FILE_LEN).map_err(memory)?;
        Ok(Self {
            file: TableFile::open(fd)?,
            writing: Mutex::default(),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }

    /// Makes a direction, or changes its profile from the next packet on. `seed` selects the random
    /// numbers. Another seed makes a new direction, which starts idle.
    ///
    /// # Errors
    /// The number is not in 1 to [`MAX_DIRECTION`].
    pub fn set_profile(
        &self,
        direction: u16,
        profile: &LinkProfile,
        seed: u64,
    ) -> Result<(), Error> {
        let words = ProfileWords {
            seed,
            delay_ns: profile.delay_ns,
            jitter_ns: profile.jitter_ns,
            may_reorder: profile.may_reorder.into(),
            rate_bps: profile.rate_bps.map_or(0, |rate| rate.max(1)),
            queue_ns: profile.queue_ns,
            loss_ppm: profile.loss.ppm.into(),
            burst: profile.loss.burst.map_or(0, |burst| burst.max(1).into()),
        };
        self.write_profile(direction, Some(words))
    }

    /// Removes a direction. The worker drops later packets of the direction. Waiting packets still
    /// leave. The counters continue in the next direction of the same number.
    ///
    /// # Errors
    /// The number is not in 1 to [`MAX_DIRECTION`].
    pub fn remove(&self, direction: u16) -> Result<(), Error> {
        self.write_profile(direction, None)
    }

    fn write_profile(&self, direction: u16, words: Option<ProfileWords>) -> Result<(), Error> {
        let block = self.file.block(direction).ok_or(Error::Parameter {
            what: "number of a direction of a delay line",
            value: direction.into(),
            expected: "1 to 4094",
        })?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = get(&block[GENERATION]) & !1;
        block[GENERATION].store(generation + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        block[EXISTS].store(words.is_some().into(), Ordering::Relaxed);
        let words = words.unwrap_or(Zeroable::zeroed());
        let values: &[u64] = bytemuck::cast_slice(std::slice::from_ref(&words));
        for (word, value) in block[PROFILE..].iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
        block[GENERATION].store(generation + 2, Ordering::Release);
        Ok(())
    }

    /// Returns the counters of a direction; `None` if the number is not in 1 to [`MAX_DIRECTION`].
    pub fn direction(&self, direction: u16) -> Option<DirectionStats> {
        let block = self.file.block(direction)?;
        Some(read_all(&block[COUNTERS..]))
    }

    /// Returns the counters of the whole line.
    pub fn line(&self) -> DelayLineStats {
        let cells = &self.file.cells;
        let header: HeaderWords = read_all(cells);
        let counts: Vec<u64> = cells[BUCKETS..FIRST_BLOCK].iter().map(get).collect();
        let (sum, min, max) = (get(&cells[SUM]), !get(&cells[NOT_MIN]), get(&cells[MAX]));
        DelayLineStats {
            waiting: header.waiting,
            most_waiting: header.most_waiting,
            untagged: header.untagged,
            unknown: header.unknown,
            invalid: header.invalid,
            free_frames: header.free_frames,
            sleeps: header.sleeps,
            kicks: header.kicks,
            lateness: Histogram::from_parts(&counts, sum, min, max),
        }
    }
}

/// The mapped file, in the agent and in the worker.
#[derive(Debug)]
struct TableFile {
    fd: OwnedFd,
    cells: SharedAtomics<AtomicU64>,
}

impl TableFile {
    fn open(fd: OwnedFd) -> Result<Self, Error> {
        let cells = file_len(fd.as_fd()).and_then(|len| {
            if len < FILE_LEN {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mapping = Arc::new(Mapping::new(fd.as_fd(), 0, FILE_LEN, false)?);
            SharedAtomics::new(&mapping, 0, WORDS).ok_or(io::ErrorKind::UnexpectedEof.into())
        });
        let cells = cells.map_err(memory)?;
        Ok(Self { fd, cells })
    }

    #[inline]
    fn block(&self, direction: u16) -> Option<&[AtomicU64; BLOCK_WORDS]> {
        let number = usize::from(direction);
        let first = FIRST_BLOCK + number * BLOCK_WORDS;
        let block = (1..DIRECTIONS).contains(&number);
        block.then(|| self.cells[first..].first_chunk()).flatten()
    }
}

/// A profile that the worker read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadProfile {
    /// The profile and the seed; `None` if the direction does not exist.
    pub(super) profile: Option<(LinkProfile, u64)>,
    pub(super) generation: u64,
}

/// The worker's view of the table.
#[derive(Debug)]
pub(super) struct LineTable(TableFile);

impl LineTable {
    /// Opens the table in a worker. Packets that waited in a dead predecessor count as died.
    pub(super) fn open(fd: OwnedFd) -> Result<Self, Error> {
        let table = Self(TableFile::open(fd)?);
        table.0.cells.populate();
        table.set(Counter::Waiting, 0);
        for direction in 1..=MAX_DIRECTION {
            let waiting = table.waiting(direction);
            if waiting > 0 {
                table.count(direction, DirectionCounter::Died, waiting);
                table.count(direction, DirectionCounter::Waiting, waiting.wrapping_neg());
            }
        }
        Ok(table)
    }

    fn waiting(&self, direction: u16) -> u64 {
        let block = self.0.block(direction);
        block.map_or(0, |block| {
            get(&block[COUNTERS + DirectionCounter::Waiting as usize])
        })
    }

    /// Returns the generation of a profile. It changes with the profile.
    #[inline]
    pub(super) fn generation(&self, direction: u16) -> u64 {
        let block = self.0.block(direction);
        block.map_or(0, |block| block[GENERATION].load(Ordering::Acquire))
    }

    /// Reads a profile; `None` while the agent writes it.
    #[cold]
    pub(super) fn read_profile(&self, direction: u16) -> Option<ReadProfile> {
        let block = self.0.block(direction)?;
        let generation = block[GENERATION].load(Ordering::Acquire);
        let exists = get(&block[EXISTS]) != 0;
        let words: ProfileWords = read_all(&block[PROFILE..]);
        fence(Ordering::Acquire);
        let is_whole = generation & 1 == 0 && get(&block[GENERATION]) == generation;
        let loss = Loss {
            ppm: u32::try_from(words.loss_ppm).unwrap_or(u32::MAX),
            burst: u32::try_from(words.burst).ok().filter(|burst| *burst > 0),
        };
        let profile = LinkProfile {
            delay_ns: words.delay_ns,
            jitter_ns: words.jitter_ns,
            may_reorder: words.may_reorder != 0,
            rate_bps: (words.rate_bps > 0).then_some(words.rate_bps),
            queue_ns: words.queue_ns,
            loss,
        };
        is_whole.then_some(ReadProfile {
            profile: exists.then_some((profile, words.seed)),
            generation,
        })
    }

    #[inline]
    pub(super) fn count(&self, direction: u16, counter: DirectionCounter, n: u64) {
        if let Some(block) = self.0.block(direction) {
            add(&block[COUNTERS + counter as usize], n);
        }
    }

    #[inline]
    pub(super) fn add(&self, counter: Counter, n: u64) {
        add(&self.0.cells[counter as usize], n);
    }

    #[inline]
    pub(super) fn set(&self, counter: Counter, value: u64) {
        self.0.cells[counter as usize].store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn raise(&self, counter: Counter, value: u64) {
        raise(&self.0.cells[counter as usize], value);
    }

    /// Records the lateness of a packet.
    #[inline]
    pub(super) fn record_lateness(&self, ns: u64) {
        let cells = &self.0.cells;
        add(&cells[BUCKETS + sojourn::index(ns)], 1);
        add(&cells[SUM], ns);
        raise(&cells[NOT_MIN], !ns);
        raise(&cells[MAX], ns);
    }
}

fn memory(source: io::Error) -> Error {
    Error::Memory {
        what: "the table of a delay line",
        bytes: FILE_LEN,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(table: &DelayTable) -> LineTable {
        LineTable::open(table.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn the_worker_reads_what_the_agent_wrote() {
        let table = DelayTable::create().unwrap();
        let worker = open(&table);
        let none = worker.read_profile(9).unwrap();
        assert_eq!((none.profile, none.generation), (None, 0));
        let profile = LinkProfile {
            delay_ns: 1,
            jitter_ns: 2,
            may_reorder: true,
            rate_bps: Some(3),
            queue_ns: 4,
            loss: Loss {
                ppm: 5,
                burst: Some(6),
            },
        };
        for profile in [profile, LinkProfile::default()] {
            let before = worker.generation(9);
            table.set_profile(9, &profile, 7).unwrap();
            let read = worker.read_profile(9).unwrap();
            assert_eq!(read.profile, Some((profile, 7)));
            assert_eq!(read.generation, worker.generation(9));
            assert_ne!(read.generation, before);
        }
        table.remove(9).unwrap();
        assert_eq!(worker.read_profile(9).unwrap().profile, None);
    }

    #[test]
    fn numbers_outside_the_table_are_refused() {
        let table = DelayTable::create().unwrap();
        for number in [0, MAX_DIRECTION + 1, u16::MAX] {
            let refused = table.set_profile(number, &LinkProfile::default(), 0);
            assert!(refused.unwrap_err().to_string().contains("1 to 4094"));
            assert!(table.remove(number).is_err());
            assert_eq!(table.direction(number), None);
            assert_eq!(open(&table).read_profile(number), None);
        }
        let short = anonymous_file("myelin-test", 8).unwrap();
        assert!(LineTable::open(short).is_err());
    }

    #[test]
    fn a_profile_is_read_whole_while_the_agent_writes() {
        let table = DelayTable::create().unwrap();
        let worker = open(&table);
        let profile = |n| LinkProfile {
            delay_ns: n,
            jitter_ns: n,
            queue_ns: n,
            ..LinkProfile::default()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..200_000 {
                    table.set_profile(1, &profile(n), n).unwrap();
                }
            });
            let mut whole = 0;
            while worker.generation(1) < 2 * 199_999 {
                let Some((read, seed)) = worker.read_profile(1).and_then(|read| read.profile)
                else {
                    continue;
                };
                whole += 1;
                assert_eq!(read, profile(seed));
            }
            assert!(whole > 0);
        });
    }

    #[test]
    fn packets_of_a_dead_worker_count_as_died() {
        let table = DelayTable::create().unwrap();
        let worker = open(&table);
        worker.count(3, DirectionCounter::Arrived, 5);
        worker.count(3, DirectionCounter::Waiting, 2);
        worker.set(Counter::Waiting, 2);
        worker.record_lateness(70);
        drop(worker);
        open(&table);
        let stats = table.direction(3).unwrap();
        assert_eq!((stats.arrived, stats.waiting, stats.died), (5, 0, 2));
        let line = table.line();
        assert_eq!((line.waiting, line.lateness.count()), (0, 1));
    }
}
