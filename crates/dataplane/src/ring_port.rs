//! A port over one end of a descriptor ring to another worker process on the same UMEM.
//!
//! For each frame, the holder table of the UMEM names the ring or process that holds the frame. The
//! sender writes the ring into the table before it publishes the descriptor. The receiver writes
//! itself into the table before it releases the slot. So the successor of a killed process finds
//! every frame:
//!
//! * Frames that the process held: the table names the process.
//! * Frames that the process took without releasing their slots: the table names the process. These
//!   frames are still at the front of the incoming ring, where [`RingPort::new`] skips them.
//! * Frames that the process lent without publishing: the table names the outgoing ring, but the
//!   ring does not contain these frames.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::unistd::{read, write};

use crate::error::Error;
use crate::port::{Buffer, FramePool, Port};
use crate::spsc::{RingFile, SharedConsumer, SharedProducer};
use crate::umem::{Borrower, Frame, FrameMemory};

/// Words of a descriptor: address in the UMEM; length of the packet and its stamp ([`RingStamp`]).
/// Length 0 returns a frame without a packet to the first process.
pub(crate) const WORDS: usize = 2;
/// Most frames that a refill returns.
const RETURN_BATCH: u32 = 64;

/// The stamp of a packet in a descriptor, so that other processes see when the oldest packet of a
/// ring came to its chain: microseconds of 1024 ns, of which the lower 32 bits suffice for an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingStamp(u32);

impl RingStamp {
    /// Word of a descriptor with the length and the stamp.
    pub(crate) const WORD: usize = 1;
    const SHIFT: u32 = 10;

    /// Makes the stamp of a time; 0 ns is no stamp.
    #[inline]
    pub(crate) fn of(stamp_ns: u64) -> Self {
        Self((stamp_ns >> Self::SHIFT) as u32)
    }

    #[inline]
    fn with_len(self, len: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(len)
    }

    /// Returns the time of a word at `now_ns`, at most an hour ago; `None` without a packet or a
    /// stamp.
    #[inline]
    pub(crate) fn time_ns(word: u64, now_ns: u64) -> Option<u64> {
        let stamp = (word >> 32) as u32;
        if stamp == 0 || word as u32 == 0 {
            return None;
        }
        let age = ((now_ns >> Self::SHIFT) as u32).wrapping_sub(stamp);
        (now_ns >> Self::SHIFT)
            .checked_sub(age.into())
            .map(|units| units << Self::SHIFT)
    }
}

/// The end of a ring that a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum RingSide {
    /// The process receives packets.
    Receive,
    /// The process sends packets.
    Send,
    /// The process sends packets, and returns free frames to the first process at the other end.
    SendAndReturn,
}

/// One end of a ring between workers.
#[derive(Debug)]
pub struct RingPort {
    end: RingEnd,
    borrower: Borrower,
    /// An eventfd that wakes the receiver.
    wake_fd: OwnedFd,
    invalid: u64,
}

#[derive(Debug)]
enum RingEnd {
    Receive {
        ring: SharedConsumer<WORDS>,
        /// Frames that arrived without a packet.
        empty_frames: Vec<Frame>,
        is_armed: bool,
    },
    Send {
        ring: SharedProducer<WORDS>,
        returns_frames: bool,
    },
}

impl RingPort {
    /// Opens an end of a ring that is new or that a dead process used. `borrower` is the number of
    /// the ring.
    pub(crate) fn new(
        ring: OwnedFd,
        wake_fd: OwnedFd,
        side: RingSide,
        borrower: Borrower,
        memory: &FrameMemory,
    ) -> Result<Self, Error> {
        let ring = RingFile::open(ring)?;
        let end = if side == RingSide::Receive {
            ring.skip::<WORDS>(|[address, _]| !memory.is_lent_to(address, borrower))?;
            RingEnd::Receive {
                ring: ring.consumer()?,
                empty_frames: Vec::with_capacity(memory.frames() as usize),
                is_armed: false,
            }
        } else {
            let ring = ring.producer::<WORDS>()?;
            memory.take_back_all_but(borrower, ring.entries().map(|[address, _]| address));
            RingEnd::Send {
                ring,
                returns_frames: side == RingSide::SendAndReturn,
            }
        };
        Ok(Self {
            end,
            borrower,
            wake_fd,
            invalid: 0,
        })
    }
}

