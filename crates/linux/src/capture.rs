//! Receives copies of all frames of a link, in both directions (packet(7)).

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use crate::error::{Error, Result};
use crate::packet_socket::bind;

/// Most bytes of a frame that are kept. Longer than every super-packet of IPv4.
pub const MAX_BYTES: usize = 262_144;
/// Size of the receive buffer, bytes. The kernel drops copies that do not fit.
const RECEIVE_BUFFER: usize = 32 << 20;
/// Longest wait for a frame, so that a caller can check whether to end.
const WAIT: TimeVal = TimeVal::new(0, 100_000);

/// A protocol that no frame has: the kernel gives frames with a length in this field other numbers.
const NO_PROTOCOL: u16 = 0x05ff;

/// A socket that receives copies of all frames of a link.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    ifindex: u32,
    buffer: Vec<u8>,
}

/// A copy of a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// The time at which the kernel handled the frame, since 1970.
    pub time: Duration,
    /// The frame, without a VLAN tag that the kernel keeps beside the frame.
    pub bytes: &'a [u8],
    /// The frame's length, bytes; more than those kept if the frame is longer than [`MAX_BYTES`].
    pub length: usize,
}

impl Capture {
    /// Opens a socket on the interface `ifindex` of the calling thread's network namespace.
    pub fn open(ifindex: u32) -> Result<Self> {
        let failed = |errno: Errno| Error::os("open a packet socket", errno);
        let flags = SockFlag::SOCK_CLOEXEC;
        // Without a protocol, the socket receives nothing before it has its interface.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None).map_err(failed)?;
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).map_err(failed)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).map_err(failed)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &WAIT).map_err(failed)?;
        bind(&socket, ifindex, libc::ETH_P_ALL as u16)
            .map_err(|error| Error::os("receive the frames of a link", error))?;
        Ok(Self {
            socket,
            ifindex,
            buffer: vec![0; MAX_BYTES],
        })
    }

    /// Ends the capture: frames that pass from now on are not captured. Those that have passed wait
    /// for [`next_frame`](Self::next_frame).
    pub fn stop(&self) -> Result<()> {
        // A protocol that no frame has. The times of frames do not tell when to stop: the kernel
        // stamps the first frames only when they are read.
        bind(&self.socket, self.ifindex, NO_PROTOCOL)
            .map_err(|error| Error::os("end the capture of a link", error))
    }

    /// Waits up to 100 ms for the next frame; `None` if there is none.
    pub fn next_frame(&mut self) -> io::Result<Option<CapturedFrame<'_>>> {
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_TRUNC);
        let received = recvmsg::<()>(socket, &mut parts, Some(&mut control), flags);
        let received = match received {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let time = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
            _ => None,
        });
        let length = received.bytes;
        Ok(Some(CapturedFrame {
            time: time.unwrap_or_default(),
            bytes: &self.buffer[..length.min(MAX_BYTES)],
            length,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{self, VethEnd};
    use crate::netlink::Netlink;
    use crate::tests::{Namespace, root_or_skip};
    use nix::sys::socket::send;

    #[test]
    fn frames_of_both_directions_are_captured_with_their_times() {
        if !root_or_skip("frames_of_both_directions_are_captured_with_their_times") {
            return;
        }
        let namespace = Namespace::new("capture");
        let check = || {
            let mut netlink = Netlink::open().unwrap();
            let ends = [VethEnd::named("one"), VethEnd::named("other")];
            let pair = link::create_veth(&ends[0], &ends[1]).unwrap();
            netlink.apply([pair]).unwrap();
            let [one, other] = ["one", "other"].map(|name| netlink.link(name).unwrap().id());
            netlink
                .apply([link::set_up(&one), link::set_up(&other)])
                .unwrap();
            let mut capture = Capture::open(one.index).unwrap();
            for (from, byte) in [(&one, 1_u8), (&other, 2)] {
                let frame = [byte; 60];
                let kind = (AddressFamily::Packet, SockType::Raw);
                let sender = socket(kind.0, kind.1, SockFlag::empty(), None).unwrap();
                bind(&sender, from.index, 0).unwrap();
                let found = (0..100).find_map(|_| {
                    // The link refuses frames until it is operational.
                    let _ = send(sender.as_raw_fd(), &frame, MsgFlags::empty());
                    let found = capture.next_frame().unwrap()?;
                    let is_own = found.bytes == frame;
                    is_own.then_some((found.time, found.length))
                });
                let (time, length) = found.unwrap();
                assert!(length == 60 && time > Duration::from_secs(1_600_000_000));
            }
            let send_one = |byte: u8| {
                let kind = (AddressFamily::Packet, SockType::Raw);
                let sender = socket(kind.0, kind.1, SockFlag::empty(), None).unwrap();
                bind(&sender, one.index, 0).unwrap();
                send(sender.as_raw_fd(), &[byte; 60], MsgFlags::empty()).unwrap();
            };
            send_one(3);
            capture.stop().unwrap();
            send_one(4);
            let mut first_bytes = Vec::new();
            while let Some(frame) = capture.next_frame().unwrap() {
                first_bytes.push(frame.bytes[0]);
            }
            assert!(
                first_bytes.contains(&3) && !first_bytes.contains(&4),
                "{first_bytes:?}"
            );
        };
        namespace.enter(check).unwrap();
    }
}
