//! A port over an AF_XDP socket that the agent has bound.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::error::Error;
use crate::fill_level::FillLevel;
use crate::port::{Buffer, FramePool, Port};
use crate::ring::{Consumer, Descriptor, Producer, Slot};
use crate::sys;
use crate::umem::{Borrower, FrameMemory, HEADROOM};
use crate::xsk::{Rings, XskInfo};

/// Completions taken at once; the rest wait for the next round.
const RECLAIM_BATCH: u32 = 256;
/// In copy mode the kernel lets go of the frames when the last descriptor is closed; a driver is told to in the background, some time after.
const DRIVER_RELEASE: Duration = Duration::from_secs(1);

/// The worker's end of an AF_XDP socket.
#[derive(Debug)]
pub(crate) struct XdpPort {
    fd: OwnedFd,
    borrower: Borrower,
    transmit: Producer<Descriptor>,
    completion: Consumer<u64>,
    receive: Option<Receive>,
    /// Frames in the transmit ring or with the device, which come back through the completion ring.
    in_flight: u32,
    /// Descriptors were written since the last flush.
    dirty: bool,
    backlogged: bool,
    invalid: u64,
    busy_poll: bool,
    zero_copy: bool,
}

#[derive(Debug)]
struct Receive {
    fill: Producer<u64>,
    arrivals: Consumer<Descriptor>,
    level: FillLevel,
}

impl XdpPort {
    /// Takes a bound socket over. Whatever a predecessor left in its rings counts as lent, also where it died before it could say so.
    pub(crate) fn new(
        fd: OwnedFd,
        info: &XskInfo,
        borrower: Borrower,
        memory: &FrameMemory,
    ) -> Result<Self, Error> {
        let rings = Rings::map(fd.as_fd(), info)?;
        let lent = |address| memory.mark_lent(address, borrower);
        rings.transmit.entries().for_each(|d| lent(d.address));
        rings.completion.entries().for_each(lent);
        let mut receiving = 0;
        let receive = rings.receive.map(|(fill, arrivals)| {
            // In this order: the kernel shows a frame in the RX ring before it takes it out of the fill ring.
            fill.entries().for_each(lent);
            arrivals.entries().for_each(|d| lent(d.address));
            let with_port = fill.outstanding() + arrivals.waiting();
            receiving = with_port as usize;
            let level = FillLevel::new(info.ring_size, info.zero_copy, with_port);
            Receive {
                fill,
                arrivals,
                level,
            }
        });
        let in_flight = memory.lent_to(borrower).saturating_sub(receiving) as u32;
        Ok(Self {
            fd,
            borrower,
            // A predecessor may have died between submitting and kicking.
            dirty: rings.transmit.outstanding() > 0,
            transmit: rings.transmit,
            completion: rings.completion,
            in_flight,
            receive,
            backlogged: false,
            invalid: 0,
            busy_poll: info.busy_poll,
            zero_copy: info.zero_copy,
        })
    }

    /// Closes the socket and waits until the kernel no longer touches the frames it had.
    pub(crate) fn close(self) {
        let zero_copy = self.zero_copy;
        drop(self);
        if zero_copy {
            std::thread::sleep(DRIVER_RELEASE);
        }
    }
}

impl Port for XdpPort {
    #[inline]
    fn arrived(&mut self, limit: u32) -> u32 {
        match &mut self.receive {
            Some(receive) => receive.arrivals.peek(limit),
            None => 0,
        }
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let receive = self.receive.as_mut()?;
        let Descriptor { address, len, .. } = receive.arrivals.read();
        memory.prefetch(address, len);
        receive.level.took();
        let Some((frame, offset)) = memory.take_back(address, self.borrower) else {
            self.invalid += 1;
            return None;
        };
        Some(Buffer { frame, offset, len })
    }

