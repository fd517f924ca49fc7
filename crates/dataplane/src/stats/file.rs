//! The statistics file: its layout, its writers and its readers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use myelin_packet::HopCounters;
use myelin_packet::sojourn::{self, Histogram};

use super::types::{ChainStats, DoorStats, WorkerStats};
use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file, file_len};

/// Most functions of one chain.
pub(crate) const MAX_POSITIONS: usize = 32;

/// Most chain generations of one worker. The file is sparse: unused blocks take no memory.
pub(super) const MAX_BLOCKS: usize = 4096;

const HEADER_WORDS: usize = 64;
const POSITION_WORDS: usize = 8;
const POSITIONS: usize = 8;
const SOJOURN: usize = POSITIONS + MAX_POSITIONS * POSITION_WORDS;
const BUCKETS: usize = SOJOURN + 8;
const SHAPER: usize = BUCKETS + sojourn::BUCKETS;
const BLOCK_WORDS: usize = SHAPER + 16;
const DOOR_WORDS: usize = 8;
const FIRST_BLOCK: usize = HEADER_WORDS + MAX_BLOCKS * DOOR_WORDS;
const FILE_LEN: usize = (FIRST_BLOCK + MAX_BLOCKS * BLOCK_WORDS) * size_of::<u64>();

/// Counters of the whole worker: their word in the header, in the order of [`WorkerStats`].
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Counter {
    Received,
    Transmitted,
    UnknownChain,
    Malformed,
    NoFrame,
    TransmitDrops,
    Kicks,
    Sleeps,
    FreeFrames,
    Invalid,
    Fragments,
}

/// Words of a block before the positions.
const TRANSMITTED: usize = 0;
const TRANSMIT_DROPS: usize = 1;

/// Words of a position.
const IN: usize = 0;
const DROPS: usize = 1;
const EMITTED: usize = 2;
const SAMPLED_NS: usize = 3;
const SAMPLES: usize = 4;
/// At the first position of a segment: packets of batches that passed all its functions without a
/// drop or an emission. Such packets count as input of each function. Most packets are such
/// packets, so the loop counts them with one addition for the whole segment.
const SEGMENT_PACKETS: usize = 5;
/// At the first position of a segment: its number of functions.
const SEGMENT_LEN: usize = 6;

/// Words of a door row, in the order of [`DoorStats`].
const PACKETS: usize = 0;
const BYTES: usize = 1;
const LAST_NS: usize = 2;
const POLICED: usize = 3;
const POLICED_BYTES: usize = 4;
const LOST: usize = 5;
const MISSED: usize = 6;

/// Words of the sojourn summary.
const SUM: usize = 0;
/// The complement of the minimum, so that zero means no packet.
const NOT_MIN: usize = 1;
const MAX: usize = 2;

/// Words of the shaper, in the order of [`ShaperStats`](super::ShaperStats).
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum ShaperCounter {
    /// Packets that had to wait.
    Delayed,
    /// Dropped packets: the queue was full, or no frame was free.
    Full,
    /// Dropped packets that would have waited too long.
    Late,
    /// Dropped packets larger than the burst.
    Big,
    /// Packets that were waiting when the worker died or the chain was removed.
    Lost,
    /// Packets that wait now.
    Waiting,
    /// Most packets that waited at the same time.
    Most,
    /// Total waiting time of the packets that left, ns.
    WaitedNs,
}

/// The mapped file, in the agent and in the worker.
#[derive(Debug)]
pub(crate) struct StatsFile {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
}

impl StatsFile {
    /// Makes a file of zeros. A page takes memory only after a write.
    pub(super) fn create() -> Result<Self, Error> {
        Self::open(anonymous_file("myelin-stats", FILE_LEN).map_err(memory)?)
    }

