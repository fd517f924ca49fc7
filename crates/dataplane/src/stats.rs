//! The statistics of a worker, in a shared file. Only the worker's loop writes the file. Any
//! process may read it at any time.
//!
//! ```text
//! header  64 words: counters of the whole worker
//! doors   4096 rows of 8 words, one row for each SPI at a front door in the worker:
//!           packets, bytes, time of the last packet, policed packets and bytes, lost packets
//! blocks  4096 blocks, one for each deployed (SPI, generation):
//!           8 words               packets transmitted, packets lost at transmit
//!           32 x 8 words          each position: in, drops, emitted, sampled ns, samples,
//!                                 packets of the whole segment, length of the segment
//!           8 words               sojourn, ns: sum, complement of the minimum, maximum
//!           1024 words            sojourn histogram (`myelin_packet::sojourn`)
//!           16 words              shaper: delayed, drops by reason, lost, waiting now,
//!                                 most that waited, time waited
//! ```
//!
//! Words have 64 bits, native endian. Each word has one writer, which uses plain loads and stores.
//! Readers never stop the writer, so two words may differ by one packet. The agent allocates rows
//! and blocks ([`Stats`]). All generations of a chain use the same row. The file outlives all
//! processes of the worker.
//!
//! The sojourn of a packet ends after the worker has passed the batch to the kernel. The worker
//! reads the clock once per batch. In copy mode the system call also transmits the batch, so the
//! sojourn includes the whole egress port. On a veth it also includes the peer's receive poll on
//! this core. So the sojourn is never too short. (A reading before the call would miss the whole
//! transmission: about 20 us for the last packet of a batch of 32. It would also delay every
//! packet.)

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;

mod file;
mod types;

pub use self::file::DoorCounters;
pub(crate) use self::file::{
    ChainCounters, Counter, MAX_POSITIONS, ShaperCounter, StatsFile, WorkerCounters, add, get,
    raise, read_all,
};
pub use self::types::{ChainStats, DoorStats, ShaperStats, WorkerStats};

/// The statistics of a worker, and the allocation of their blocks.
///
/// Any thread may read at any time, without the worker and its handle. A reader holds a lock for
/// some microseconds, while it copies one block. So it reads a chain completely or not at all, even
/// during its removal.
#[derive(Debug)]
pub struct Stats {
    file: StatsFile,
    allocations: Mutex<Allocations>,
}

/// The allocation of blocks and rows.
#[derive(Debug, Default)]
struct Allocations {
    /// The block of an SPI and generation, and its number of positions.
    chains: HashMap<(u32, u16), (u32, u8)>,
    blocks: NumberPool,
    /// The row of an SPI.
    doors: HashMap<u32, u32>,
    rows: NumberPool,
}

/// Allocates numbers below [`file::MAX_BLOCKS`].
#[derive(Debug, Default)]
struct NumberPool {
    returned: Vec<u32>,
    fresh: u32,
}

impl NumberPool {
    fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let number = self.fresh;
            self.fresh += u32::from(number < file::MAX_BLOCKS as u32);
            (number < self.fresh).then_some(number)
        })
    }
}

