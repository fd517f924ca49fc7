//! The server end of a probe. The server stamps packets and sends them back.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Error;
use crate::clock::now_ns;
use crate::payload::Codec;

/// Longest possible datagram, bytes.
pub(crate) const LARGEST_DATAGRAM: usize = 65_536;

/// State that both ends share.
#[derive(Debug, Default)]
pub(crate) struct SharedState {
    /// Whether answers are matched by order. The server then sends back every datagram.
    pub(crate) by_order: AtomicBool,
    /// Datagrams that the server could not read.
    pub(crate) foreign: AtomicU64,
    /// Echoes that the system refused to send.
    pub(crate) send_errors: AtomicU64,
    /// The server's receive time of the last packet, for answers with an unreadable header.
    pub(crate) receive_ns: AtomicU64,
    /// The server's send time of the last packet, for answers with an unreadable header.
    pub(crate) send_ns: AtomicU64,
    /// Whether an end has finished or failed.
    pub(crate) done: AtomicBool,
}

/// Receives, stamps and returns packets at the server.
#[derive(Debug)]
pub(crate) struct Echo<'a> {
    socket: &'a UdpSocket,
    codec: Codec,
    shared: &'a SharedState,
    buffer: Vec<u8>,
    /// One more than the highest id of the current repeat that the server sent back.
    next_id: u64,
    repeat: u32,
}

impl<'a> Echo<'a> {
    pub(crate) fn new(socket: &'a UdpSocket, codec: Codec, shared: &'a SharedState) -> Self {
        Self {
            socket,
            codec,
            shared,
            buffer: vec![0; LARGEST_DATAGRAM],
            next_id: 0,
            repeat: 0,
        }
    }

    /// Receives at most one datagram, and sends the datagram back if it belongs to the run. Returns
    /// whether a datagram arrived.
    pub(crate) fn serve_one(&mut self) -> Result<bool, Error> {
        let received = receive(self.socket, &mut self.buffer, "the probe's server")?;
        let Some((length, peer)) = received else {
            return Ok(false);
        };
        let receive_ns = now_ns();
        let datagram = &mut self.buffer[..length];
        if self.shared.by_order.load(Ordering::Relaxed) {
            self.shared.receive_ns.store(receive_ns, Ordering::Relaxed);
            // Release, because the client reads both times after it receives the datagram sent
            // below.
            self.shared.send_ns.store(now_ns(), Ordering::Release);
        } else if let Some(header) = self.codec.read(datagram) {
            self.codec
                .write_server_times(datagram, receive_ns, now_ns());
            if header.repeat != self.repeat {
                (self.repeat, self.next_id) = (header.repeat, 0);
            }
            self.next_id = self.next_id.max(header.id + 1);
        } else {
            self.shared.foreign.fetch_add(1, Ordering::Relaxed);
            return Ok(true);
        }
        if self.socket.send_to(datagram, peer).is_err() {
            // The client counts a lost packet; this counter records the reason.
            self.shared.send_errors.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// One more than the highest id of `repeat` that the server sent back.
    pub(crate) fn next_id(&self, repeat: u32) -> u64 {
        if self.repeat == repeat {
            self.next_id
        } else {
            0
        }
    }

    /// Answers until the client has finished.
    pub(crate) fn serve(mut self) -> Result<(), Error> {
        while !self.shared.done.load(Ordering::Relaxed) {
            self.serve_one()?;
        }
        Ok(())
    }
}

/// Receives a datagram, if one waits. `end` names the socket in an error.
pub(crate) fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
    end: &str,
) -> Result<Option<(usize, SocketAddr)>, Error> {
    match socket.recv_from(buffer) {
        Ok(received) => Ok(Some(received)),
        Err(error) if is_no_datagram(&error) => Ok(None),
        Err(error) => Err(Error::system(
            format!("receive at {end}"),
            error,
            "check that the socket's namespace still exists",
        )),
    }
}

/// Whether the error means that no datagram arrived: an empty queue, a read timeout, a signal, an
/// ICMP answer to an earlier send.
pub(crate) fn is_no_datagram(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionRefused
    )
}
