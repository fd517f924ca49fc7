//! What a worker counts, in a shared file: one block a chain and generation, written by the worker's loop alone, read by anyone at any time.
//!
//! ```text
//! header  64 words: magic, then the counters of the worker as a whole
//! block   one for each deployed (SPI, generation), handed out by the agent
//!   8 words                packets transmitted, packets lost at transmit
//!   32 positions x 8 words in, out, drops, emitted, sampled ns, samples
//!   8 words                sum, complement of the minimum, maximum of the sojourn times, ns
//!   1024 words             sojourn histogram (`myelin_packet::sojourn`)
//!   8 words                shaper: delayed, drops by reason, waiting now and at most, time waited
//! ```
//!
//! Words are 64 bits, native endian. A word has one writer, so it is a plain load and store; readers never stop it, and two words
//! read one after the other may be a packet apart. At rest `out = in - drops + emitted` at every position.
//!
//! The sojourn of a packet ends when its batch has been handed to the kernel: one reading of the clock a batch, so one a packet at batch size 1.
//! In copy mode the system call that hands it over also transmits it, hence the sojourn holds all of its way through the egress port, and on a
//! veth also what the peer's receive poll does on this core: it is never too short. (Before that call it would be too short by the
//! whole transmission, for the last packet of a batch of 32 some 20 us, and the reading would delay every packet.)

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use myelin_packet::sojourn::{self, Histogram};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::shm::{Cells, Mapping, anonymous_file, file_len};

/// Most functions of one chain.
pub const MAX_POSITIONS: usize = 32;

/// Chain generations one worker holds at most. Blocks are pages of a sparse file: those never used cost nothing.
pub(crate) const MAX_BLOCKS: usize = 4096;

const MAGIC: u64 = u64::from_be_bytes(*b"MYELIN01");
const HEADER_WORDS: usize = 64;
const POSITION_WORDS: usize = 8;
const POSITIONS: usize = 8;
const SOJOURN: usize = POSITIONS + MAX_POSITIONS * POSITION_WORDS;
const BUCKETS: usize = SOJOURN + 8;
const SHAPER: usize = BUCKETS + sojourn::BUCKETS;
const BLOCK_WORDS: usize = SHAPER + 8;
const FILE_LEN: usize = (HEADER_WORDS + MAX_BLOCKS * BLOCK_WORDS) * size_of::<u64>();

/// Counters of a worker as a whole: their word in the header.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Counter {
    Received = 8,
    Transmitted,
    UnknownChain,
    Malformed,
    NoFrame,
    TransmitDrops,
    Kicks,
    Sleeps,
    FreeFrames,
    Invalid,
}

/// Words of a block before the positions.
const TRANSMITTED: usize = 0;
const TRANSMIT_DROPS: usize = 1;

/// Words of a position.
const IN: usize = 0;
const OUT: usize = 1;
const DROPS: usize = 2;
const EMITTED: usize = 3;
const SAMPLED_NS: usize = 4;
const SAMPLES: usize = 5;
/// At the first position of a segment: packets that went through all of its functions in batches of which nothing was dropped and to which nothing was
/// emitted. They count as in and out of each; most packets do, and cost one addition instead of two a function.
const THROUGH: usize = 6;
/// At the first position of a segment: its functions.
const SPAN: usize = 7;

/// Words of the sojourn summary.
const SUM: usize = 0;
/// The complement, so that a block of zeros says that there was no packet.
const NOT_MIN: usize = 1;
const MAX: usize = 2;

/// Words of the shaper.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum ShaperCounter {
    /// Packets that had to wait.
    Delayed,
    /// Dropped: the queue was full.
    Full,
    /// Dropped: would have waited too long.
    Late,
    /// Dropped: larger than the burst.
    Big,
    /// Waited in a worker that died, or for a chain that went.
    Lost,
    /// Packets that wait now.
    Waiting,
    /// The most that ever waited.
    Most,
    /// How long those waited that have left, together, ns.
    WaitedNs,
}