    pub(crate) fn open(fd: OwnedFd) -> Result<Self, Error> {
        let mapping = file_len(fd.as_fd())
            .and_then(|len| {
                if len < FILE_LEN {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Mapping::new(fd.as_fd(), 0, FILE_LEN, false)
            })
            .map(Arc::new)
            .map_err(memory)?;
        Ok(Self { fd, mapping })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the counters of the whole worker, for its loop.
    pub(crate) fn worker_counters(&self) -> Result<WorkerCounters, Error> {
        self.header().map(populated).map(WorkerCounters)
    }

    /// Returns the counters of a chain, for the loop.
    pub(crate) fn chain_counters(&self, block: u32) -> Result<ChainCounters, Error> {
        self.block(block).map(populated).map(ChainCounters)
    }

    /// Returns the counters of a front door, for the loop.
    pub(crate) fn door_counters(&self, row: u32) -> Result<DoorCounters, Error> {
        self.door(row).map(populated).map(DoorCounters)
    }

    pub(super) fn clear_block(&self, block: u32) {
        self.block(block).iter().for_each(clear);
    }

    pub(super) fn clear_door(&self, row: u32) {
        self.door(row).iter().for_each(clear);
    }

    pub(super) fn read_header(&self) -> Option<WorkerStats> {
        self.header().ok().map(|words| read_all(&words))
    }

    pub(super) fn read_door(&self, row: u32) -> Option<DoorStats> {
        self.door(row).ok().map(|words| read_all(&words))
    }

    pub(super) fn read_block(&self, block: u32, positions: usize) -> Option<ChainStats> {
        let words = self.block(block).ok()?;
        let read = |word: usize| get(&words[word]);
        let mut positions: Vec<_> = (0..positions)
            .map(|position| {
                let at = POSITIONS + position * POSITION_WORDS;
                HopCounters {
                    packets_in: read(at + IN),
                    drops: read(at + DROPS),
                    emitted: read(at + EMITTED),
                    sampled_ns: read(at + SAMPLED_NS),
                    samples: read(at + SAMPLES),
                    ..HopCounters::default()
                }
            })
            .collect();
        for first in 0..positions.len() {
            let at = POSITIONS + first * POSITION_WORDS;
            let (packets, functions) =
                (read(at + SEGMENT_PACKETS), read(at + SEGMENT_LEN) as usize);
            for position in positions.iter_mut().skip(first).take(functions) {
                position.packets_in += packets;
            }
        }
        let counts: Vec<u64> = (0..sojourn::BUCKETS).map(|i| read(BUCKETS + i)).collect();
        Some(ChainStats {
            positions,
            transmitted: read(TRANSMITTED),
            transmit_drops: read(TRANSMIT_DROPS),
            sojourn: Histogram::from_parts(
                &counts,
                read(SOJOURN + SUM),
                !read(SOJOURN + NOT_MIN),
                read(SOJOURN + MAX),
            ),
            shaper: read_all(&words[SHAPER..]),
        })
    }

    fn header(&self) -> Result<SharedAtomics<AtomicU64>, Error> {
        cells(&self.mapping, 0, HEADER_WORDS)
    }

    fn door(&self, row: u32) -> Result<SharedAtomics<AtomicU64>, Error> {
        // A larger row number would address a block.
        let row = Some(row as usize).filter(|row| *row < MAX_BLOCKS);
        let first = row.map_or(usize::MAX, |row| HEADER_WORDS + row * DOOR_WORDS);
        cells(&self.mapping, first, DOOR_WORDS)
    }

    fn block(&self, block: u32) -> Result<SharedAtomics<AtomicU64>, Error> {
        let first = FIRST_BLOCK + block as usize * BLOCK_WORDS;
        cells(&self.mapping, first, BLOCK_WORDS)
    }
}

/// Writes the header.
#[derive(Debug)]
pub(crate) struct WorkerCounters(SharedAtomics<AtomicU64>);

impl WorkerCounters {
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        add(&self.0[counter as usize], n);
    }

    pub(crate) fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Ordering::Relaxed);
    }
}

/// Writes a chain's block.
#[derive(Debug)]
pub(crate) struct ChainCounters(SharedAtomics<AtomicU64>);

impl ChainCounters {
    /// Counts the packets of a function.
    #[inline]
    pub(crate) fn count_function(
        &self,
        position: usize,
        packets_in: u64,
        drops: u64,
        emitted: u64,
    ) {
        let at = POSITIONS + position * POSITION_WORDS;
        let Some(words) = self.0.get(at..at + POSITION_WORDS) else {
            return;
        };
        add(&words[IN], packets_in);
        if drops + emitted != 0 {
            add(&words[DROPS], drops);
            add(&words[EMITTED], emitted);
        }
    }

    /// Records that a segment of `functions` functions begins at `first`.
    pub(crate) fn set_segment_len(&self, first: usize, functions: usize) {
        let at = POSITIONS + first * POSITION_WORDS;
        if let Some(word) = self.0.get(at + SEGMENT_LEN) {
            word.store(functions as u64, Ordering::Relaxed);
        }
    }

    /// Counts packets that passed all functions of the segment at `first`, without a drop or an
    /// emission.
    #[inline]
    pub(crate) fn count_segment(&self, first: usize, packets: u64) {
        if let Some(word) = self
            .0
            .get(POSITIONS + first * POSITION_WORDS + SEGMENT_PACKETS)
        {
            add(word, packets);
        }
    }

    /// Adds a time measurement: `packets` packets took `ns` nanoseconds in a function.
    pub(crate) fn add_time_sample(&self, position: usize, packets: u64, ns: u64) {
        let at = POSITIONS + position * POSITION_WORDS;
        add(&self.0[at + SAMPLED_NS], ns);
        add(&self.0[at + SAMPLES], packets);
    }

    #[inline]
    pub(crate) fn count_transmitted(&self, packets: u64, drops: u64) {
        add(&self.0[TRANSMITTED], packets);
        if drops != 0 {
            add(&self.0[TRANSMIT_DROPS], drops);
        }
    }

    /// Adds to a counter of the shaper.
    pub(crate) fn count_shaper(&self, counter: ShaperCounter, n: u64) {
        add(&self.0[SHAPER + counter as usize], n);
    }

