//! The ports of a worker for super-packets: packet sockets over frames of 128 KiB.

use std::os::fd::OwnedFd;

use crate::driver::Driver;
use crate::packet_port::PacketPort;
use crate::protocol::{NewPort, NewPortKind, PortSetup};
use crate::umem::FrameMemory;

/// Number of frames: those that functions emit into, and eight for each of 24 ports that receive.
const FRAMES: u32 = 256;
/// Size of a frame, bytes: the power of two above the longest packet and its headroom.
const FRAME_SIZE: u32 = 128 << 10;

/// Packet sockets over frames of this process.
#[derive(Debug)]
pub struct PacketSockets {
    memory: &'static FrameMemory,
}

impl Driver for PacketSockets {
    type Port = PacketPort;

    fn start(setup: &PortSetup, _core: Option<u32>, _fds: Vec<OwnedFd>) -> Result<Self, String> {
        if *setup != PortSetup::PacketSockets {
            return Err("this program has only packet sockets".into());
        }
        let memory = FrameMemory::private(FRAMES, FRAME_SIZE).map_err(|error| error.to_string())?;
        Ok(Self {
            memory: Box::leak(Box::new(memory)),
        })
    }

    fn memory(&self) -> &'static FrameMemory {
        self.memory
    }

    fn open(port: NewPort, memory: &'static FrameMemory) -> Result<PacketPort, String> {
        let NewPort { borrower, kind } = port;
        match kind {
            NewPortKind::PacketSocket {
                fd,
                sender,
                receives,
            } => Ok(PacketPort::new((fd, sender), receives, borrower, memory)),
            NewPortKind::Socket { .. } | NewPortKind::Ring { .. } | NewPortKind::Replay(_) => {
                Err("this worker has only packet sockets".into())
            }
        }
    }
}