impl Stats {
    /// Makes statistics without a chain.
    pub fn create() -> Result<Self, Error> {
        Ok(Self {
            file: StatsFile::create()?,
            allocations: Mutex::default(),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    pub(crate) fn file(&self) -> &StatsFile {
        &self.file
    }

    /// Allocates a zeroed block for a generation of a chain. Returns `None` if no block is free or
    /// the generation already has a block.
    pub(crate) fn allocate(&self, spi: u32, generation: u16, positions: u8) -> Option<u32> {
        let mut allocations = self.allocations();
        if allocations.chains.contains_key(&(spi, generation)) {
            return None;
        }
        let block = allocations.blocks.take()?;
        allocations
            .chains
            .insert((spi, generation), (block, positions));
        Some(block)
    }

    /// Frees a block after its worker has stopped writing it. With the last block of a chain, also
    /// frees the chain's door row.
    pub(crate) fn release(&self, spi: u32, generation: u16) {
        let mut allocations = self.allocations();
        if let Some((block, _)) = allocations.chains.remove(&(spi, generation)) {
            self.file.clear_block(block);
            allocations.blocks.returned.push(block);
        }
        if !allocations.chains.keys().any(|(other, _)| *other == spi)
            && let Some(row) = allocations.doors.remove(&spi)
        {
            self.file.clear_door(row);
            allocations.rows.returned.push(row);
        }
    }

    /// Returns the door row of a chain. A new row contains zeros. Returns `None` if no row is free.
    pub(crate) fn door_row(&self, spi: u32) -> Option<u32> {
        let mut allocations = self.allocations();
        if let Some(row) = allocations.doors.get(&spi) {
            return Some(*row);
        }
        let row = allocations.rows.take()?;
        allocations.doors.insert(spi, row);
        Some(row)
    }

    /// Returns a chain's counters of a front door, for a forwarder in this process.
    ///
    /// # Errors
    /// 4096 chains have a row.
    pub fn door_counters(&self, spi: u32) -> Result<DoorCounters, Error> {
        self.file
            .door_counters(self.door_row(spi).unwrap_or(u32::MAX))
    }

    /// Returns the statistics of a generation; `None` if it is not deployed in this worker.
    pub fn chain(&self, spi: u32, generation: u16) -> Option<ChainStats> {
        let allocations = self.allocations();
        let &(block, positions) = allocations.chains.get(&(spi, generation))?;
        self.file.read_block(block, positions.into())
    }

    /// Returns the statistics of all generations of a chain at the worker's front door; `None` if
    /// the chain has no row.
    pub fn door(&self, spi: u32) -> Option<DoorStats> {
        let allocations = self.allocations();
        self.file.read_door(*allocations.doors.get(&spi)?)
    }

    /// Returns the statistics of the whole worker, over all its processes.
    pub fn worker(&self) -> WorkerStats {
        self.file.read_header().unwrap_or_default()
    }

    /// Locks the allocations. After a panic each entry is complete, so a poisoned lock is safe.
    fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use myelin_packet::HopCounters;

    use super::*;

    fn worker_side(stats: &Stats) -> StatsFile {
        StatsFile::open(stats.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn the_agent_reads_the_counters_of_the_worker() {
        let stats = Stats::create().unwrap();
        let block = stats.allocate(7, 2, 3).unwrap();
        let chain = worker_side(&stats).chain_counters(block).unwrap();
        chain.set_segment_len(1, 2);
        chain.count_segment(1, 30);
        chain.count_function(1, 2, 0, 0);
        chain.count_function(1, 32, 5, 2);
        chain.add_time_sample(1, 32, 640);
        chain.count_transmitted(60, 1);
        for ns in [900, 100, 5_000] {
            chain.record_sojourn(ns, 1);
        }
        for (counter, n) in [(ShaperCounter::Delayed, 1), (ShaperCounter::WaitedNs, 8)] {
            chain.count_shaper(counter, n);
        }
        let seen = stats.chain(7, 2).unwrap();
        let expected = HopCounters {
            packets_in: 64,
            drops: 5,
            emitted: 2,
            sampled_ns: 640,
            samples: 32,
            ..HopCounters::default()
        };
        let next = HopCounters {
            packets_in: 30,
            ..HopCounters::default()
        };
        assert_eq!(
            seen.positions,
            [HopCounters::default(), expected, next],
            "packets through the whole segment count for each of its functions and for no other"
        );
        assert_eq!((seen.transmitted, seen.transmit_drops), (60, 1));
        assert_eq!((seen.shaper.delayed, seen.shaper.waited_ns), (1, 8));
        let sojourn = &seen.sojourn;
        assert_eq!((sojourn.count(), sojourn.sum_ns()), (3, 6_000));
        assert_eq!(
            (sojourn.min_ns(), sojourn.max_ns()),
            (Some(100), Some(5_000))
        );
        assert_eq!(stats.chain(7, 3), None);
    }

    #[test]
    fn a_released_block_is_cleared_for_reuse_and_others_stay() {
        let stats = Stats::create().unwrap();
        let first = stats.allocate(1, 0, 1).unwrap();
        let second = stats.allocate(1, 1, 1).unwrap();
        assert_eq!(stats.allocate(1, 1, 1), None, "the generation has a block");
        let file = worker_side(&stats);
        file.chain_counters(first).unwrap().record_sojourn(5, 1);
        file.chain_counters(second)
            .unwrap()
            .count_function(0, 9, 0, 0);
        stats.release(1, 0);
        assert_eq!(stats.chain(1, 0), None);
        assert_eq!(stats.allocate(2, 0, 1), Some(first));
        let fresh = stats.chain(2, 0).unwrap();
        assert!(fresh.sojourn.is_empty() && fresh.sojourn.min_ns().is_none());
        assert_eq!(stats.chain(1, 1).unwrap().positions[0].packets_in, 9);
    }

    #[test]
    fn allocation_fails_without_a_free_block() {
        let stats = Stats::create().unwrap();
        for spi in 0..file::MAX_BLOCKS as u32 {
            assert_eq!(stats.allocate(spi, 0, 1), Some(spi));
        }
        assert_eq!(stats.allocate(u32::MAX, 0, 1), None);
        assert!(
            worker_side(&stats)
                .chain_counters(file::MAX_BLOCKS as u32)
                .is_err()
        );
        assert!(worker_side(&stats).chain_counters(u32::MAX).is_err());
    }

    #[test]
    fn counters_outlive_the_worker_process() {
        let stats = Stats::create().unwrap();
        worker_side(&stats)
            .worker_counters()
            .unwrap()
            .add(Counter::Received, 3);
        let successor = worker_side(&stats).worker_counters().unwrap();
        successor.add(Counter::Received, 4);
        successor.set(Counter::FreeFrames, 12);
        successor.add(Counter::Invalid, 1);
        let expected = WorkerStats {
            received: 7,
            free_frames: 12,
            invalid_descriptors: 1,
            ..WorkerStats::default()
        };
        assert_eq!(stats.worker(), expected);
    }

    #[test]
    fn all_generations_share_a_door_row_and_the_last_frees_it() {
        let stats = Stats::create().unwrap();
        assert_eq!(stats.door(7), None);
        stats.allocate(7, 0, 1).unwrap();
        let row = stats.door_row(7).unwrap();
        let file = worker_side(&stats);
        file.door_counters(row).unwrap().count_packets(1, 60, 5);
        stats.allocate(7, 1, 1).unwrap();
        stats.release(7, 0);
        // The next process of the worker opens the row.
        let door = file.door_counters(stats.door_row(7).unwrap()).unwrap();
        door.count_packets(1, 40, 9);
        door.count_policed(1, 40);
        door.count_missed(3);
        let expected = DoorStats {
            packets: 2,
            bytes: 100,
            last_ns: 9,
            policed: 1,
            policed_bytes: 40,
            lost: 0,
            missed: 3,
        };
        assert_eq!(stats.door(7), Some(expected));
        stats.release(7, 1);
        assert_eq!(stats.door(7), None);
        assert_eq!(stats.door_row(8), Some(row));
        assert_eq!(stats.door(8), Some(DoorStats::default()));
        assert!(file.door_counters(file::MAX_BLOCKS as u32).is_err());
        assert!(file.door_counters(u32::MAX).is_err());
    }

    #[test]
    fn a_reader_sees_a_removed_chain_completely_or_not_at_all() {
        read_removed_chains(100);
    }

    #[test]
    #[ignore = "thorough: removes 5000 chains under a reader"]
    fn a_reader_sees_each_of_many_removed_chains_completely_or_not_at_all() {
        read_removed_chains(5000);
    }

    /// Reads each generation of a chain from before its removal until after it.
    fn read_removed_chains(rounds: u16) {
        use std::sync::atomic::{AtomicU32, Ordering};
        // The number of generations that are filled, that the reader has seen, and whose removal
        // has begun.
        let [filled, seen, removed] = [0; 3].map(AtomicU32::new);
        let stats = Stats::create().unwrap();
        let file = worker_side(&stats);
        // A thread that waits gives its core to the other one.
        let await_round = |counter: &AtomicU32, generation: u16| {
            while counter.load(Ordering::Acquire) <= generation.into() {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for generation in 0..rounds {
                    await_round(&filled, generation);
                    // A reader that never pauses may keep the lock from the writer for seconds. So
                    // only a few reads follow the beginning of the removal.
                    let mut reads_left = 3;
                    while reads_left > 0 {
                        if removed.load(Ordering::Acquire) > generation.into() {
                            reads_left -= 1;
                        }
                        let Some(chain) = stats.chain(1, generation) else {
                            assert!(seen.load(Ordering::Acquire) > generation.into());
                            break;
                        };
                        assert_eq!((chain.transmitted, chain.shaper.waited_ns), (7, 7));
                        seen.store(u32::from(generation) + 1, Ordering::Release);
                    }
                }
            });
            for generation in 0..rounds {
                let block = stats.allocate(1, generation, 1).unwrap();
                let counters = file.chain_counters(block).unwrap();
                counters.count_transmitted(7, 0);
                counters.count_shaper(ShaperCounter::WaitedNs, 7);
                let round = u32::from(generation) + 1;
                filled.store(round, Ordering::Release);
                while seen.load(Ordering::Acquire) < round {
                    assert!(!reader.is_finished(), "the reader failed");
                    std::thread::yield_now();
                }
                removed.store(round, Ordering::Release);
                stats.release(1, generation);
            }
            reader.join().unwrap();
        });
    }
}
