//! Sends frames directly to a link's driver (packet(7)), many frames in one system call. Traffic
//! generators use this module.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};

use crate::error::{Error, Result};

/// Largest number of frames in one system call.
pub const MAX_BATCH: usize = 32;

/// Size of the send buffer, bytes. The size exceeds any link's ring, because a slow receiver must
/// lose packets and not slow down the sender.
const SEND_BUFFER: usize = 64 << 20;

/// A socket that sends one frame repeatedly and bypasses the link's qdisc. The socket receives no
/// frames.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    frame: Vec<u8>,
}

impl PacketSender {
    /// Opens a socket that sends `frame` over the interface `ifindex` of the calling thread's
    /// network namespace.
    pub fn new(ifindex: u32, frame: &[u8]) -> Result<Self> {
        let fail = |cause: io::Error| Error::os("open a packet socket", cause);
        // A socket without a protocol receives nothing.
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(|errno| fail(errno.into()))?;
        bind(&socket, ifindex, 0).map_err(fail)?;
        bypass_qdisc(&socket).map_err(fail)?;
        setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER)
            .map_err(|errno| fail(errno.into()))?;
        Ok(Self {
            socket,
            frame: frame.into(),
        })
    }

    /// Returns the frame that [`Self::send`] sends.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Returns the frame, to change it for later calls of [`Self::send`].
    pub fn frame_mut(&mut self) -> &mut Vec<u8> {
        &mut self.frame
    }

    /// Sends the frame `count` times, at most [`MAX_BATCH`] times. Returns the number of frames
    /// that the kernel accepted. This number includes frames that the link then drops for lack of
    /// room.
    pub fn send(&self, count: usize) -> io::Result<usize> {
        let mut part = libc::iovec {
            iov_base: self.frame.as_ptr().cast_mut().cast(),
            iov_len: self.frame.len(),
        };
        // SAFETY: the structure is plain data, for which zero is a valid value.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
        let mut messages = [message; MAX_BATCH];
        let count = count.min(MAX_BATCH) as libc::c_uint;
        let (socket, messages) = (self.socket.as_raw_fd(), messages.as_mut_ptr());
        // SAFETY: the messages, the part that they share and the frame live until the call returns.
        // The kernel only reads the frame.
        let sent = unsafe { libc::sendmmsg(socket, messages, count, 0) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        match io::Error::last_os_error() {
            // The link had no room for the first frame.
            error if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(1),
            error => Err(error),
        }
    }
}

/// Binds the socket to an interface. The socket receives frames of `protocol`; 0 receives none.
pub(crate) fn bind(socket: &OwnedFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: the structure is plain data, for which zero is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as _;
    address.sll_ifindex = ifindex.cast_signed();
    address.sll_protocol = protocol.to_be();
    // SAFETY: `address` outlives the call, and the length is its size.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    Errno::result(result)?;
    Ok(())
}

/// Makes frames bypass the link's qdisc.
fn bypass_qdisc(socket: &OwnedFd) -> io::Result<()> {
    let (on, level, option) = (
        1 as libc::c_int,
        libc::SOL_PACKET,
        libc::PACKET_QDISC_BYPASS,
    );
    let (value, length) = ((&raw const on).cast(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: `value` points to an integer of `length` bytes, which outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    Errno::result(result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{self, VethEnd};
    use crate::netlink::Netlink;
    use crate::netns::Netns;
    use crate::tests as testing;

    #[test]
    fn frames_are_sent_unchanged() {
        if !testing::root_or_skip("frames_are_sent_unchanged") {
            return;
        }
        let netns = Netns::anonymous().unwrap();
        netns
            .enter(|| {
                let mut netlink = Netlink::open().unwrap();
                netlink
                    .apply([link::create_veth(&VethEnd::named("a"), &VethEnd::named("b")).unwrap()])
                    .unwrap();
                let [a, b] = ["a", "b"].map(|name| netlink.link(name).unwrap().id());
                netlink.apply([link::set_up(&a), link::set_up(&b)]).unwrap();
                let sender = PacketSender::new(a.index, &[0xff; 60]).unwrap();
                let mut sent = 0;
                while sent < 100 {
                    sent += sender.send((100 - sent).min(MAX_BATCH)).unwrap();
                }
                assert_eq!(sender.frame().len(), 60);
                let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
                let line = text
                    .lines()
                    .find_map(|line| line.trim().strip_prefix("b:"))
                    .unwrap();
                let received: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
                assert!(received >= 100, "{text}");
            })
            .unwrap();
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        if !testing::root_or_skip("a_missing_interface_is_an_error") {
            return;
        }
        let error = PacketSender::new(999_999, &[0; 60]).unwrap_err();
        assert!(error.to_string().contains("packet socket"), "{error}");
    }
}