/// What the shaper of a generation of a chain did, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShaperStats {
    /// Had to wait.
    pub delayed: u64,
    /// Dropped: the queue was full, or the worker had no frame left for it.
    pub full: u64,
    /// Dropped: would have waited longer than agreed.
    pub late: u64,
    /// Dropped: larger than the burst, so never in profile.
    pub big: u64,
    /// Waited in a worker that died, or for a chain that was removed.
    pub lost: u64,
    /// Wait now.
    pub waiting: u64,
    /// The most that ever waited.
    pub most: u64,
    /// How long those waited that have left, together, ns.
    pub waited_ns: u64,
}

impl ShaperStats {
    /// All that did not leave, for whatever reason.
    pub fn drops(&self) -> u64 {
        self.full + self.late + self.big + self.lost
    }

    /// Takes what another generation or another process did along.
    pub fn add(&mut self, other: &Self) {
        self.delayed += other.delayed;
        self.full += other.full;
        self.late += other.late;
        self.big += other.big;
        self.lost += other.lost;
        self.waiting += other.waiting;
        self.most = self.most.max(other.most);
        self.waited_ns += other.waited_ns;
    }
}

/// What one function did, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PositionStats {
    /// Packets handed to the function.
    pub packets_in: u64,
    /// Packets that went on to the next position.
    pub packets_out: u64,
    /// Packets it dropped.
    pub drops: u64,
    /// Further packets it emitted.
    pub emitted: u64,
    /// Time spent in the function for the packets of `samples`, ns; the clock's own cost is taken off.
    pub sampled_ns: u64,
    /// Packets whose processing was timed.
    pub samples: u64,
}

/// What one generation of a chain did in this worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainStats {
    /// By position; kernel functions have zeros here.
    pub positions: Vec<PositionStats>,
    /// Packets put into a transmit ring, toward the egress port or back into the kernel.
    pub transmitted: u64,
    /// Packets lost because a transmit ring stayed full or the packet did not fit a frame.
    pub transmit_drops: u64,
    /// Front door to egress port, of packets that leave the chain here; empty when the last function is in the kernel.
    pub sojourn: Histogram,
    /// What its shaper did.
    pub shaper: ShaperStats,
}

/// What a worker did as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WorkerStats {
    /// Packets taken from its ports.
    pub received: u64,
    /// Packets put into transmit rings.
    pub transmitted: u64,
    /// Packets dropped because no function of this worker stands at their chain, generation and position.
    pub unknown_chain: u64,
    /// Packets dropped because their metadata does not fit them.
    pub malformed: u64,
    /// Emitted packets lost because no frame was free or the packet does not fit one.
    pub no_frame: u64,
    /// Packets lost at transmit, over all chains.
    pub transmit_drops: u64,
    /// System calls made to transmit.
    pub kicks: u64,
    /// Times the worker went to sleep.
    pub sleeps: u64,
    /// Frames that no port had, as of the last time it was idle.
    pub free_frames: u64,
    /// Descriptors the kernel returned that name no frame lent to that port, in this life of the worker; more than none is an error.
    pub invalid_descriptors: u64,
}

/// The agent's view: hands out blocks and reads them.
#[derive(Debug)]
pub struct Stats {
    file: StatsFile,
    blocks: HashMap<(u32, u16), (u32, u8)>,
    free: Vec<u32>,
    used: u32,
}