    /// Counts a packet that enters the shaper's queue.
    #[inline]
    pub(crate) fn count_wait_start(&self) {
        self.count_shaper(ShaperCounter::Delayed, 1);
        self.count_shaper(ShaperCounter::Waiting, 1);
        let maximum = &self.0[SHAPER + ShaperCounter::Most as usize];
        raise(maximum, self.waiting_packets());
    }

    /// Counts a packet that leaves the shaper's queue after `ns` nanoseconds.
    #[inline]
    pub(crate) fn count_wait_end(&self, ns: u64) {
        self.count_shaper(ShaperCounter::Waiting, 1_u64.wrapping_neg());
        self.count_shaper(ShaperCounter::WaitedNs, ns);
    }

    /// Counts a waiting packet that is dropped.
    pub(crate) fn count_waiting_drop(&self, reason: ShaperCounter) {
        self.count_shaper(ShaperCounter::Waiting, 1_u64.wrapping_neg());
        self.count_shaper(reason, 1);
    }

    /// Returns the number of waiting packets.
    pub(crate) fn waiting_packets(&self) -> u64 {
        self.0[SHAPER + ShaperCounter::Waiting as usize].load(Ordering::Relaxed)
    }

    /// Counts the packets that waited in a dead predecessor as lost.
    pub(crate) fn count_predecessor_loss(&self) {
        let lost = self.waiting_packets();
        self.count_shaper(ShaperCounter::Waiting, lost.wrapping_neg());
        self.count_shaper(ShaperCounter::Lost, lost);
    }

    /// Counts packets that left the chain `ns` nanoseconds after their stamp: one packet, or the
    /// segments of a super-packet.
    #[inline]
    pub(crate) fn record_sojourn(&self, ns: u64, packets: u64) {
        add(&self.0[BUCKETS + sojourn::index(ns)], packets);
        add(&self.0[SOJOURN + SUM], ns.wrapping_mul(packets));
        raise(&self.0[SOJOURN + NOT_MIN], !ns);
        raise(&self.0[SOJOURN + MAX], ns);
    }
}

/// Writes a chain's door row.
#[derive(Debug)]
pub struct DoorCounters(SharedAtomics<AtomicU64>);

impl DoorCounters {
    /// Counts packets of the chain: one packet, or the segments of a super-packet.
    #[inline]
    pub fn count_packets(&self, packets: u64, bytes: u64, stamp_ns: u64) {
        if let Some(words) = self.0.first_chunk::<DOOR_WORDS>() {
            add(&words[PACKETS], packets);
            add(&words[BYTES], bytes);
            words[LAST_NS].store(stamp_ns, Ordering::Relaxed);
        }
    }

    /// Counts packets above the chain's profile.
    pub fn count_policed(&self, packets: u64, bytes: u64) {
        add(&self.0[POLICED], packets);
        add(&self.0[POLICED_BYTES], bytes);
    }

    /// Counts a packet that found no room behind the door.
    pub fn count_lost(&self) {
        add(&self.0[LOST], 1);
    }

    /// Counts packets that the port dropped before the door.
    pub fn count_missed(&self, packets: u64) {
        add(&self.0[MISSED], packets);
    }
}

/// Adds to a word with a load and a store, because each word has one writer.
#[inline]
pub(crate) fn add(cell: &AtomicU64, n: u64) {
    cell.store(
        cell.load(Ordering::Relaxed).wrapping_add(n),
        Ordering::Relaxed,
    );
}

#[inline]
pub(crate) fn raise(cell: &AtomicU64, value: u64) {
    if value > cell.load(Ordering::Relaxed) {
        cell.store(value, Ordering::Relaxed);
    }
}

/// Reads a structure from its words.
pub(crate) fn read_all<T: Pod>(cells: &[AtomicU64]) -> T {
    let mut read = T::zeroed();
    let words = bytemuck::cast_slice_mut::<T, u64>(std::slice::from_mut(&mut read));
    for (word, cell) in words.iter_mut().zip(cells) {
        *word = get(cell);
    }
    read
}

pub(crate) fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

fn clear(cells: &SharedAtomics<AtomicU64>) {
    cells
        .iter()
        .for_each(|cell| cell.store(0, Ordering::Relaxed));
}

fn populated(cells: SharedAtomics<AtomicU64>) -> SharedAtomics<AtomicU64> {
    cells.populate();
    cells
}

fn cells(
    mapping: &Arc<Mapping>,
    word: usize,
    words: usize,
) -> Result<SharedAtomics<AtomicU64>, Error> {
    SharedAtomics::new(mapping, word.saturating_mul(size_of::<u64>()), words)
        .ok_or_else(|| memory(io::ErrorKind::UnexpectedEof.into()))
}

fn memory(source: io::Error) -> Error {
    Error::Memory {
        what: "statistics memory",
        bytes: FILE_LEN,
        source,
    }
}
