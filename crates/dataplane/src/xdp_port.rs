//! A port over an AF_XDP socket that the agent has bound.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::error::Error;
use crate::fill_level::FillLevel;
use crate::port::{Buffer, FramePool, Port};
use crate::sys;
use crate::umem::{Borrower, FrameMemory, HEADROOM};
use crate::xsk::{Rings, XskInfo};
use crate::xsk_ring::{Descriptor, Slot, XskConsumer, XskProducer};

/// Most completions taken at once.
const RECLAIM_BATCH: u32 = 256;
/// Time after which a driver has released the frames of a closed socket. In copy mode the kernel
/// releases them with the last descriptor. A zero-copy driver releases them later, in the
/// background.
const DRIVER_RELEASE: Duration = Duration::from_secs(1);

/// The worker's end of an AF_XDP socket.
#[derive(Debug)]
pub struct XdpPort {
    fd: OwnedFd,
    borrower: Borrower,
    transmit: XskProducer<Descriptor>,
    completion: XskConsumer<u64>,
    receive: Option<ReceiveRings>,
    /// Frames in the transmit ring or in the device, which return through the completion ring.
    in_flight: u32,
    /// Whether descriptors were written since the last flush.
    has_unflushed: bool,
    is_backlogged: bool,
    invalid: u64,
    busy_poll: bool,
    zero_copy: bool,
}

#[derive(Debug)]
struct ReceiveRings {
    fill: XskProducer<u64>,
    arrivals: XskConsumer<Descriptor>,
    level: FillLevel,
}

impl XdpPort {
    /// Takes over a bound socket. Marks the frames in the socket's rings as lent, because a
    /// predecessor may have died before it could mark them.
    pub(crate) fn new(
        fd: OwnedFd,
        info: &XskInfo,
        borrower: Borrower,
        memory: &FrameMemory,
    ) -> Result<Self, Error> {
        let rings = Rings::map(fd.as_fd(), &info.config)?;
        let lent = |address| memory.mark_lent(address, borrower);
        rings.transmit.entries().for_each(|d| lent(d.address));
        rings.completion.entries().for_each(lent);
        let mut receiving = 0;
        let receive = rings.receive.map(|(fill, arrivals)| {
            // Read the fill ring first. The kernel puts a frame into the RX ring before it removes
            // the frame from the fill ring.
            fill.entries().for_each(lent);
            arrivals.entries().for_each(|d| lent(d.address));
            let present = fill.outstanding() + arrivals.count_unread();
            receiving = present as usize;
            let level = FillLevel::new(info.config.ring_size, info.zero_copy, present);
            ReceiveRings {
                fill,
                arrivals,
                level,
            }
        });
        let in_flight = memory.lent_to(borrower).saturating_sub(receiving) as u32;
        Ok(Self {
            fd,
            borrower,
            // A predecessor may have died after the submit and before the kick.
            has_unflushed: rings.transmit.outstanding() > 0,
            transmit: rings.transmit,
            completion: rings.completion,
            in_flight,
            receive,
            is_backlogged: false,
            invalid: 0,
            busy_poll: info.config.busy_poll.is_some(),
            zero_copy: info.zero_copy,
        })
    }

    /// Keeps the fill ring full at all times, so that no burst shorter than the ring is lost.
    pub(crate) fn keep_full(mut self, ring_size: u32) -> Self {
        if let Some(receive) = &mut self.receive {
            receive.level = FillLevel::always_full(ring_size, receive.level.present());
        }
        self
    }