impl Port for RingPort {
    #[inline]
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
        match &mut self.end {
            RingEnd::Receive { ring, .. } => ring.peek(limit),
            RingEnd::Send { .. } => 0,
        }
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let RingEnd::Receive {
            ring, empty_frames, ..
        } = &mut self.end
        else {
            return None;
        };
        let [address, len] = ring.read();
        let len = len as u32;
        memory.prefetch(address, len);
        let Some((frame, offset)) = memory.take_back(address, self.borrower) else {
            self.invalid += 1;
            return None;
        };
        if len == 0 {
            empty_frames.push(frame);
            return None;
        }
        Some(Buffer { frame, offset, len })
    }

    #[inline]
    fn release(&mut self) {
        if let RingEnd::Receive { ring, .. } = &mut self.end {
            ring.release();
        }
    }

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        self.transmit_stamped(memory, buffer, 0)
    }

    #[inline]
    fn transmit_stamped(
        &mut self,
        memory: &FrameMemory,
        buffer: Buffer,
        stamp_ns: u64,
    ) -> Result<(), Buffer> {
        let RingEnd::Send { ring, .. } = &mut self.end else {
            return Err(buffer);
        };
        if ring.reserve(1) == 0 {
            return Err(buffer);
        }
        let address = memory.lend(buffer.frame, buffer.offset, self.borrower);
        ring.write(&[address, RingStamp::of(stamp_ns).with_len(buffer.len)]);
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _memory: &FrameMemory) -> u64 {
        let RingEnd::Send { ring, .. } = &mut self.end else {
            return 0;
        };
        if !ring.has_unpublished() {
            return 0;
        }
        ring.publish();
        if !ring.must_wake() {
            return 0;
        }
        // A nonblocking write fails if the counter is full, but a wake-up is then already pending.
        let _ = write(&self.wake_fd, &1_u64.to_ne_bytes());
        1
    }

    fn is_backlogged(&self) -> bool {
        false
    }

    #[inline]
    fn reclaim(&mut self, _memory: &FrameMemory, pool: &mut FramePool) {
        if let RingEnd::Receive { empty_frames, .. } = &mut self.end {
            empty_frames.drain(..).for_each(|frame| pool.give(frame));
        }
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        match &mut self.end {
            RingEnd::Send {
                ring,
                returns_frames: true,
            } if pool.len() > FramePool::RESERVE => {
                for _ in 0..ring.reserve(RETURN_BATCH) {
                    let Some(frame) = pool.take_for_receive() else {
                        break;
                    };
                    ring.write(&[memory.lend(frame, 0, self.borrower), 0]);
                }
                self.flush(memory);
                pool.len() <= FramePool::RESERVE
            }
            _ => true,
        }
    }

    fn count_received(&self) -> u32 {
        match &self.end {
            RingEnd::Receive { ring, .. } => ring.count_unread(),
            RingEnd::Send { .. } => 0,
        }
    }

    fn readable_fd(&self) -> Option<RawFd> {
        matches!(self.end, RingEnd::Receive { .. }).then(|| self.wake_fd.as_fd().as_raw_fd())
    }

    fn arm(&mut self) -> bool {
        match &mut self.end {
            RingEnd::Receive { ring, is_armed, .. } => {
                *is_armed = true;
                ring.arm()
            }
            RingEnd::Send { .. } => true,
        }
    }

    fn disarm(&mut self) {
        if let RingEnd::Receive { ring, is_armed, .. } = &mut self.end
            && std::mem::take(is_armed)
        {
            ring.disarm();
            // A nonblocking read resets the counter.
            let _ = read(&self.wake_fd, &mut [0; 8]);
        }
    }

    fn count_invalid(&self) -> u64 {
        self.invalid
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;
    use crate::umem::Umem;

    /// A UMEM that two processes share, and a ring in each direction.
    struct TwoProcesses {
        umem: Umem,
        rings: [RingFile; 2],
        wake_fd: EventFd,
    }

    const FRAMES: u32 = 256;
    const TO_SECOND: usize = 0;
    const TO_FIRST: usize = 1;

    fn borrower(number: usize) -> Borrower {
        Borrower::new(number).unwrap()
    }

    impl TwoProcesses {
        fn new() -> Self {
            Self {
                umem: Umem::create(FRAMES, 2048).unwrap(),
                rings: [8, 256].map(|entries| RingFile::create(entries, WORDS).unwrap()),
                wake_fd: EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap(),
            }
        }

        fn map_first(&self) -> FrameMemory {
            FrameMemory::map(&self.umem).unwrap()
        }

        fn map_second(&self) -> FrameMemory {
            FrameMemory::map_as(&self.umem, borrower(9)).unwrap()
        }

        fn open_port(&self, ring: usize, side: RingSide, memory: &FrameMemory) -> RingPort {
            let fd = self.rings[ring].fd().try_clone_to_owned().unwrap();
            let wake_fd = self.wake_fd.as_fd().try_clone_to_owned().unwrap();
            RingPort::new(fd, wake_fd, side, borrower(ring), memory).unwrap()
        }
    }

    fn make_pool(memory: &FrameMemory) -> FramePool {
        FramePool::new(memory.held_frames(), FRAMES as usize)
    }

    fn make_packet(pool: &mut FramePool) -> Buffer {
        Buffer {
            frame: pool.take().unwrap(),
            offset: 256,
            len: 60,
        }
    }

    #[test]
    fn frames_of_a_sender_that_dies_before_publishing_are_recovered() {
        let processes = TwoProcesses::new();
        let dead = processes.map_first();
        let mut frames = make_pool(&dead);
        let mut port = processes.open_port(TO_SECOND, RingSide::Send, &dead);
        for _ in 0..3 {
            port.transmit(&dead, make_packet(&mut frames)).unwrap();
        }
        port.flush(&dead);
        for _ in 0..2 {
            port.transmit(&dead, make_packet(&mut frames)).unwrap();
        }
        assert_eq!(processes.umem.lent().unwrap(), 5);
        drop(port);

        let successor = processes.map_first();
        let mut port = processes.open_port(TO_SECOND, RingSide::Send, &successor);
        let mut frames = make_pool(&successor);
        assert_eq!((frames.len(), processes.umem.lent().unwrap()), (253, 3));
        while port.transmit(&successor, make_packet(&mut frames)).is_ok() {}
        port.flush(&successor);
        let second = processes.map_second();
        let mut receiver = processes.open_port(TO_SECOND, RingSide::Receive, &second);
        assert_eq!(
            receiver.poll_arrivals(99),
            8,
            "a full ring, with the first three frames"
        );
        assert!((0..8).all(|_| receiver.take(&second).is_some()));
        assert_eq!(receiver.count_invalid(), 0);
    }

    #[test]
    fn taken_frames_are_skipped_if_a_receiver_dies_before_it_releases() {
        let processes = TwoProcesses::new();
        let first = processes.map_first();
        let mut frames = make_pool(&first);
        let mut sender = processes.open_port(TO_SECOND, RingSide::Send, &first);
        for _ in 0..5 {
            sender.transmit(&first, make_packet(&mut frames)).unwrap();
        }
        sender.flush(&first);
        let dead = processes.map_second();
        let mut port = processes.open_port(TO_SECOND, RingSide::Receive, &dead);
        assert_eq!(port.poll_arrivals(2), 2);
        let taken = [port.take(&dead).unwrap(), port.take(&dead).unwrap()];
        drop(port);

        let successor = processes.map_second();
        let mut port = processes.open_port(TO_SECOND, RingSide::Receive, &successor);
        let own = make_pool(&successor);
        assert_eq!(
            own.len(),
            taken.len(),
            "the frames that the dead process had taken"
        );
        assert_eq!(
            port.poll_arrivals(9),
            3,
            "the frames that the dead process had not taken"
        );
        assert!((0..3).all(|_| port.take(&successor).is_some()));
        assert_eq!(port.count_invalid(), 0);
    }

    #[test]
    fn a_stamp_in_a_descriptor_is_exact_to_a_microsecond() {
        let now_ns = (5 << 43) + (9 << 30) + 7;
        for age_ns in [0, 1, 1023, 1_000_000, 3_600_000_000_000] {
            let word = RingStamp::of(now_ns - age_ns).with_len(60);
            let told_ns = RingStamp::time_ns(word, now_ns).unwrap();
            assert!(now_ns - age_ns - told_ns < 1024, "{age_ns}");
        }
        let no_packet = RingStamp::of(now_ns - 9000).with_len(0);
        for word in [0, 60, no_packet] {
            assert_eq!(RingStamp::time_ns(word, now_ns), None);
        }
        // Any word of another process is a time in the past, or none.
        assert_eq!(RingStamp::time_ns(u64::MAX, 0), None);
    }

    #[test]
    fn free_frames_are_returned_except_the_reserve() {
        let processes = TwoProcesses::new();
        let first = processes.map_first();
        let mut frames = make_pool(&first);
        (0..150).for_each(|_| first.grant(frames.take().unwrap(), borrower(9)));
        let second = processes.map_second();
        let mut own = make_pool(&second);
        assert_eq!(own.len(), 150);
        let mut sender = processes.open_port(TO_FIRST, RingSide::SendAndReturn, &second);
        sender.transmit(&second, make_packet(&mut own)).unwrap();
        while !sender.refill(&second, &mut own) {}
        assert_eq!(own.len(), FramePool::RESERVE);
        let mut receiver = processes.open_port(TO_FIRST, RingSide::Receive, &first);
        let arrived = receiver.poll_arrivals(256);
        let packets = (0..arrived).filter_map(|_| receiver.take(&first)).count();
        assert_eq!(
            (arrived, packets),
            (86, 1),
            "frames without a packet are no packets"
        );
        receiver.release();
        receiver.reclaim(&first, &mut frames);
        assert_eq!(frames.len(), 256 - 150 + 85);
    }

    #[test]
    fn the_sender_wakes_only_a_sleeping_receiver() {
        let processes = TwoProcesses::new();
        let (first, second) = (processes.map_first(), processes.map_second());
        let mut frames = make_pool(&first);
        let mut sender = processes.open_port(TO_SECOND, RingSide::Send, &first);
        let mut receiver = processes.open_port(TO_SECOND, RingSide::Receive, &second);
        let mut send = || {
            sender.transmit(&first, make_packet(&mut frames)).unwrap();
            sender.flush(&first)
        };
        assert_eq!(send(), 0, "the receiver is awake");
        assert!(!receiver.arm(), "a packet has arrived");
        receiver.disarm();
        assert_eq!(receiver.poll_arrivals(9), 1);
        receiver.take(&second).unwrap();
        receiver.release();
        assert!(receiver.arm());
        assert_eq!(send(), 1);
        receiver.disarm();
        assert!(processes.wake_fd.read().is_err(), "the counter is reset");
        assert_eq!((send(), receiver.count_received()), (0, 2));
    }
}
