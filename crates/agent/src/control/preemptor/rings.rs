//! The fill levels of the rings of a shared core, without touching the tasks that read them.
//!
//! The ring of a black box is in the program's own memory. But the kernel's programs count each
//! packet on its link to the box and on its way out, so the packets inside are the difference. A
//! box also drops packets, and its ring overflows. Three rules keep the difference true: no more
//! packets are inside than the ring holds, none less than 0, and a box that runs and sends nothing
//! for [`QUIET_NS`] has read all of them.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use myelin_dataplane::RingObserver;
use myelin_kernel::CounterReader;
use myelin_linux::inherit;
use myelin_policy::sharing::RingState;

use super::setup::{LaneSetup, RingSetup};

/// A running box that sends nothing for this time has no packet left, ns. A batch takes less.
const QUIET_NS: u64 = 1_000_000;
/// Times at which arrivals in a ring are known.
const MARKS: usize = 16;

/// A ring.
#[derive(Debug)]
pub(super) struct Ring {
    source: Source,
    capacity: i64,
    budget_ns: Option<u64>,
    written: i64,
    read: i64,
    /// The last change of `read`, or the start of the reader's turn.
    moved_ns: u64,
    /// Numbers of packets that were there, and since when.
    marks: VecDeque<(i64, u64)>,
}

#[derive(Debug)]
enum Source {
    Counted {
        entered: u32,
        left: [u32; 2],
        /// Packets that entered and will never leave, less those that left and never entered.
        lost: i64,
    },
    Mapped {
        observer: RingObserver,
        seen: (u32, u32),
    },
}

impl Ring {
    /// Opens the ring of a lane. The packets that are inside a black box now count as none.
    pub(super) fn open(lane: &LaneSetup, counters: &CounterReader) -> Result<Self, String> {
        let (source, inside) = match &lane.ring {
            RingSetup::Counted { entered, left } => {
                let lost = passed(counters, &[*entered]) - passed(counters, left);
                let (entered, left) = (*entered, *left);
                let source = Source::Counted {
                    entered,
                    left,
                    lost,
                };
                (source, 0)
            }
            RingSetup::Mapped { kind, fd } => {
                let fd = inherit::take(*fd).map_err(|error| error.to_string())?;
                let observer = RingObserver::open(*kind, fd)?;
                let seen = observer.indices();
                let inside = i64::from(seen.0.wrapping_sub(seen.1));
                (Source::Mapped { observer, seen }, inside)
            }
        };
        Ok(Self {
            source,
            capacity: lane.capacity.into(),
            budget_ns: lane.budget_ns,
            written: inside,
            read: 0,
            moved_ns: 0,
            marks: VecDeque::with_capacity(MARKS),
        })
    }

    /// Looks at the ring. `runs_since` is the start of the reader's turn, if it has the core.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        counters: &CounterReader,
        runs_since: Option<u64>,
    ) -> RingState {
        let read_before = self.read;
        match &mut self.source {
            Source::Counted {
                entered,
                left,
                lost,
            } => {
                self.written = passed(counters, &[*entered]);
                self.read = passed(counters, left) + *lost;
                let last_move = runs_since.map(|since| since.max(self.moved_ns));
                let is_quiet = self.read == read_before
                    && last_move.is_some_and(|last| now_ns.saturating_sub(last) >= QUIET_NS);
                let inside = self.written - self.read;
                let most = if is_quiet { 0 } else { self.capacity };
                let moved = inside - inside.clamp(0, most);
                *lost += moved;
                self.read += moved;
            }
            Source::Mapped { observer, seen } => {
                let (written, read) = observer.indices();
                self.written += i64::from(written.wrapping_sub(seen.0));
                self.read += i64::from(read.wrapping_sub(seen.1));
                *seen = (written, read);
            }
        }
        if self.read != read_before {
            self.moved_ns = now_ns;
        }
        self.mark(now_ns);
        let oldest_ns = self.marks.front().map(|(_, ns)| *ns);
        let due_ns = oldest_ns.zip(self.budget_ns);
        RingState {
            written: self.written.cast_unsigned(),
            read: self.read.cast_unsigned(),
            due_ns: due_ns.map_or(u64::MAX, |(ns, budget_ns)| ns.saturating_add(budget_ns)),
        }
    }

    /// Packets read since the ring was opened.
    pub(super) fn read(&self) -> i64 {
        self.read
    }

    /// Packets in the ring at the last look.
    pub(super) fn packets(&self) -> i64 {
        self.written - self.read
    }

    fn mark(&mut self, now_ns: u64) {
        while self.marks.front().is_some_and(|(n, _)| *n <= self.read) {
            self.marks.pop_front();
        }
        let marked = self.marks.back().map_or(self.read, |(n, _)| *n);
        if self.written <= marked {
            return;
        }
        if self.marks.len() < MARKS {
            self.marks.push_back((self.written, now_ns));
        } else if let Some(last) = self.marks.back_mut() {
            // The packets since the last mark count as old as that mark: rather too early.
            last.0 = self.written;
        }
    }
}

/// The packets of these counters together.
fn passed(counters: &CounterReader, slots: &[u32]) -> i64 {
    let packets = slots.iter().map(|slot| counters.passed(*slot));
    packets.fold(0, u64::wrapping_add).cast_signed()
}

/// Maps the kernel's packet counters.
pub(super) fn open_counters(
    (fd, layout): (std::os::fd::RawFd, (u32, u32)),
) -> Result<CounterReader, String> {
    let fd = inherit::take(fd).map_err(|error| error.to_string())?;
    CounterReader::open(fd.as_fd(), layout).map_err(|error| error.to_string())
}