    /// Closes the socket, and waits until the kernel has released its frames.
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
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
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
        receive.level.record_taken();
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
        self.has_unflushed = true;
        Ok(())
    }

    #[inline]
    fn flush(&mut self, memory: &FrameMemory) -> u64 {
        if self.has_unflushed {
            let mark = |d: Descriptor| memory.mark_lent(d.address, self.borrower);
            submit(&mut self.transmit, self.zero_copy, mark);
        } else if !self.is_backlogged {
            return 0;
        }
        self.has_unflushed = false;
        self.is_backlogged = false;
        if !self.transmit.needs_wakeup() {
            return 0;
        }
        let (mut kicks, mut before) = (0, u32::MAX);
        loop {
            kicks += 1;
            let Err(error) = sys::kick_transmit(self.fd.as_raw_fd()) else {
                return kicks;
            };
            // In copy mode each call sends a limited number of packets, and stops when the device
            // refuses a packet. Repeat while packets leave. If the link is down, packets stay in
            // the ring. They leave with the first packet after the link is up.
            let again = matches!(
                error.raw_os_error(),
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR)
            );
            let left = self.transmit.outstanding();
            if !again || left == 0 {
                return kicks;
            }
            if left >= before {
                self.is_backlogged = true;
                return kicks;
            }
            before = left;
        }
    }

    fn is_backlogged(&self) -> bool {
        self.is_backlogged
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
        receive.level.observe_backlog(receive.arrivals.known());
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
            receive.level.record_lent(lent);
            let mark = |address| memory.mark_lent(address, self.borrower);
            submit(&mut receive.fill, self.zero_copy, mark);
            if receive.fill.needs_wakeup() {
                sys::kick_receive(self.fd.as_raw_fd());
            }
        }
        lent == wanted
    }

    fn count_received(&self) -> u32 {
        self.receive
            .as_ref()
            .map_or(0, |receive| receive.arrivals.count_unread())
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

    fn count_invalid(&self) -> u64 {
        self.invalid
    }
}

/// Publishes the written entries to the kernel, and marks their frames in the holder table. The
/// order matters if the worker is killed between the two steps. In copy mode this function marks
/// last, because a successor finds the frames in the ring. With zero-copy this function marks
/// first, because a driver may take the frames out of the ring at once. If the worker is then
/// killed, frames that are marked but not submitted are lost.
#[inline]
fn submit<T: Slot>(ring: &mut XskProducer<T>, zero_copy: bool, mark: impl Fn(T)) {
    if zero_copy {
        ring.written_from(ring.submitted()).for_each(mark);
        ring.submit();
    } else {
        let start = ring.submit();
        ring.written_from(start).for_each(mark);
    }
}