impl Stats {
    /// Statistics without a chain.
    pub fn create() -> Result<Self, Error> {
        let fd = anonymous_file("myelin-stats", FILE_LEN).map_err(memory)?;
        let file = StatsFile::open(fd)?;
        file.header[0].store(MAGIC, Ordering::Relaxed);
        Ok(Self {
            file,
            blocks: HashMap::new(),
            free: Vec::new(),
            used: 0,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }

    pub(crate) fn file(&self) -> &StatsFile {
        &self.file
    }

    /// A zeroed block for a generation of a chain; `None` when all are taken or this generation has one.
    pub(crate) fn allocate(&mut self, spi: u32, generation: u16, positions: u8) -> Option<u32> {
        if self.blocks.contains_key(&(spi, generation)) {
            return None;
        }
        let block = self.free.pop().or_else(|| {
            let fresh = self.used;
            (fresh < MAX_BLOCKS as u32).then(|| {
                self.used += 1;
                fresh
            })
        })?;
        self.blocks.insert((spi, generation), (block, positions));
        Some(block)
    }

    /// Takes a block back, once its worker no longer writes it.
    pub(crate) fn release(&mut self, spi: u32, generation: u16) {
        if let Some((block, _)) = self.blocks.remove(&(spi, generation)) {
            if let Ok(cells) = self.file.block(block) {
                cells
                    .iter()
                    .for_each(|cell| cell.store(0, Ordering::Relaxed));
            }
            self.free.push(block);
        }
    }

    /// What a generation of a chain did; `None` when it is not deployed in this worker.
    pub fn chain(&self, spi: u32, generation: u16) -> Option<ChainStats> {
        let &(block, positions) = self.blocks.get(&(spi, generation))?;
        let cells = self.file.block(block).ok()?;
        let read = |word: usize| cells[word].load(Ordering::Relaxed);
        let mut positions: Vec<_> = (0..usize::from(positions))
            .map(|position| {
                let at = POSITIONS + position * POSITION_WORDS;
                PositionStats {
                    packets_in: read(at + IN),
                    packets_out: read(at + OUT),
                    drops: read(at + DROPS),
                    emitted: read(at + EMITTED),
                    sampled_ns: read(at + SAMPLED_NS),
                    samples: read(at + SAMPLES),
                }
            })
            .collect();
        for first in 0..positions.len() {
            let at = POSITIONS + first * POSITION_WORDS;
            let (through, span) = (read(at + THROUGH), read(at + SPAN) as usize);
            for position in positions.iter_mut().skip(first).take(span) {
                position.packets_in += through;
                position.packets_out += through;
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
            shaper: {
                let read = |counter: ShaperCounter| read(SHAPER + counter as usize);
                ShaperStats {
                    delayed: read(ShaperCounter::Delayed),
                    full: read(ShaperCounter::Full),
                    late: read(ShaperCounter::Late),
                    big: read(ShaperCounter::Big),
                    lost: read(ShaperCounter::Lost),
                    waiting: read(ShaperCounter::Waiting),
                    most: read(ShaperCounter::Most),
                    waited_ns: read(ShaperCounter::WaitedNs),
                }
            },
        })
    }

    /// What the worker did as a whole, over all its lives.
    pub fn worker(&self) -> WorkerStats {
        let read = |counter: Counter| self.file.header[counter as usize].load(Ordering::Relaxed);
        WorkerStats {
            received: read(Counter::Received),
            transmitted: read(Counter::Transmitted),
            unknown_chain: read(Counter::UnknownChain),
            malformed: read(Counter::Malformed),
            no_frame: read(Counter::NoFrame),
            transmit_drops: read(Counter::TransmitDrops),
            kicks: read(Counter::Kicks),
            sleeps: read(Counter::Sleeps),
            free_frames: read(Counter::FreeFrames),
            invalid_descriptors: read(Counter::Invalid),
        }
    }
}

/// The mapped file, in the agent and in the worker.
#[derive(Debug)]
pub(crate) struct StatsFile {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    header: Cells<AtomicU64>,
}

impl StatsFile {
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
        let header = cells(&mapping, 0, HEADER_WORDS)?;
        Ok(Self {
            fd,
            mapping,
            header,
        })
    }

    /// The worker's own counters, for its loop.
    pub(crate) fn worker_counters(&self) -> Result<WorkerCounters, Error> {
        let header = cells(&self.mapping, 0, HEADER_WORDS)?;
        header.populate();
        Ok(WorkerCounters(header))
    }

    /// A chain's counters, for the loop.
    pub(crate) fn chain_counters(&self, block: u32) -> Result<ChainCounters, Error> {
        let cells = self.block(block)?;
        cells.populate();
        Ok(ChainCounters(cells))
    }

    fn block(&self, block: u32) -> Result<Cells<AtomicU64>, Error> {
        let first = HEADER_WORDS + block as usize * BLOCK_WORDS;
        cells(&self.mapping, first, BLOCK_WORDS)
    }
}

/// Writes the header's counters.
#[derive(Debug)]
pub(crate) struct WorkerCounters(Cells<AtomicU64>);

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
pub(crate) struct ChainCounters(Cells<AtomicU64>);

impl ChainCounters {
    /// A function took `packets_in` packets, dropped `drops` of them and emitted `emitted` more.
    #[inline]
    pub(crate) fn pass(&self, position: usize, packets_in: u64, drops: u64, emitted: u64) {
        let at = POSITIONS + position * POSITION_WORDS;
        let Some(words) = self.0.get(at..at + POSITION_WORDS) else {
            return;
        };
        add(&words[IN], packets_in);
        add(&words[OUT], packets_in - drops + emitted);
        if drops + emitted != 0 {
            add(&words[DROPS], drops);
            add(&words[EMITTED], emitted);
        }
    }