    #[inline]
    fn release(&mut self) {
        if let Some(receive) = &mut self.receive {
            receive.arrivals.release();
        }
    }

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        if self.transmit.reserve(1) == 0 {
            return Err(buffer);
        }
        let address = memory.address(buffer.frame, buffer.offset);
        self.transmit.write(Descriptor {
            address,
            len: buffer.len,
            options: 0,
        });
        self.in_flight += 1;
        self.dirty = true;
        Ok(())
    }

    #[inline]
    fn flush(&mut self, memory: &FrameMemory) -> u64 {
        if self.dirty {
            let mark = |d: Descriptor| memory.mark_lent(d.address, self.borrower);
            submit(&mut self.transmit, self.zero_copy, mark);
        } else if !self.backlogged {
            return 0;
        }
        self.dirty = false;
        self.backlogged = false;
        if !self.transmit.needs_wakeup() {
            return 0;
        }
        let (mut kicks, mut before) = (0, u32::MAX);
        loop {
            kicks += 1;
            let Err(error) = sys::kick_transmit(self.fd.as_raw_fd()) else {
                return kicks;
            };
            // Copy mode sends a limited number a call and stops at every refusal of the device: go on while it moves. A link that is
            // down keeps its packets in the ring; they leave with the first packet after it is up again.
            let again = matches!(
                error.raw_os_error(),
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR)
            );
            let left = self.transmit.outstanding();
            if !again || left == 0 {
                return kicks;
            }
            if left >= before {
                self.backlogged = true;
                return kicks;
            }
            before = left;
        }
    }

    fn is_backlogged(&self) -> bool {
        self.backlogged
    }

    #[inline]
    fn reclaim(&mut self, memory: &FrameMemory, pool: &mut FramePool) {
        if self.in_flight == 0 {
            return;
        }
        let completed = self.completion.peek(RECLAIM_BATCH);
        if completed == 0 {
            return;
        }
        self.in_flight = self.in_flight.saturating_sub(completed);
        for _ in 0..completed {
            match memory.take_back(self.completion.read(), self.borrower) {
                Some((frame, _)) => pool.give(frame),
                None => self.invalid += 1,
            }
        }
        self.completion.release();
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        let Some(receive) = &mut self.receive else {
            return true;
        };
        receive.level.observe(receive.arrivals.known());
        let missing = receive.level.missing();
        if missing == 0 {
            return true;
        }
        let wanted = receive.fill.reserve(missing);
        let mut lent = 0;
        while lent < wanted
            && let Some(frame) = pool.take_for_receive()
        {
            // The kernel adds its own headroom to the start of the frame.
            receive.fill.write(memory.address(frame, 0));
            lent += 1;
        }
        if lent > 0 {
            receive.level.lent(lent);
            let mark = |address| memory.mark_lent(address, self.borrower);
            submit(&mut receive.fill, self.zero_copy, mark);
            if receive.fill.needs_wakeup() {
                sys::kick_receive(self.fd.as_raw_fd());
            }
        }
        lent == wanted
    }

    fn waiting(&self) -> u32 {
        self.receive
            .as_ref()
            .map_or(0, |receive| receive.arrivals.waiting())
    }

    fn readable_fd(&self) -> Option<RawFd> {
        self.receive.as_ref().map(|_| self.fd.as_raw_fd())
    }

    #[inline]
    fn busy_poll(&mut self) {
        if self.busy_poll && self.receive.is_some() {
            sys::kick_receive(self.fd.as_raw_fd());
        }
    }

    fn invalid(&self) -> u64 {
        self.invalid
    }
}

/// Hands what was written to the kernel and enters it into the ledger. The order decides what a worker leaves behind that is killed in between: in copy
/// mode the frames are still in the ring, where a successor finds them; a driver may have taken them out at once, so there
/// they are marked first, and are lost if they were not submitted.
#[inline]
fn submit<T: Slot>(ring: &mut Producer<T>, zero_copy: bool, mark: impl Fn(T)) {
    if zero_copy {
        ring.written_from(ring.submitted()).for_each(mark);
        ring.submit();
    } else {
        let start = ring.submit();
        ring.written_from(start).for_each(mark);
    }
}

const _: () = assert!(HEADROOM as usize >= myelin_packet::nsh::ENCAPSULATION_LEN);
