//! Requests from the agent to a worker, and replies, over a Unix `SOCK_SEQPACKET` pair.
//!
//! A request is one byte with attached descriptors. The first descriptor is an anonymous file with
//! the request as JSON, because a firewall's rules do not fit a datagram. The request determines
//! the other descriptors. A reply is JSON in the record itself. It contains the number of its
//! request, so that the agent recognises a late reply.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::chain::{SocketId, UserChain};
use crate::config::DevicePair;
use crate::door::ChainRedirect;
use crate::idle::Idle;
use crate::replay_port::Replay;
use crate::ring_port::RingSide;
use crate::shm::anonymous_file;
use crate::sys;
use crate::turns::TurnSetup;
use crate::umem::Borrower;
use crate::xsk::XskInfo;

/// Longest reply, bytes.
const REPLY_MAX: usize = 8192;
/// Longest error message in a reply, characters. The worker cuts longer messages.
const MESSAGE_MAX: usize = 2048;

/// A request of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first request. Descriptors: the statistics, and those of the port set-up.
    Setup(Setup),
    /// Use a socket. The worker maps the socket's rings before it answers. Descriptor: the socket.
    AddSocket {
        /// Number of the socket.
        id: SocketId,
        /// Configuration of the socket.
        info: XskInfo,
        /// Whether the socket replaces a closed socket, whose frames are free. Allowed only before
        /// [`Request::Start`].
        replaces_closed_socket: bool,
    },
    /// Use a packet socket. Descriptors: the socket, and one that sends replies if that is another.
    AddPacketSocket {
        /// Number of the socket.
        id: SocketId,
        /// Whether the socket receives packets.
        receives: bool,
    },
    /// Use a port that receives packets from memory, and sends packets nowhere.
    AddReplay {
        /// Number of the port.
        id: SocketId,
        /// The packets and their times.
        replay: Replay,
    },
    /// Close a socket that is no chain's exit.
    RemoveSocket {
        /// Number of the socket.
        id: SocketId,
    },
    /// Use an end of a ring to another worker. Descriptors: the ring, and the eventfd that wakes
    /// its receiver.
    AddRing {
        /// Port number and borrower number of the ring.
        id: SocketId,
        /// The end that the worker uses.
        side: RingSide,
    },
    /// Take the frames of a process or ring that no longer exists.
    TakeFrames {
        /// Borrower number of the process or ring.
        id: SocketId,
    },
    /// Grant free frames to a process that starts next.
    Grant {
        /// Borrower number of the process.
        id: SocketId,
        /// Number of frames.
        frames: u32,
    },
    /// Run a generation of a chain.
    AddChain {
        /// The chain.
        chain: UserChain,
        /// The chain's block in the statistics.
        block: u32,
    },
    /// Drain and free a generation.
    RemoveChain {
        /// Service path identifier.
        spi: u32,
        /// Generation.
        generation: u16,
    },
    /// Redirect packets at the worker's front door to an added generation.
    RedirectChain {
        /// The packets and the generation.
        chain: ChainRedirect,
        /// The chain's row in the statistics.
        row: u32,
    },
    /// Stop the redirect of packets to a chain.
    StopRedirect {
        /// Service path identifier.
        spi: u32,
        /// The port where the packets arrive.
        ingress: SocketId,
    },
    /// Read the named counters of a chain's functions. Descriptor: an empty file for the answer.
    ReadCounters {
        /// Service path identifier.
        spi: u32,
        /// Generation.
        generation: u16,
    },
    /// Read the flows of a function. Descriptor: an empty file for the answer.
    ReadFlows {
        /// Service path identifier.
        spi: u32,
        /// Generation.
        generation: u16,
        /// Position of the function.
        position: u8,
    },
    /// Change the behaviour of the worker without packets.
    SetIdle(Idle),
    /// Take turns on the core with other workers, or no longer. Descriptors: the table and the
    /// rings of all tasks.
    Share(Option<TurnSetup>),
    /// Start to process packets.
    Start,
    /// Finish the batch and exit.
    Shutdown,
}

/// The settings of a worker that never change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) batch: u16,
    pub(crate) idle: Idle,
    pub(crate) core: Option<u32>,
    /// Whether an earlier process of the worker ran. A restarted worker must run even if its core
    /// no longer exists.
    pub(crate) restarted: bool,
    pub(crate) ports: PortSetup,
}

/// The ports of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortSetup {
    /// Sockets and rings, which later requests add, on a UMEM that the agent made. Descriptor: the
    /// UMEM.
    Sockets {
        /// Number of frames.
        frames: u32,
        /// Size of a frame, bytes.
        frame_size: u32,
        /// The borrower number of this process, if it runs on the UMEM of another process.
        holder: Option<SocketId>,
    },
    /// The socket of a delay line, which a later request adds. Descriptors: the UMEM, and the table
    /// of directions instead of the statistics.
    DelayLine {
        /// Number of frames.
        frames: u32,
        /// Size of a frame, bytes.
        frame_size: u32,
    },
    /// Devices, whose driver allocates the packet buffers.
    Devices(DevicePair),
    /// Packet sockets, which later requests add. The worker allocates the frames.
    PacketSockets,
}

/// A port that the agent hands to a worker.
#[derive(Debug)]
pub struct NewPort {
    pub(crate) borrower: Borrower,
    pub(crate) kind: NewPortKind,
}