    /// A segment of `functions` functions begins at `first`.
    pub(crate) fn span(&self, first: usize, functions: usize) {
        let at = POSITIONS + first * POSITION_WORDS;
        if let Some(span) = self.0.get(at + SPAN) {
            span.store(functions as u64, Ordering::Relaxed);
        }
    }

    /// `packets` packets went through all functions of the segment that begins at `first`; none was dropped, none emitted.
    #[inline]
    pub(crate) fn through(&self, first: usize, packets: u64) {
        if let Some(through) = self.0.get(POSITIONS + first * POSITION_WORDS + THROUGH) {
            add(through, packets);
        }
    }

    /// `packets` packets took `ns` nanoseconds together in a function.
    pub(crate) fn sample(&self, position: usize, packets: u64, ns: u64) {
        let at = POSITIONS + position * POSITION_WORDS;
        add(&self.0[at + SAMPLED_NS], ns);
        add(&self.0[at + SAMPLES], packets);
    }

    #[inline]
    pub(crate) fn transmitted(&self, packets: u64, drops: u64) {
        add(&self.0[TRANSMITTED], packets);
        if drops != 0 {
            add(&self.0[TRANSMIT_DROPS], drops);
        }
    }

    /// Adds to a count of the shaper.
    pub(crate) fn shaper(&self, counter: ShaperCounter, n: u64) {
        add(&self.0[SHAPER + counter as usize], n);
    }

    /// A packet begins to wait in the shaper.
    #[inline]
    pub(crate) fn waits(&self) {
        self.shaper(ShaperCounter::Delayed, 1);
        self.shaper(ShaperCounter::Waiting, 1);
        let most = &self.0[SHAPER + ShaperCounter::Most as usize];
        raise(most, self.waiting());
    }

    /// A packet has waited so long, and leaves.
    #[inline]
    pub(crate) fn waited(&self, ns: u64) {
        self.shaper(ShaperCounter::Waiting, 1_u64.wrapping_neg());
        self.shaper(ShaperCounter::WaitedNs, ns);
    }

    /// A packet that waits will not leave.
    pub(crate) fn gives_up(&self, reason: ShaperCounter) {
        self.shaper(ShaperCounter::Waiting, 1_u64.wrapping_neg());
        self.shaper(reason, 1);
    }

    /// Packets that wait in the shaper.
    pub(crate) fn waiting(&self) -> u64 {
        self.0[SHAPER + ShaperCounter::Waiting as usize].load(Ordering::Relaxed)
    }

    /// What waited in a predecessor that died went with it.
    pub(crate) fn succeed(&self) {
        let lost = self.waiting();
        self.shaper(ShaperCounter::Waiting, lost.wrapping_neg());
        self.shaper(ShaperCounter::Lost, lost);
    }

    /// A packet left the chain `ns` nanoseconds after its stamp.
    #[inline]
    pub(crate) fn sojourn(&self, ns: u64) {
        add(&self.0[BUCKETS + sojourn::index(ns)], 1);
        add(&self.0[SOJOURN + SUM], ns);
        raise(&self.0[SOJOURN + NOT_MIN], !ns);
        raise(&self.0[SOJOURN + MAX], ns);
    }
}

/// Not an atomic addition: there is one writer.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(
        cell.load(Ordering::Relaxed).wrapping_add(n),
        Ordering::Relaxed,
    );
}

