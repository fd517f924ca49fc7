//! The preemptor's counters, in a file of which the agent has the descriptor too.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use myelin_dataplane::{CoreStats, TaskStats};
use nix::sys::memfd::{MFdFlags, memfd_create};

const WORD: usize = size_of::<u64>();
const HEADER: usize = 5;
const TASK: usize = 3;

/// The file. The preemptor writes it whole from time to time, so a reader may see a mixture of two
/// states, whose counters are close to each other.
#[derive(Debug)]
pub(crate) struct Record(File);

impl Record {
    /// Makes an empty record.
    pub(crate) fn create() -> io::Result<Self> {
        let fd = memfd_create("myelin-preemptor", MFdFlags::MFD_CLOEXEC)?;
        Ok(Self(fd.into()))
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd.into())
    }

    /// Copies the descriptor, for the preemptor.
    pub(crate) fn fd(&self) -> io::Result<OwnedFd> {
        self.0.try_clone().map(OwnedFd::from)
    }

    /// Writes the counters. `buffer` is reused.
    pub(crate) fn write(&self, stats: &CoreStats, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        let running = stats.running.map_or(0, |task| task as u64 + 1);
        let header = [
            running,
            stats.switches,
            stats.switch_ns,
            stats.decisions,
            stats.decide_ns,
        ];
        let tasks = stats.tasks.iter();
        let tasks = tasks.flat_map(|task| [task.is_alive.into(), task.turns, task.run_ns]);
        buffer.extend(header.into_iter().chain(tasks).flat_map(u64::to_ne_bytes));
        self.0.write_all_at(buffer, 0)
    }

    /// Reads the counters of `tasks` tasks; all 0 before the first write.
    pub(crate) fn read(&self, tasks: usize) -> CoreStats {
        let mut bytes = vec![0; (HEADER + tasks * TASK) * WORD];
        if self.0.read_exact_at(&mut bytes, 0).is_err() {
            bytes.fill(0);
        }
        let word = |index: usize| {
            let bytes = bytes[index * WORD..].first_chunk().copied();
            u64::from_ne_bytes(bytes.unwrap_or_default())
        };
        let task = |task: usize| {
            let first = HEADER + task * TASK;
            TaskStats {
                is_alive: word(first) == 1,
                turns: word(first + 1),
                run_ns: word(first + 2),
                // The preemptor knows neither.
                wait_ns: 0,
                empty_reads: 0,
            }
        };
        let running = usize::try_from(word(0)).unwrap_or(0);
        CoreStats {
            running: running.checked_sub(1).filter(|running| *running < tasks),
            switches: word(1),
            switch_ns: word(2),
            decisions: word(3),
            decide_ns: word(4),
            tasks: (0..tasks).map(task).collect(),
            ..CoreStats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_what_was_written_and_zeros_before() {
        let record = Record::create().unwrap();
        assert_eq!(record.read(2).tasks, vec![TaskStats::default(); 2]);
        let task = |turns| TaskStats {
            is_alive: true,
            turns,
            run_ns: 7 * turns,
            wait_ns: 0,
            empty_reads: 0,
        };
        let stats = CoreStats {
            running: Some(1),
            switches: 5,
            switch_ns: 9000,
            decisions: 80,
            decide_ns: 8000,
            tasks: vec![task(2), task(3)],
            ..CoreStats::default()
        };
        let reader = Record::from_fd(record.fd().unwrap());
        record.write(&stats, &mut Vec::new()).unwrap();
        assert_eq!(reader.read(2), stats);
    }
}
