//! What a worker counts, in a shared file that the worker's loop alone writes and anybody reads at any time.
//!
//! ```text
//! header  64 words: the counters of the worker as a whole
//! doors   4096 x 8 words, one row for each SPI that a front door in the worker knows: packets, bytes, time of the last one, policed
//! blocks  4096, one for each deployed (SPI, generation)
//!   8 words                packets transmitted, packets lost at transmit
//!   32 positions x 8 words in, drops, emitted, sampled ns, samples
//!   8 words                sum, complement of the minimum, maximum of the sojourn times, ns
//!   1024 words             sojourn histogram (`myelin_packet::sojourn`)
//!   8 words                shaper: delayed, drops by reason, waiting now and at most, time waited
//! ```
//!
//! Words are 64 bits, native endian. A word has one writer, so it is a plain load and store; readers never stop it, and two words
//! read one after the other may be a packet apart. The agent hands rows and blocks out ([`Stats`]); a row stays with its SPI over all generations, and the
//! whole file over all lives of the worker.
//!
//! The sojourn of a packet ends when its batch has been handed to the kernel: one reading of the clock a batch, so one a packet at batch size 1.
//! In copy mode the system call that hands it over also transmits it, hence the sojourn holds all of its way through the egress port, and on a
//! veth also what the peer's receive poll does on this core: it is never too short. (Before that call it would be too short by the
//! whole transmission, for the last packet of a batch of 32 some 20 us, and the reading would delay every packet.)

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;

mod file;
mod types;

pub use self::file::DoorCounters;
pub(crate) use self::file::{
    ChainCounters, Counter, MAX_POSITIONS, ShaperCounter, StatsFile, WorkerCounters,
};
pub use self::types::{ChainStats, DoorStats, ShaperStats, WorkerStats};

/// The statistics of a worker: who has which block, and what stands in it.
///
/// Anybody may read at any time, without the worker and without its handle. A reader holds a lock while it copies one block, some microseconds; a chain that
/// is being removed is read whole or not at all.
#[derive(Debug)]
pub struct Stats {
    file: StatsFile,
    places: Mutex<Places>,
}

/// Who has which block and which row.
#[derive(Debug, Default)]
struct Places {
    /// By SPI and generation: the block, and how many positions count in it.
    chains: HashMap<(u32, u16), (u32, u8)>,
    blocks: Numbers,
    /// By SPI.
    doors: HashMap<u32, u32>,
    rows: Numbers,
}

/// The numbers below [`file::MAX_BLOCKS`], each handed out once at a time.
#[derive(Debug, Default)]
struct Numbers {
    returned: Vec<u32>,
    fresh: u32,
}

impl Numbers {
    fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let number = self.fresh;
            self.fresh += u32::from(number < file::MAX_BLOCKS as u32);
            (number < self.fresh).then_some(number)
        })
    }
}

