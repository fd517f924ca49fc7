//! Packet sockets with virtio-net headers (packet(7), `PACKET_VNET_HDR`). The agent opens them; the
//! worker receives and transmits super-packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::chain::SocketId;
use crate::error::Error;
use crate::protocol::Request;
use crate::sys;

/// Options of packet(7) (linux/if_packet.h).
const PACKET_AUXDATA: i32 = 8;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// Size of each socket buffer, bytes: about 200 super-packets with the kernel's own overhead. The
/// kernel allows twice the number.
const BUFFER: u32 = 8 << 20;

/// A packet socket on an interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: Arc<OwnedFd>,
    /// Whether the socket receives packets.
    pub(crate) receives: bool,
    /// Sends the replies to the senders of received packets.
    replies: Option<Arc<OwnedFd>>,
}

impl PacketSocket {
    /// Opens a socket that receives all packets that arrive at an interface of the calling thread's
    /// network namespace, and transmits there. The packets remain visible to the interface's other
    /// readers.
    ///
    /// # Errors
    /// The kernel refuses a step.
    pub fn receiver(interface: &str, ifindex: u32) -> Result<Self, Error> {
        Self::open(interface, ifindex, libc::ETH_P_ALL as u16)
    }

    /// Opens a socket that transmits on an interface of the calling thread's network namespace and
    /// receives nothing.
    ///
    /// # Errors
    /// The kernel refuses a step.
    pub fn sender(interface: &str, ifindex: u32) -> Result<Self, Error> {
        Self::open(interface, ifindex, 0)
    }

    fn open(interface: &str, ifindex: u32, protocol: u16) -> Result<Self, Error> {
        let failed = |step| {
            move |source: io::Error| Error::PacketSocket {
                interface: interface.into(),
                step,
                source,
            }
        };
        // A socket without a protocol receives nothing until it is bound.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let fd = fd.map_err(|errno| failed("open")(errno.into()))?;
        let set = |level, option, value| sys::set_option(fd.as_fd(), level, option, value);
        set(libc::SOL_PACKET, PACKET_VNET_HDR, 1).map_err(failed("set virtio-net headers"))?;
        set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER).map_err(failed("set the buffer"))?;
        if protocol != 0 {
            set(libc::SOL_PACKET, PACKET_AUXDATA, 1).map_err(failed("set auxiliary data"))?;
            set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
                .map_err(failed("ignore outgoing packets"))?;
            set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER)
                .map_err(failed("set the buffer"))?;
        }
        sys::bind_packet(fd.as_fd(), ifindex, protocol).map_err(failed("bind"))?;
        Ok(Self {
            fd: Arc::new(fd),
            receives: protocol != 0,
            replies: None,
        })
    }

    /// Sends the replies to the senders of received packets over another socket. Use the interface
    /// where the packets arrived first, if they reach this socket over a link.
    #[must_use]
    pub fn with_replies_over(mut self, sender: &Self) -> Self {
        self.replies = Some(Arc::clone(&sender.fd));
        self
    }

    /// Returns the request that hands the socket to a worker.
    pub(crate) fn request(&self, id: SocketId) -> Request {
        let receives = self.receives;
        Request::AddPacketSocket { id, receives }
    }

    /// Returns the descriptors of the socket, and of the socket for replies.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let replies = self.replies.iter().map(AsFd::as_fd);
        [self.fd()].into_iter().chain(replies).collect()
    }

    /// Returns the shared descriptor, for [`WorkerFacts`](crate::WorkerFacts).
    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
