//! A port over a device of DPDK: bursts in, bursts out, functions at work in the device's own buffers.

use std::os::fd::RawFd;

use myelin_dataplane::monotonic_ns;
use myelin_dataplane::port::{Buffer, FramePool, Port};
use myelin_dataplane::umem::FrameMemory;
use myelin_packet::meta::META_LEN;
use myelin_spec::DpdkDevice;

use crate::door::{Admission, FrontDoor};
use crate::environment::Environment;
use crate::error::Error;
use crate::sys::{Descriptor, Device, Functions, MAX_BURST, Outgoing};

/// Entries of each ring of a port, as far as its driver agrees.
const RING: u16 = 1024;
/// Packets that a device is asked for at least. The vector receive paths of some drivers round what they are asked for down to a multiple of 4, 8 or 32, so
/// they would give nothing to who asks for one.
const MIN_BURST: usize = 32;
/// Packets that may wait for a device to take them; more are dropped and counted.
const BACKLOG: usize = 1024;

/// A port over a device of DPDK, with its front door.
///
/// It receives into and transmits from the pool of the environment, which DPDK's drivers fill and empty themselves: the forwarder's pool
/// only holds what functions emit from.
#[derive(Debug)]
pub struct DpdkPort {
    functions: &'static Functions,
    memory: &'static FrameMemory,
    device: Device,
    name: DpdkDevice,
    door: FrontDoor,
    received: Box<[Descriptor; MAX_BURST]>,
    /// Those of `received` that were not taken yet.
    arrived: std::ops::Range<usize>,
    stamp_ns: u64,
    transmit: Outgoing,
    backlogged: bool,
    /// Where the packets go that no chain takes.
    opposite: Option<Outgoing>,
    invalid: u64,
}

impl DpdkPort {
    /// Opens a device.
    ///
    /// # Errors
    /// DPDK has no such device, or cannot start it.
    pub fn open(environment: &Environment, name: &DpdkDevice) -> Result<Self, Error> {
        let device = environment.open(name, RING)?;
        Ok(Self {
            functions: environment.functions(),
            memory: environment.memory(),
            transmit: device.outgoing(BACKLOG),
            device,
            name: name.clone(),
            door: FrontDoor::new(),
            received: Box::new([Descriptor::default(); MAX_BURST]),
            arrived: 0..0,
            stamp_ns: 0,
            backlogged: false,
            opposite: None,
            invalid: 0,
        })
    }

    /// Sends what no chain takes out of the other port from now on; without one it is dropped. The other port must not be closed before
    /// this one.
    pub fn set_opposite(&mut self, other: &Self) {
        self.opposite = Some(other.device.outgoing(MAX_BURST));
    }

    /// The classifier of this port.
    pub fn door(&mut self) -> &mut FrontDoor {
        &mut self.door
    }

    /// The device, as the user named it.
    pub fn name(&self) -> &DpdkDevice {
        &self.name
    }

    /// What has arrived and was not taken, past the front door: for tests.
    pub fn collect(&mut self, memory: &FrameMemory) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while self.arrived(MAX_BURST as u32) > 0 {
            for at in self.arrived.by_ref() {
                let Some(mut buffer) = self.received[at].claim(memory) else {
                    self.invalid += 1;
                    continue;
                };
                let (start, len) = (buffer.offset as usize, buffer.len as usize);
                packets.push(memory.bytes_mut(&mut buffer.frame)[start..start + len].to_vec());
                self.functions.give(memory, buffer.frame);
            }
        }
        packets
    }

    /// Hands a packet that no chain takes to the opposite port.
    #[cold]
    fn pass(&mut self, memory: &FrameMemory, buffer: Buffer) {
        let unsent = match &mut self.opposite {
            Some(opposite) => opposite.push(memory, buffer),
            None => Err(buffer),
        };
        if let Err(buffer) = unsent {
            self.functions.give(memory, buffer.frame);
        }
    }
}

impl Port for DpdkPort {
    #[inline]
    fn arrived(&mut self, limit: u32) -> u32 {
        if self.arrived.is_empty() {
            let burst = (limit as usize).clamp(MIN_BURST, MAX_BURST);
            let received = self.device.receive(&mut self.received[..burst]);
            self.arrived = 0..received;
            if received > 0 {
                self.stamp_ns = monotonic_ns();
            }
        }
        limit.min(self.arrived.len() as u32)
    }

    #[inline]
    fn take(&mut self, memory: &FrameMemory) -> Option<Buffer> {
        let descriptor = self.received[self.arrived.next()?];
        let Some(mut buffer) = descriptor.claim(memory) else {
            self.invalid += 1;
            return None;
        };
        let (start, len) = (buffer.offset as usize, buffer.len as usize);
        let bytes = memory.bytes_mut(&mut buffer.frame);
        let admission = bytes
            .split_at_mut_checked(start)
            .and_then(|(headroom, packet)| {
                let admission = self.door.admit(packet.get(..len)?, self.stamp_ns);
                if let Admission::Taken(meta) = admission {
                    *headroom.last_chunk_mut::<META_LEN>()? = meta.to_bytes();
                }
                Some(admission)
            });
        match admission {
            Some(Admission::Taken(_)) => Some(buffer),
            Some(Admission::Policed) => {
                self.functions.give(memory, buffer.frame);
                None
            }
            Some(Admission::Unmatched) | None => {
                self.pass(memory, buffer);
                None
            }
        }
    }

    #[inline]
    fn release(&mut self) {
        if let Some(opposite) = &mut self.opposite
            && opposite.send() > 0
        {
            opposite.discard();
        }
    }

    #[inline]
    fn transmit(&mut self, memory: &FrameMemory, buffer: Buffer) -> Result<(), Buffer> {
        self.transmit.push(memory, buffer)
    }

    #[inline]
    fn flush(&mut self, _memory: &FrameMemory) -> u64 {
        self.backlogged = self.transmit.send() > 0;
        0
    }

    fn is_backlogged(&self) -> bool {
        self.backlogged
    }

    #[inline]
    fn reclaim(&mut self, _memory: &FrameMemory, _pool: &mut FramePool) {
        // The driver puts what it has sent back into the pool it came from.
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        if pool.len() < FramePool::RESERVE / 2 {
            let missing = FramePool::RESERVE - pool.len();
            self.functions
                .take(memory, missing, |frame| pool.give(frame));
        } else {
            // What functions dropped.
            while let Some(frame) = pool.take_for_receive() {
                self.functions.give(memory, frame);
            }
        }
        !pool.is_empty()
    }

    fn waiting(&self) -> u32 {
        self.arrived.len() as u32 + self.device.waiting()
    }

    fn readable_fd(&self) -> Option<RawFd> {
        None
    }

    fn invalid(&self) -> u64 {
        self.invalid + self.device.refused()
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        for at in self.arrived.by_ref() {
            if let Some(buffer) = self.received[at].claim(self.memory) {
                self.functions.give(self.memory, buffer.frame);
            }
        }
        self.transmit.discard();
        if let Some(opposite) = &mut self.opposite {
            opposite.discard();
        }
    }
}
