//! The shared memory of the tasks on one core: who has the core, and what the policy remembers.
//!
//! The agent makes the file. Every task maps it. All values may come from another process, so each
//! reader bounds them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use myelin_policy::sharing::{SharedCore, Sharing, next_switch_ns};

use crate::error::Error;
use crate::shm::{Mapping, SharedAtomics, anonymous_file, file_len};
use crate::turns::ring_record::{RING, RingRecord};

// Words of the file, in this order: header, the policy's state, tasks, rings, lanes. The words that
// wake tasks follow behind them.
const RUNNING: usize = 0;
const BEATS: usize = 1;
const ASLEEP: usize = 2;
const SWITCHES: usize = 3;
const SWITCH_NS: usize = 4;
const LEFT_NS: usize = 5;
const TAKEOVERS: usize = 6;
const DECISIONS: usize = 7;
const DECIDE_NS: usize = 8;
const HEADER: usize = 16;

const ALIVE: usize = 0;
const TURNS: usize = 1;
const RUN_NS: usize = 2;
const EMPTY_READS: usize = 3;
const WAIT_NS: usize = 4;
const TASK: usize = 8;

/// The file of a core's table.
#[derive(Debug)]
pub(crate) struct TableFile(OwnedFd);

impl TableFile {
    pub(crate) fn create(core: &SharedCore) -> Result<Self, Error> {
        let len = Places::of(core).bytes();
        anonymous_file("myelin-turns", len)
            .map(Self)
            .map_err(memory(len))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn memory(bytes: usize) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Memory {
        what: "table of a shared core",
        bytes,
        source,
    }
}

/// The first word of each part.
#[derive(Debug, Clone, Copy)]
struct Places {
    state: usize,
    tasks: usize,
    rings: usize,
    lanes: usize,
    end: usize,
    task_count: usize,
    ring_count: usize,
}

impl Places {
    fn of(core: &SharedCore) -> Self {
        let state = HEADER;
        let tasks = state + Sharing::state_len(core);
        let rings = tasks + core.tasks * TASK;
        let lanes = rings + core.capacities.len() * RING;
        Self {
            state,
            tasks,
            rings,
            lanes,
            end: lanes + core.lanes.len(),
            task_count: core.tasks,
            ring_count: core.capacities.len(),
        }
    }

    fn bytes(&self) -> usize {
        self.end * size_of::<u64>() + self.task_count * size_of::<u32>()
    }
}

/// A mapped table. Only the task that has the core writes, except the words of the other tasks
/// about themselves.
#[derive(Debug)]
pub(crate) struct Table {
    words: SharedAtomics<AtomicU64>,
    /// A counter for each task, on which the task waits.
    wakes: SharedAtomics<AtomicU32>,
    places: Places,
}

impl Table {
    /// Maps the table of this core.
    pub(crate) fn map(fd: BorrowedFd<'_>, core: &SharedCore) -> Result<Self, Error> {
        let places = Places::of(core);
        let len = places.bytes();
        let short = || memory(len)(io::ErrorKind::UnexpectedEof.into());
        if file_len(fd).map_err(memory(len))? < len {
            return Err(short());
        }
        let mapping = Arc::new(Mapping::new(fd, 0, len, true).map_err(memory(len))?);
        let words = SharedAtomics::new(&mapping, 0, places.end).ok_or_else(short)?;
        let offset = places.end * size_of::<u64>();
        let wakes = SharedAtomics::new(&mapping, offset, places.task_count).ok_or_else(short)?;
        Ok(Self {
            words,
            wakes,
            places,
        })
    }

