//! A port over a DPDK device. It receives and transmits bursts. Functions work in the device's
//! buffers.

use std::os::fd::RawFd;

use myelin_dataplane::port::{Buffer, FramePool, Port};
use myelin_dataplane::umem::FrameMemory;
use myelin_dataplane::{DoorDecision, FrontDoor, monotonic_ns};
use myelin_packet::meta::META_LEN;
use myelin_spec::DpdkDevice;

use crate::environment::Environment;
use crate::error::Error;
use crate::sys::{Descriptor, Device, MAX_BURST, Shim, TransmitQueue};

/// Requested entries of each ring of a port.
const RING: u16 = 1024;
/// Fewest packets to request from a device. Some drivers' vector receive paths round the request
/// down to a multiple of 4, 8 or 32. A request for one packet would then return none.
const MIN_BURST: usize = 32;
/// Maximum number of packets that wait for a device. The forwarder drops and counts other packets.
const BACKLOG: usize = 1024;

/// A port over a DPDK device, with its front door.
///
/// DPDK's drivers take buffers from the environment's pool, and return them to the pool after
/// transmission. The forwarder's pool contains only frames for packets that functions emit.
#[derive(Debug)]
pub struct DpdkPort {
    shim: &'static Shim,
    memory: &'static FrameMemory,
    device: Device,
    name: DpdkDevice,
    door: FrontDoor,
    received: Box<[Descriptor; MAX_BURST]>,
    /// Indices of the packets in `received` that the forwarder has not taken.
    arrived: std::ops::Range<usize>,
    stamp_ns: u64,
    transmit: TransmitQueue,
    is_backlogged: bool,
    /// The port for packets without a chain.
    opposite: Option<TransmitQueue>,
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
            shim: environment.shim(),
            memory: environment.memory(),
            transmit: device.transmit_queue(BACKLOG),
            device,
            name: name.clone(),
            door: FrontDoor::new(),
            received: Box::new([Descriptor::default(); MAX_BURST]),
            arrived: 0..0,
            stamp_ns: 0,
            is_backlogged: false,
            opposite: None,
            invalid: 0,
        })
    }

    /// Sets the port that transmits packets without a chain. Without such a port, this port drops
    /// them. Close the other port after this one.
    pub fn set_opposite(&mut self, other: &Self) {
        self.opposite = Some(other.device.transmit_queue(MAX_BURST));
    }

    /// Returns the classifier of this port.
    pub fn door(&mut self) -> &mut FrontDoor {
        &mut self.door
    }

    /// Returns the device name that the user gave.
    pub fn name(&self) -> &DpdkDevice {
        &self.name
    }

    /// Takes all arrived frames without the front door, and returns their bytes. For tests.
    pub fn collect(&mut self, memory: &FrameMemory) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while self.poll_arrivals(MAX_BURST as u32) > 0 {
            for at in self.arrived.by_ref() {
                let Some(mut buffer) = self.received[at].claim(memory) else {
                    self.invalid += 1;
                    continue;
                };
                let (start, len) = (buffer.offset as usize, buffer.len as usize);
                packets.push(memory.bytes_mut(&mut buffer.frame)[start..start + len].to_vec());
                self.shim.free_frame(memory, buffer.frame);
            }
        }
        packets
    }

    /// Passes a packet without a chain to the opposite port.
    #[cold]
    fn forward_to_opposite(&mut self, memory: &FrameMemory, buffer: Buffer) {
        let unsent = match &mut self.opposite {
            Some(opposite) => opposite.push(memory, buffer),
            None => Err(buffer),
        };
        if let Err(buffer) = unsent {
            self.shim.free_frame(memory, buffer.frame);
        }
    }
}

impl Port for DpdkPort {
    #[inline]
    fn poll_arrivals(&mut self, limit: u32) -> u32 {
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
        let decision = bytes
            .split_at_mut_checked(start)
            .and_then(|(headroom, packet)| {
                let decision = self.door.decide(packet.get(..len)?, self.stamp_ns);
                if let DoorDecision::Taken(meta) = decision {
                    *headroom.last_chunk_mut::<META_LEN>()? = meta.to_bytes();
                }
                Some(decision)
            });
        match decision {
            Some(DoorDecision::Taken(_)) => Some(buffer),
            Some(DoorDecision::Policed | DoorDecision::FragmentDropped) => {
                self.shim.free_frame(memory, buffer.frame);
                None
            }
            Some(DoorDecision::Unmatched) | None => {
                self.forward_to_opposite(memory, buffer);
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
        self.is_backlogged = self.transmit.send() > 0;
        0
    }

    fn is_backlogged(&self) -> bool {
        self.is_backlogged
    }

    #[inline]
    fn reclaim(&mut self, _memory: &FrameMemory, _pool: &mut FramePool) {
        // The driver returns transmitted buffers to their pool.
    }

    #[inline]
    fn refill(&mut self, memory: &FrameMemory, pool: &mut FramePool) -> bool {
        if pool.len() < FramePool::RESERVE / 2 {
            let missing = FramePool::RESERVE - pool.len();
            self.shim
                .take_frames(memory, missing, |frame| pool.give(frame));
        } else {
            // The pool also has the frames of packets that functions dropped.
            while let Some(frame) = pool.take_for_receive() {
                self.shim.free_frame(memory, frame);
            }
        }
        !pool.is_empty()
    }

    fn count_received(&self) -> u32 {
        self.arrived.len() as u32 + self.device.count_received()
    }

    fn readable_fd(&self) -> Option<RawFd> {
        None
    }

    fn count_dropped_fragments(&self) -> u64 {
        self.door.dropped_fragments()
    }

    fn count_invalid(&self) -> u64 {
        self.invalid + self.device.count_oversized()
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        for at in self.arrived.by_ref() {
            if let Some(buffer) = self.received[at].claim(self.memory) {
                self.shim.free_frame(self.memory, buffer.frame);
            }
        }
        self.transmit.discard();
        if let Some(opposite) = &mut self.opposite {
            opposite.discard();
        }
    }
}