const _: () = assert!(HEADROOM as usize >= myelin_packet::nsh::ENCAPSULATION_LEN);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use myelin_packet::fixtures::build;

    use super::*;
    use crate::umem::Umem;
    use crate::xsk::{Role, Xsk, XskConfig};

    /// A veth pair in this namespace, and an AF_XDP socket on one end.
    struct Wire {
        name: String,
        umem: Umem,
    }

    impl Wire {
        fn new(letter: char) -> Option<(Self, Xsk)> {
            if !nix::unistd::geteuid().is_root() {
                println!("SKIP: needs root for a veth pair and an AF_XDP socket");
                return None;
            }
            let name = format!("my{}{letter}", std::process::id());
            let wire = Self {
                umem: Umem::create(512, 2048).unwrap(),
                name,
            };
            wire.ip("link add DEV type veth peer name DEVp");
            wire.ip("link set DEVp up");
            wire.ip("link set DEV up");
            let path = format!("/sys/class/net/{}/ifindex", wire.name);
            let ifindex = std::fs::read_to_string(path)
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            let mut config = XskConfig::new(&wire.name, ifindex, 0, Role::Ingress);
            config.ring_size = 64;
            let xsk = Xsk::bind(&wire.umem, &config, None).unwrap();
            Some((wire, xsk))
        }

        fn ip(&self, command: &str) {
            let command = command.replace("DEV", &self.name);
            let status = Command::new("ip")
                .args(command.split(' '))
                .status()
                .unwrap();
            assert!(status.success(), "ip {command}");
        }
    }

    impl Drop for Wire {
        fn drop(&mut self) {
            let _ = Command::new("ip")
                .args(["link", "del", &self.name])
                .status();
        }
    }

    fn port_of(xsk: &Xsk, memory: &FrameMemory) -> XdpPort {
        let fd = xsk.fd().try_clone_to_owned().unwrap();
        XdpPort::new(fd, xsk.info(), Borrower::new(0).unwrap(), memory).unwrap()
    }

    /// A worker was killed after it had written a ring's index, before it wrote the holder table.
    #[test]
    fn frames_in_the_rings_of_a_dead_worker_are_lent_and_sent() {
        let Some((wire, xsk)) = Wire::new('h') else {
            return;
        };
        let dead = FrameMemory::map(&wire.umem).unwrap();
        let mut frames = dead.held_frames();
        let mut rings = Rings::map(xsk.fd(), &xsk.info().config).unwrap();
        let (fill, _) = rings.receive.as_mut().unwrap();
        assert_eq!(fill.reserve(10), 10);
        frames
            .by_ref()
            .take(10)
            .for_each(|frame| fill.write(dead.address(frame, 0)));
        fill.submit();
        let packet = build::udp(build::client_v4(), build::server_v4(), b"left behind");
        assert_eq!(rings.transmit.reserve(3), 3);
        for mut frame in frames.by_ref().take(3) {
            dead.bytes_mut(&mut frame)[..packet.len()].copy_from_slice(&packet);
            rings.transmit.write(Descriptor {
                address: dead.address(frame, 0),
                len: packet.len() as u32,
                options: 0,
            });
        }
        rings.transmit.submit();
        assert_eq!(wire.umem.lent().unwrap(), 0, "no frame is marked");
        drop(rings);

        let memory = FrameMemory::map(&wire.umem).unwrap();
        let mut port = port_of(&xsk, &memory);
        assert_eq!(wire.umem.lent().unwrap(), 13);
        let mut pool = FramePool::new(memory.held_frames(), 512);
        assert_eq!(pool.len(), 512 - 13);
        assert!(port.flush(&memory) > 0, "the kernel needs a kick");
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while pool.len() < 512 - 10 && std::time::Instant::now() < deadline {
            port.reclaim(&memory, &mut pool);
        }
        assert_eq!((pool.len(), port.count_invalid()), (512 - 10, 0));
        assert!(port.refill(&memory, &mut pool));
        assert_eq!((pool.len(), wire.umem.lent().unwrap()), (512 - 64, 64));
    }

    #[test]
    fn a_full_ring_returns_the_packet_and_a_down_link_keeps_its_packets() {
        let Some((wire, xsk)) = Wire::new('d') else {
            return;
        };
        let memory = FrameMemory::map(&wire.umem).unwrap();
        let mut pool = FramePool::new(memory.held_frames(), 512);
        let mut port = port_of(&xsk, &memory);
        wire.ip("link set DEV down");
        let mut sent = 0;
        let refused = loop {
            let buffer = Buffer {
                frame: pool.take().unwrap(),
                offset: HEADROOM,
                len: 64,
            };
            match port.transmit(&memory, buffer) {
                Ok(()) => sent += 1,
                Err(buffer) => break buffer,
            }
        };
        assert_eq!(sent, 64);
        pool.give(refused.frame);
        assert_eq!(port.flush(&memory), 1, "one attempt to send");
        assert!(!port.is_backlogged(), "no retry can help");
        assert_eq!(port.flush(&memory), 0);
        port.reclaim(&memory, &mut pool);
        assert_eq!((pool.len(), wire.umem.lent().unwrap()), (512 - 64, 64));
        wire.ip("link set DEV up");
        port.has_unflushed = true;
        // Kernels before 6.17 send 32 packets per call.
        assert!(port.flush(&memory) <= 2);
        port.reclaim(&memory, &mut pool);
        assert_eq!((pool.len(), wire.umem.lent().unwrap()), (512, 0));
    }
}