#[derive(Debug)]
pub(crate) enum NewPortKind {
    /// With `replaces_closed_socket`, this socket replaces a closed socket with the same number,
    /// whose frames are free.
    Socket {
        fd: OwnedFd,
        info: XskInfo,
        replaces_closed_socket: bool,
    },
    Ring {
        ring: OwnedFd,
        wake_fd: OwnedFd,
        side: RingSide,
    },
    Replay(Replay),
    PacketSocket {
        fd: OwnedFd,
        /// Sends the packets instead of `fd`.
        sender: Option<OwnedFd>,
        receives: bool,
    },
}

/// A message with the number of its request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbered<T> {
    pub(crate) number: u64,
    pub(crate) body: T,
}

/// An answer of the worker.
pub(crate) type Reply = Result<(), String>;

/// Sends a request with its descriptors.
pub(crate) fn send_request(
    socket: BorrowedFd<'_>,
    number: u64,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut file = File::from(anonymous_file("myelin-request", 0)?);
    let message = Numbered {
        number,
        body: request,
    };
    file.write_all(&serde_json::to_vec(&message)?)?;
    file.rewind()?;
    let mut all = vec![file.as_fd()];
    all.extend_from_slice(fds);
    sys::send_with_fds(socket, &[0], &all)
}

/// Receives a request with its descriptors; `None` after the agent closed the connection.
pub(crate) fn receive_request(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(Numbered<Request>, Vec<OwnedFd>)>> {
    let (len, mut fds) = sys::receive_with_fds(socket, &mut [0; 8])?;
    if len == 0 {
        return Ok(None);
    }
    if fds.is_empty() {
        return Err(invalid("the agent sent a request without its body"));
    }
    let mut json = Vec::new();
    File::from(fds.remove(0)).read_to_end(&mut json)?;
    Ok(Some((serde_json::from_slice(&json)?, fds)))
}

/// Answers a request.
pub(crate) fn send_reply(socket: BorrowedFd<'_>, number: u64, reply: &Reply) -> io::Result<()> {
    let body = match reply {
        Ok(()) => Ok(()),
        Err(message) => Err(message.chars().take(MESSAGE_MAX).collect::<String>()),
    };
    sys::send_with_fds(
        socket,
        &serde_json::to_vec(&Numbered { number, body })?,
        &[],
    )
}

/// Waits for the answer to request `number`, up to the socket's receive timeout.
pub(crate) fn receive_reply(socket: BorrowedFd<'_>, number: u64) -> io::Result<Reply> {
    let mut record = [0; REPLY_MAX];
    loop {
        let (len, _) = sys::receive_with_fds(socket, &mut record)?;
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the worker closed the connection",
            ));
        }
        let reply: Numbered<Reply> = serde_json::from_slice(&record[..len])?;
        if reply.number == number {
            return Ok(reply.body);
        }
    }
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use myelin_packet::rules::{Action, Rule};
    use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;
    use crate::chain::{UserExit, UserSegment};

    fn connected_sockets() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap()
    }

    #[test]
    fn a_request_longer_than_a_datagram_arrives_with_its_descriptors() {
        let (agent, worker) = connected_sockets();
        let mut rule = Rule::any(Action::Deny);
        rule.source = Some("2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap());
        let firewall = FirewallConfig {
            rules: vec![rule; 1024],
            default: Action::Allow,
            fragments: FragmentPolicy::Drop,
        };
        let request = Request::AddChain {
            chain: UserChain {
                spi: 5,
                generation: 1,
                positions: 4,
                segments: vec![UserSegment {
                    first_position: 0,
                    functions: vec![FunctionConfig::Firewall(firewall).into(); 4],
                    exit: UserExit::Port(SocketId(1)),
                    shaping: None,
                }],
            },
            block: 9,
        };
        assert!(serde_json::to_vec(&request).unwrap().len() > 300_000);
        let extra = anonymous_file("myelin-test", 12).unwrap();
        send_request(agent.as_fd(), 3, &request, &[extra.as_fd()]).unwrap();
        let (received, fds) = receive_request(worker.as_fd()).unwrap().unwrap();
        assert_eq!((received.number, received.body), (3, request));
        assert_eq!(fds.len(), 1);
        assert_eq!(crate::shm::file_len(fds[0].as_fd()).unwrap(), 12);
    }

    #[test]
    fn a_late_reply_to_an_earlier_request_is_skipped() {
        let (agent, worker) = connected_sockets();
        send_reply(worker.as_fd(), 1, &Ok(())).unwrap();
        send_reply(worker.as_fd(), 2, &Err("no such chain".repeat(1000))).unwrap();
        let reply = receive_reply(agent.as_fd(), 2).unwrap();
        assert!(reply.unwrap_err().starts_with("no such chain"));
        drop(worker);
        let error = receive_reply(agent.as_fd(), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_closed_connection_differs_from_an_invalid_request() {
        let (agent, worker) = connected_sockets();
        sys::send_with_fds(agent.as_fd(), b"?", &[]).unwrap();
        assert!(receive_request(worker.as_fd()).is_err());
        let not_json = anonymous_file("myelin-test", 3).unwrap();
        sys::send_with_fds(agent.as_fd(), b"?", &[not_json.as_fd()]).unwrap();
        assert!(receive_request(worker.as_fd()).is_err());
        drop(agent);
        assert!(receive_request(worker.as_fd()).unwrap().is_none());
    }
}