#[inline]
fn raise(cell: &AtomicU64, value: u64) {
    if value > cell.load(Ordering::Relaxed) {
        cell.store(value, Ordering::Relaxed);
    }
}

fn cells(mapping: &Arc<Mapping>, word: usize, words: usize) -> Result<Cells<AtomicU64>, Error> {
    Cells::new(mapping, word * size_of::<u64>(), words)
        .ok_or_else(|| memory(io::ErrorKind::UnexpectedEof.into()))
}

fn memory(source: io::Error) -> Error {
    Error::Memory {
        what: "statistics memory",
        bytes: FILE_LEN,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker_side(stats: &Stats) -> StatsFile {
        StatsFile::open(stats.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn the_agent_reads_what_the_worker_counts() {
        let mut stats = Stats::create().unwrap();
        let block = stats.allocate(7, 2, 3).unwrap();
        let chain = worker_side(&stats).chain_counters(block).unwrap();
        chain.span(1, 2);
        chain.through(1, 30);
        chain.pass(1, 2, 0, 0);
        chain.pass(1, 32, 5, 2);
        chain.sample(1, 32, 640);
        chain.transmitted(60, 1);
        for ns in [900, 100, 5_000] {
            chain.sojourn(ns);
        }
        let seen = stats.chain(7, 2).unwrap();
        let expected = PositionStats {
            packets_in: 64,
            packets_out: 61,
            drops: 5,
            emitted: 2,
            sampled_ns: 640,
            samples: 32,
        };
        let behind = PositionStats {
            packets_in: 30,
            packets_out: 30,
            ..PositionStats::default()
        };
        assert_eq!(
            seen.positions,
            [PositionStats::default(), expected, behind],
            "what went through counts for each function of the segment and for no other"
        );
        assert_eq!((seen.transmitted, seen.transmit_drops), (60, 1));
        let sojourn = &seen.sojourn;
        assert_eq!((sojourn.count(), sojourn.sum_ns()), (3, 6_000));
        assert_eq!(
            (sojourn.min_ns(), sojourn.max_ns()),
            (Some(100), Some(5_000))
        );
        assert_eq!(stats.chain(7, 3), None);
    }

    #[test]
    fn a_released_block_comes_back_empty_and_the_others_stay() {
        let mut stats = Stats::create().unwrap();
        let first = stats.allocate(1, 0, 1).unwrap();
        let second = stats.allocate(1, 1, 1).unwrap();
        assert_eq!(stats.allocate(1, 1, 1), None, "has one");
        let file = worker_side(&stats);
        file.chain_counters(first).unwrap().sojourn(5);
        file.chain_counters(second).unwrap().pass(0, 9, 0, 0);
        stats.release(1, 0);
        assert_eq!(stats.chain(1, 0), None);
        assert_eq!(stats.allocate(2, 0, 1), Some(first));
        let fresh = stats.chain(2, 0).unwrap();
        assert!(fresh.sojourn.is_empty() && fresh.sojourn.min_ns().is_none());
        assert_eq!(stats.chain(1, 1).unwrap().positions[0].packets_in, 9);
    }

    #[test]
    fn blocks_run_out_with_a_refusal() {
        let mut stats = Stats::create().unwrap();
        for spi in 0..MAX_BLOCKS as u32 {
            assert_eq!(stats.allocate(spi, 0, 1), Some(spi));
        }
        assert_eq!(stats.allocate(u32::MAX, 0, 1), None);
        assert!(
            worker_side(&stats)
                .chain_counters(MAX_BLOCKS as u32)
                .is_err()
        );
        assert!(worker_side(&stats).chain_counters(u32::MAX).is_err());
    }

    #[test]
    fn counters_of_the_worker_survive_it() {
        let stats = Stats::create().unwrap();
        worker_side(&stats)
            .worker_counters()
            .unwrap()
            .add(Counter::Received, 3);
        let heir = worker_side(&stats).worker_counters().unwrap();
        heir.add(Counter::Received, 4);
        heir.set(Counter::FreeFrames, 12);
        let seen = stats.worker();
        assert_eq!(
            (seen.received, seen.free_frames, seen.malformed),
            (7, 12, 0)
        );
    }
}