impl Stats {
    /// Statistics without a chain.
    pub fn create() -> Result<Self, Error> {
        Ok(Self {
            file: StatsFile::create()?,
            places: Mutex::default(),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    pub(crate) fn file(&self) -> &StatsFile {
        &self.file
    }

    /// A zeroed block for a generation of a chain; `None` when all are taken or this generation has one.
    pub(crate) fn allocate(&self, spi: u32, generation: u16, positions: u8) -> Option<u32> {
        let mut places = self.places();
        if places.chains.contains_key(&(spi, generation)) {
            return None;
        }
        let block = places.blocks.take()?;
        places.chains.insert((spi, generation), (block, positions));
        Some(block)
    }

    /// Takes a block back, once its worker no longer writes it; with the last one of a chain its row among the doors.
    pub(crate) fn release(&self, spi: u32, generation: u16) {
        let mut places = self.places();
        if let Some((block, _)) = places.chains.remove(&(spi, generation)) {
            self.file.clear_block(block);
            places.blocks.returned.push(block);
        }
        if !places.chains.keys().any(|(other, _)| *other == spi)
            && let Some(row) = places.doors.remove(&spi)
        {
            self.file.clear_door(row);
            places.rows.returned.push(row);
        }
    }

    /// The row of a chain among the doors, zeroed when it is new; `None` when all are taken.
    pub(crate) fn door_row(&self, spi: u32) -> Option<u32> {
        let mut places = self.places();
        if let Some(row) = places.doors.get(&spi) {
            return Some(*row);
        }
        let row = places.rows.take()?;
        places.doors.insert(spi, row);
        Some(row)
    }

    /// What a front door counts a chain's packets with, for a forwarder in this process.
    ///
    /// # Errors
    /// More than 4096 chains.
    pub fn door_counters(&self, spi: u32) -> Result<DoorCounters, Error> {
        self.file
            .door_counters(self.door_row(spi).unwrap_or(u32::MAX))
    }

    /// What a generation of a chain did; `None` when it is not deployed in this worker.
    pub fn chain(&self, spi: u32, generation: u16) -> Option<ChainStats> {
        let places = self.places();
        let &(block, positions) = places.chains.get(&(spi, generation))?;
        self.file.read_block(block, positions.into())
    }

    /// What a chain took at the worker's front door, in all its generations; `None` when it never entered there.
    pub fn door(&self, spi: u32) -> Option<DoorStats> {
        let places = self.places();
        self.file.read_door(*places.doors.get(&spi)?)
    }

    /// What the worker did as a whole, over all its lives.
    pub fn worker(&self) -> WorkerStats {
        self.file.read_header().unwrap_or_default()
    }

    /// Whoever panicked with it had changed one entry whole or not at all.
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn the_agent_reads_what_the_worker_counts() {
        let stats = Stats::create().unwrap();
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
        for (counter, n) in [(ShaperCounter::Delayed, 1), (ShaperCounter::WaitedNs, 8)] {
            chain.shaper(counter, n);
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
        let behind = HopCounters {
            packets_in: 30,
            ..HopCounters::default()
        };
        assert_eq!(
            seen.positions,
            [HopCounters::default(), expected, behind],
            "what went through counts for each function of the segment and for no other"
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
    fn a_released_block_comes_back_empty_and_the_others_stay() {
        let stats = Stats::create().unwrap();
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
    fn counters_of_the_worker_survive_it() {
        let stats = Stats::create().unwrap();
        worker_side(&stats)
            .worker_counters()
            .unwrap()
            .add(Counter::Received, 3);
        let heir = worker_side(&stats).worker_counters().unwrap();
        heir.add(Counter::Received, 4);
        heir.set(Counter::FreeFrames, 12);
        heir.add(Counter::Invalid, 1);
        let expected = WorkerStats {
            received: 7,
            free_frames: 12,
            invalid_descriptors: 1,
            ..WorkerStats::default()
        };
        assert_eq!(stats.worker(), expected);
    }

    #[test]
    fn a_door_counts_on_over_generations_and_ends_with_the_last_one() {
        let stats = Stats::create().unwrap();
        assert_eq!(stats.door(7), None);
        stats.allocate(7, 0, 1).unwrap();
        let row = stats.door_row(7).unwrap();
        let file = worker_side(&stats);
        file.door_counters(row).unwrap().count(60, 5);
        stats.allocate(7, 1, 1).unwrap();
        stats.release(7, 0);
        // As the next life of the worker finds it.
        let door = file.door_counters(stats.door_row(7).unwrap()).unwrap();
        door.count(40, 9);
        door.police(40);
        let expected = DoorStats {
            packets: 2,
            bytes: 100,
            last_ns: 9,
            policed: 1,
            policed_bytes: 40,
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
    fn who_reads_while_a_chain_goes_sees_all_of_it_or_none() {
        use std::sync::atomic::{AtomicU32, Ordering};
        const ROUNDS: u16 = 2000;
        let (stats, filled) = (Stats::create().unwrap(), AtomicU32::new(u32::MAX));
        let file = worker_side(&stats);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                loop {
                    let generation = filled.load(Ordering::Acquire);
                    if generation == u32::from(ROUNDS) {
                        return seen;
                    }
                    if let Some(chain) = stats.chain(1, generation as u16) {
                        assert_eq!((chain.transmitted, chain.shaper.waited_ns), (7, 7));
                        seen += 1;
                    }
                }
            });
            for generation in 0..ROUNDS {
                let block = stats.allocate(1, generation, 1).unwrap();
                let counters = file.chain_counters(block).unwrap();
                counters.transmitted(7, 0);
                counters.shaper(ShaperCounter::WaitedNs, 7);
                filled.store(generation.into(), Ordering::Release);
                std::thread::sleep(std::time::Duration::from_micros(20));
                stats.release(1, generation);
            }
            filled.store(ROUNDS.into(), Ordering::Release);
            assert!(reader.join().unwrap() > 0);
        });
    }
}