    fn load(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    fn store(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }

    fn add(&self, word: usize, n: u64) {
        self.store(word, self.load(word).wrapping_add(n));
    }

    /// The task that has the core.
    #[inline]
    pub(super) fn running(&self) -> Option<usize> {
        let word = self.words[RUNNING].load(Ordering::Acquire);
        let task = usize::try_from(word.checked_sub(1)?).ok()?;
        (task < self.places.task_count).then_some(task)
    }

    /// Gives the core to `task`, and wakes it. Everything that this task has written is visible to
    /// that one.
    pub(super) fn give(&self, task: usize) {
        self.words[RUNNING].store(task as u64 + 1, Ordering::Release);
        self.wake(task);
    }

    /// Takes the core from `from`. Returns whether `from` still had it.
    pub(super) fn take(&self, from: Option<usize>, task: usize) -> bool {
        let word = |task: Option<usize>| task.map_or(0, |task| task as u64 + 1);
        let taken = self.words[RUNNING].compare_exchange(
            word(from),
            word(Some(task)),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        taken.is_ok()
    }

    /// Gives the core to no task, if `task` has it, and wakes the others.
    pub(super) fn free(&self, task: usize) {
        let word = task as u64 + 1;
        let was =
            self.words[RUNNING].compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        if was.is_ok() {
            (0..self.places.task_count).for_each(|other| self.wake(other));
        }
    }

    /// The number of wake-ups of a task until now.
    pub(super) fn wakes_of(&self, task: usize) -> u32 {
        self.wakes[task].load(Ordering::Acquire)
    }

    /// The word on which a task waits.
    pub(super) fn wake_word(&self, task: usize) -> &AtomicU32 {
        &self.wakes[task]
    }

    /// Wakes a task that waits.
    pub(super) fn wake(&self, task: usize) {
        self.wakes[task].fetch_add(1, Ordering::Release);
        crate::sys::wake_waiter(&self.wakes[task]);
    }

    /// Counts a sign of life of the task that has the core.
    #[inline]
    pub(super) fn beat(&self) {
        self.add(BEATS, 1);
    }

    /// The signs of life and the switches: if the value stays, nobody uses the core.
    pub(super) fn pulse(&self) -> (u64, u64) {
        (self.load(BEATS), self.load(SWITCHES))
    }

    pub(super) fn set_asleep(&self, is_asleep: bool) {
        self.words[ASLEEP].store(is_asleep.into(), Ordering::Release);
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.words[ASLEEP].load(Ordering::Acquire) != 0
    }

    pub(super) fn count_takeover(&self) {
        self.add(TAKEOVERS, 1);
    }

    /// Counts a decision that took `ns`.
    pub(super) fn count_decision(&self, ns: u64) {
        self.add(DECISIONS, 1);
        self.add(DECIDE_NS, ns);
    }

    /// The learned time of a switch, ns.
    pub(super) fn switch_ns(&self) -> u64 {
        self.load(SWITCH_NS)
    }

    /// Counts the end of a turn at `now_ns`, whose successor follows at once.
    pub(super) fn leave(&self, now_ns: u64) {
        self.store(LEFT_NS, now_ns);
        self.add(SWITCHES, 1);
    }

    /// Learns the time of the switch that began with [`Self::leave`].
    pub(super) fn arrive(&self, now_ns: u64) {
        let left_ns = self.load(LEFT_NS);
        self.store(LEFT_NS, 0);
        if left_ns > 0 {
            let seen_ns = now_ns.saturating_sub(left_ns);
            self.store(SWITCH_NS, next_switch_ns(self.switch_ns(), seen_ns));
        }
    }

    /// The words of the policy.
    pub(super) fn read_state(&self, words: &mut [u64]) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.load(self.places.state + index);
        }
    }

    pub(super) fn write_state(&self, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.store(self.places.state + index, *word);
        }
    }

    fn task(&self, task: usize, word: usize) -> usize {
        self.places.tasks + task * TASK + word
    }

    pub(super) fn set_alive(&self, task: usize, is_alive: bool) {
        self.store(self.task(task, ALIVE), is_alive.into());
    }

    #[inline]
    pub(super) fn is_alive(&self, task: usize) -> bool {
        self.load(self.task(task, ALIVE)) == 1
    }

    /// Counts a turn of a task.
    pub(super) fn count_turn(&self, task: usize, run_ns: u64, empty_reads: u64) {
        self.add(self.task(task, TURNS), 1);
        self.add(self.task(task, RUN_NS), run_ns);
        self.add(self.task(task, EMPTY_READS), empty_reads);
    }

    /// Counts a time in which a task's packets waited for its turn.
    pub(super) fn count_wait(&self, task: usize, ns: u64) {
        self.add(self.task(task, WAIT_NS), ns);
    }

    /// Returns the counters of a task.
    pub(super) fn task_stats(&self, task: usize) -> TaskStats {
        TaskStats {
            is_alive: self.is_alive(task),
            turns: self.load(self.task(task, TURNS)),
            run_ns: self.load(self.task(task, RUN_NS)),
            wait_ns: self.load(self.task(task, WAIT_NS)),
            empty_reads: self.load(self.task(task, EMPTY_READS)),
        }
    }

    pub(super) fn lane_cost_ps(&self, lane: usize) -> u64 {
        self.load(self.places.lanes + lane)
    }

    pub(super) fn set_lane_cost_ps(&self, lane: usize, cost_ps: u64) {
        self.store(self.places.lanes + lane, cost_ps);
    }

    /// The record of a ring.
    pub(super) fn ring(&self, ring: usize) -> RingRecord<'_> {
        let first = self.places.rings + ring * RING;
        RingRecord::new(&self.words[first..first + RING])
    }

    /// Returns the counters of the core.
    pub(super) fn stats(&self) -> CoreStats {
        CoreStats {
            running: self.running(),
            switches: self.load(SWITCHES),
            switch_ns: self.switch_ns(),
            takeovers: self.load(TAKEOVERS),
            decisions: self.load(DECISIONS),
            decide_ns: self.load(DECIDE_NS),
            tasks: (0..self.places.task_count)
                .map(|task| self.task_stats(task))
                .collect(),
            rings: self.places.ring_count,
        }
    }
}

/// The counters of a shared core, since its tasks or rings last changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CoreStats {
    /// The task that has the core.
    pub running: Option<usize>,
    /// Switches from one task to another.
    pub switches: u64,
    /// Time of a switch, ns: its 0.9 quantile, learned; 0 if unknown.
    pub switch_ns: u64,
    /// Times that a task took the core from one that showed no sign of life.
    pub takeovers: u64,
    /// Decisions of the policy.
    pub decisions: u64,
    /// Time of all decisions, ns.
    pub decide_ns: u64,
    /// The tasks.
    pub tasks: Vec<TaskStats>,
    /// Number of rings that the tasks read.
    pub rings: usize,
}

/// The counters of a task on a shared core.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskStats {
    /// Whether the task can run.
    pub is_alive: bool,
    /// Turns that have ended.
    pub turns: u64,
    /// Time of these turns, ns.
    pub run_ns: u64,
    /// Time in which the task's packets waited for its turn, ns.
    pub wait_ns: u64,
    /// Reads in these turns that found no packet.
    pub empty_reads: u64,
}

#[cfg(test)]
mod tests {
    use myelin_policy::sharing::Lane;
    use proptest::prelude::*;

    use super::*;

    fn core() -> SharedCore {
        let lane = |task| Lane {
            task,
            ingress: task,
            egress: None,
        };
        SharedCore {
            tasks: 2,
            lanes: vec![lane(0), lane(1)],
            capacities: vec![64, 64],
        }
    }

    fn table() -> (TableFile, Table) {
        let file = TableFile::create(&core()).unwrap();
        let table = Table::map(file.fd(), &core()).unwrap();
        (file, table)
    }

    #[test]
    fn the_core_passes_from_task_to_task_and_only_its_holder_frees_it() {
        let (file, table) = table();
        let other = Table::map(file.fd(), &core()).unwrap();
        assert_eq!(table.running(), None);
        assert!(table.take(None, 0) && !other.take(None, 1));
        table.leave(100);
        table.give(1);
        assert_eq!((other.running(), other.wakes_of(1)), (Some(1), 1));
        other.arrive(3100);
        other.arrive(9000);
        assert_eq!((table.switch_ns(), table.stats().switches), (3000, 1));
        table.free(0);
        assert_eq!(table.running(), Some(1));
        other.free(1);
        assert_eq!((table.running(), table.wakes_of(0)), (None, 1));
        table.words[RUNNING].store(7, Ordering::Relaxed);
        assert_eq!(other.running(), None, "there is no such task");
    }

    #[test]
    fn a_file_of_another_core_is_refused() {
        let (file, _) = table();
        let larger = SharedCore {
            tasks: 900,
            ..core()
        };
        assert!(Table::map(file.fd(), &larger).is_err());
    }

    proptest! {
        /// No words of another process make a reader panic.
        #[test]
        fn any_words_are_read(words in prop::collection::vec(any::<u64>(), 1..40)) {
            let (_file, table) = table();
            for (place, word) in table.words.iter().zip(words.iter().cycle()) {
                place.store(*word, Ordering::Relaxed);
            }
            let _ = (table.running(), table.stats());
            let record = table.ring(1);
            let (written, read) = record.extend(7, 9);
            let _ = record.look(5, written, read, 3);
        }
    }
}
